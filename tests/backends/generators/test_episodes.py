"""Episodes as a generator has them: token in, token out, masks that hold own turns alone, and every limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from flowrl.backends.batch import Batch
from flowrl.backends.contract import LENGTH, STOP, Call, Result
from flowrl.backends.envs.turns import Heard, Said
from flowrl.backends.generators.episodes import Episodes
from flowrl.backends.small_models import TEMPLATE
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import GenerateParams
from tests.backends.placed import at_its_place
from tests.backends.ranks import call_of, rank_of
from tests.backends.tiny import make_tiny
from tests.conftest import Told

CHATML = (
    "{% for m in messages %}<eos>{{ m['role'] }}\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<eos>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny", max_positions=128)


def templated(folder: Path, template: str) -> Codec:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = template
    out = folder.parent / f"templated{len(template)}"
    tokenizer.save_pretrained(str(out))
    return Codec(out)


def call(**params: object) -> Call:
    known = {"max_response_tokens": 60} | params
    return call_of("generate", GenerateParams(**known), role="actor_infer")  # type: ignore[arg-type]


def nothing(*ids: int) -> Batch:
    found = np.asarray(ids, dtype=np.int64)
    return Batch(found, found >> 16, {"rewards": np.arange(len(found), dtype=np.float32)})


def episodes(codec: Codec, made: Call, *ids: int) -> Episodes:
    return Episodes(made, codec, np.asarray(ids, dtype=np.int64), None)


def spoken(codec: Codec, text: str, *, ends: bool) -> list[int]:
    return [*codec.encode_texts([text])[0].tolist(), *([codec.eos_id] if ends else [])]


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("template", [CHATML, TEMPLATE])
def test_what_is_heard_is_what_the_template_puts_there(folder: Path, template: str, ends: bool) -> None:
    """The row is the whole conversation as the template writes it, with own turns as they were sampled."""
    codec = templated(folder, template)
    mine = episodes(codec, call(), 0)
    own = spoken(codec, "up", ends=ends)
    mine.hear([Heard(0, "start", first=True)])
    mine.say(0, own, [-0.5] * len(own), ended=ends)
    mine.hear([Heard(0, "then")])
    row = mine.finish(nothing(0), 3).batch
    assert row is not None
    talk = [("user", "start"), ("assistant", "up"), ("user", "then")]
    whole = codec._tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in talk], tokenize=False, add_generation_prompt=True
    )
    tokens, mask = row.ragged("tokens").values.tolist(), row.ragged("loss_mask").values.tolist()
    written = codec._encode([whole], add_special_tokens=False)[0].tolist()
    if ends and template == TEMPLATE:  # which has no end of turn: the policy's own end token stays
        written = [t for t in tokens if t != codec.eos_id]
        assert codec.decode(np.asarray(tokens)) == whole
    else:
        assert tokens == written
    assert [token for token, own in zip(tokens, mask, strict=True) if own] == own
    assert row.ragged("weight_version").values.tolist() == [3] * len(tokens)
    assert [
        round(p, 1) for p, own in zip(row.ragged("rollout_log_probs").values.tolist(), mask, strict=True) if own
    ] == [-0.5] * len(own)


def test_tokens_that_text_would_not_give_again_stay_as_they_are(folder: Path) -> None:
    """Two ways to write one text: the row has the one that was sampled."""
    codec = templated(folder, CHATML)
    odd = [codec.pad_id, *codec.encode_texts(["x"])[0].tolist(), 2]  # special tokens that a text does not show
    mine = episodes(codec, call(), 0)
    mine.hear([Heard(0, "q", first=True)])
    said = mine.say(0, odd, [0.0] * 3, ended=False)
    assert said == Said(0, "x")
    mine.hear([Heard(0, "more")])
    row = mine.finish(nothing(0), 0).batch
    assert row is not None
    mask = row.ragged("loss_mask").values.astype(bool)
    assert row.ragged("tokens").values[mask].tolist() == odd
    assert row.objects("response") == ("x",)
    assert row.array("rewards").tolist() == [0.0]


def test_limits(folder: Path) -> None:
    codec = Codec(folder)  # no template: texts stand for themselves, a token a character
    made = call(max_response_tokens=10, max_turn_tokens=4, max_context_tokens=13)
    mine = episodes(codec, made, 0, 1)
    requests, _ = mine.hear([Heard(0, "abc", first=True), Heard(1, "abcdefghijk", first=True)])
    assert [each.limit for each in requests] == [4, 2]  # of the turn; what the context leaves
    mine.say(0, spoken(codec, "wxyz", ends=False), [0.0] * 4, ended=False)  # the turn was cut, not the episode
    (request,), _ = mine.hear([Heard(0, "123")])
    assert (request.limit, request.drawn, request.turn) == (3, 4, 1)  # of 10 there were 4 + 3 since the prompt
    mine.say(0, spoken(codec, "o", ends=True), [0.0] * 2, ended=True)
    requests, done = mine.hear([Heard(0, "45")])
    assert (requests, done) == ([], [Said(0, None)])
    row = mine.finish(nothing(0, 1), 0).batch
    assert row is not None
    assert row.array("finish_reason").tolist() == [LENGTH, STOP]
    assert codec.decode_all(row.ragged("tokens").rows()) == ["abcwxyz123o", "abcdefghijk"]


def test_a_sample_that_never_spoke_has_a_row_without_own_tokens(folder: Path) -> None:
    codec = Codec(folder)
    mine = episodes(codec, call(), 5)
    row = mine.finish(nothing(5), 0).batch
    assert row is not None
    assert row.ragged("tokens").values.tolist() == [codec.eos_id]
    assert row.ragged("loss_mask").values.tolist() == [False]


def test_groups_that_the_environment_drops_are_left_out(folder: Path) -> None:
    mine = episodes(Codec(folder), call(), 5, 6)
    row = mine.finish(nothing(6, 99), 0).batch
    assert row is not None
    assert row.ids.tolist() == [6]


def test_an_observation_without_tokens_is_refused(folder: Path, tmp_path: Path, told: Told) -> None:
    codec = Codec(folder)
    mine = episodes(codec, at_its_place(call(), tmp_path), 65537)
    mine.hear([Heard(65537, "q", first=True)])
    mine.say(65537, [5], [0.0], ended=False)
    with pytest.raises(FlowError) as caught:
        mine.hear([Heard(65537, "")])
    told(caught.value, "FR0864")


def test_an_episode_of_one_turn_is_what_generate_makes(folder: Path) -> None:
    """The same tokens and log-probs, whatever else is in flight; later turns go on in the sample's own stream."""
    rank = rank_of(Kind.GENERATOR, folder, "hf")
    made = call(max_response_tokens=8)
    prompts = ("one", "three", "five")
    ids = np.arange(3, dtype=np.int64)
    whole: Result = rank.call(made, Batch(ids, ids, {"prompt": prompts}))
    rank.begin(made, ids << 16, list(prompts))
    rank.speak([Heard(int(id) << 16, None, first=True) for id in ids[:2]], 1)
    rank.speak([Heard(2 << 16, None, first=True)], 1)
    played = rank.finish(nothing(0, 1 << 16, 2 << 16))
    assert whole.batch is not None
    for name in ("tokens", "loss_mask", "weight_version"):
        assert played.batch.ragged(name).values.tolist() == whole.batch.ragged(name).values.tolist()
    assert played.batch.ragged("rollout_log_probs").values == pytest.approx(
        whole.batch.ragged("rollout_log_probs").values, abs=1e-5
    )
    assert played.batch.objects("response") == whole.batch.objects("response")


def test_turns_are_sampled_under_what_was_heard(folder: Path) -> None:
    """The log-probs of all turns are those of one forward pass over the finished row."""
    import torch
    from transformers import AutoModelForCausalLM

    rank = rank_of(Kind.GENERATOR, folder, "hf")
    made = call(max_response_tokens=60, max_turn_tokens=5)
    ids = np.asarray([0, 1], dtype=np.int64)
    rank.begin(made, ids, None)
    rank.speak([Heard(0, "one", first=True), Heard(1, "seventeen", first=True)], 1)
    rank.speak([Heard(0, " and then?"), Heard(1, " so?")], 1)
    rank.speak([Heard(1, " more")], 1)
    row = rank.finish(nothing(0, 1)).batch
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    for tokens, mask, log_probs in zip(
        *(row.ragged(name).rows() for name in ("tokens", "loss_mask", "rollout_log_probs")), strict=True
    ):
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
        picked = torch.log_softmax(logits[:-1], -1).gather(-1, torch.from_numpy(tokens[1:].astype(np.int64))[:, None])
        assert log_probs[1:][mask[1:]] == pytest.approx(picked[:, 0].numpy()[mask[1:]], abs=1e-5)
    assert row.ragged("loss_mask").values.sum() > 10
