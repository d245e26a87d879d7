"""What every generator must do. A backend joins by its name in BACKENDS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.text import Codec
from flowrl.backends.weights import layout
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from tests.backends.placed import ANY_LENGTH, at_its_place
from tests.backends.ranks import forward, generate, prompts, rank_of
from tests.backends.tiny import make_tiny
from tests.conftest import Told

BACKENDS = ("hf",)
TEXTS = ["1+1=", "what is it", "zz", "a", "12+34=", "go on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("generators") / "m", tie_embeddings=False)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def generator(backend: str, folder: Path) -> Iterator[Any]:
    rank = rank_of(Kind.GENERATOR, folder, backend)
    yield rank
    rank.close()


def made(generator: Any, batch: Batch, samples: int = 3, **params: Any) -> Batch:
    result = generator.call(generate(samples, **params), batch).batch
    assert isinstance(result, Batch)
    return result


def rows(batch: Batch, name: str) -> list[list[float]]:
    return [row.tolist() for row in batch.ragged(name).rows()]


def test_columns_are_aligned_and_typed(generator: Any, folder: Path) -> None:
    batch = made(generator, prompts(TEXTS, range(7, 13)))
    codec = Codec(folder)
    assert batch.prompt_ids.tolist() == [p for p in range(7, 13) for _ in range(3)]
    assert batch.ids.tolist() == [(p << 16) + k for p in range(7, 13) for k in range(3)]
    dtypes = {"tokens": "int32", "loss_mask": "bool", "rollout_log_probs": "float32", "weight_version": "int32"}
    for name, dtype in dtypes.items():
        assert batch.ragged(name).values.dtype == dtype
        assert np.array_equal(batch.ragged(name).lengths, batch.ragged("tokens").lengths)
    assert batch.array("finish_reason").dtype == np.int8
    encoded = codec.encode_prompts(TEXTS)
    for row in range(len(batch)):
        tokens, mask = (batch.ragged(name).rows()[row] for name in ("tokens", "loss_mask"))
        prompt = encoded[row // 3]
        assert np.array_equal(tokens[: len(prompt)], prompt)
        assert np.array_equal(mask, np.arange(len(tokens)) >= len(prompt))
        assert not batch.ragged("rollout_log_probs").rows()[row][: len(prompt)].any()
        assert batch.objects("response")[row] == codec.decode(tokens[mask])
        stopped = tokens[-1] == codec.eos_id
        assert batch.array("finish_reason")[row] == (0 if stopped else 1)
        assert mask.sum() == 8 or stopped
        assert codec.eos_id not in tokens[mask][:-1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_the_trainers(generator: Any, folder: Path, temperature: float) -> None:
    batch = made(generator, prompts(TEXTS), temperature=temperature, top_k=40)
    trainer = rank_of(Kind.TRAINER, folder, "fsdp")
    computed = trainer.call(forward(temperature=temperature), batch)
    difference = computed.batch.ragged("old_log_probs").values - batch.ragged("rollout_log_probs").values
    assert np.abs(difference).max() < 1e-4
    assert computed.metrics["rollout_log_prob_diff_mean"][0] < 1e-5
    assert computed.metrics["rollout_log_prob_diff_max"][0] < 1e-4
    trainer.close()


def test_greedy_is_transformers_greedy(generator: Any, folder: Path) -> None:
    batch = made(generator, prompts(TEXTS), samples=1, temperature=0.0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for ids, tokens in zip(Codec(folder).encode_prompts(TEXTS), rows(batch, "tokens"), strict=True):
        given = torch.tensor(ids[None].tolist())
        expected = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=8, do_sample=False)
        assert tokens == expected[0].tolist()


def test_a_sample_depends_on_its_own_prompt_and_seed_alone(generator: Any) -> None:
    whole = made(generator, prompts(TEXTS, range(20, 26)))
    for start, stop in ((0, 1), (1, 3), (3, 6)):
        part = made(generator, prompts(TEXTS[start:stop], range(20 + start, 20 + stop)))
        assert rows(part, "tokens") == rows(whole, "tokens")[3 * start : 3 * stop]
    more = made(generator, prompts(TEXTS, range(20, 26)), samples=5)
    picked = more.select([row for row in range(30) if row % 5 < 3])
    assert rows(picked, "tokens") == rows(whole, "tokens")


def test_seed_label_and_prompt_id_move_the_dice(generator: Any) -> None:
    first = rows(made(generator, prompts(TEXTS)), "tokens")
    assert rows(made(generator, prompts(TEXTS)), "tokens") == first
    assert rows(made(generator, prompts(TEXTS), seed=1), "tokens") != first
    assert rows(made(generator, prompts(TEXTS), label="@val"), "tokens") != first
    assert rows(made(generator, prompts(TEXTS, range(6, 12))), "tokens") != first


def test_limits_and_stop_strings(generator: Any) -> None:
    short = made(generator, prompts(TEXTS), max_response_tokens=2)
    whole = made(generator, prompts(TEXTS))
    for one, other in zip(rows(short, "tokens"), rows(whole, "tokens"), strict=True):
        assert one == other[: len(one)]
    context = made(generator, prompts(TEXTS), max_context_tokens=11)
    assert int(context.ragged("tokens").lengths.max()) == 11
    texts = [str(text) for text in whole.objects("response")]
    stop = next(text[1:3] for text in texts if len(text) > 4 and "\n" not in text)
    stopped = made(generator, prompts(TEXTS), stop=(stop,))
    assert any(stop in text for text in texts)
    for text, before, reason in zip(stopped.objects("response"), texts, stopped.array("finish_reason"), strict=True):
        expected = before[: before.index(stop) + len(stop)] if stop in before else before
        assert text == expected
        assert reason == 0 or stop not in before


def test_prompt_limits(generator: Any, tmp_path: Path, told: Told) -> None:
    call = generate(1)
    cut = type(call)(**{f: getattr(call, f) for f in call.__slots__} | {"max_prompt_tokens": 2, "on_long": "truncate"})
    result = generator.call(cut, prompts(["abcd"])).batch
    assert (
        result.ragged("tokens").values[:2].tolist()
        == Codec(generator._setup.model_folder).encode_texts(["cd"])[0].tolist()
    )
    written = {"generate: {max_response_tokens: 16}": "generate: {max_response_tokens: 4, max_context_tokens: 6}"}
    narrow = at_its_place(generate(3, max_context_tokens=6), tmp_path, written | ANY_LENGTH)
    with pytest.raises(FlowError) as caught:
        generator.call(narrow, prompts(["abc", "abcdef"], [7, 9]))
    told(caught.value, "FR0832")


def test_no_prompts(generator: Any) -> None:
    batch = made(generator, prompts([]))
    assert len(batch) == 0
    assert batch.ragged("tokens").values.dtype == np.int32


def test_metrics(generator: Any) -> None:
    result = generator.call(generate(3), prompts(TEXTS))
    batch = result.batch
    lengths = [int(row.sum()) for row in batch.ragged("loss_mask").rows()]
    assert result.metrics["response_tokens"] == (pytest.approx(sum(lengths) / 18), 18.0)
    assert result.metrics["truncated"] == (pytest.approx(float(batch.array("finish_reason").mean())), 18.0)


@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_enter_in_place(backend: str, tmp_path: Path, tied: bool) -> None:
    old, new = (make_tiny(tmp_path / name, seed, tie_embeddings=tied) for name, seed in (("old", 0), ("new", 1)))
    rank, fresh = rank_of(Kind.GENERATOR, old, backend), rank_of(Kind.GENERATOR, new, backend)
    made(rank, prompts(TEXTS))
    model = AutoModelForCausalLM.from_pretrained(new)
    parameters = dict(model.named_parameters())
    manifest = layout([(name, tuple(p.shape)) for name, p in parameters.items()], torch.float32)
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    for spec in manifest:
        raw = parameters[spec.name].detach().numpy().reshape(-1).view(np.uint8)
        buffer[spec.offset : spec.offset + spec.nbytes] = raw
    buffer.setflags(write=False)
    rank.read_weights(manifest, buffer, version=4)
    got, expected = made(rank, prompts(TEXTS)), made(fresh, prompts(TEXTS))
    for name in ("tokens", "rollout_log_probs"):
        assert rows(got, name) == rows(expected, name)
    assert isinstance(got.ragged("weight_version"), Ragged)
    assert set(got.ragged("weight_version").values.tolist()) == {4}
    assert set(expected.ragged("weight_version").values.tolist()) == {0}
    rank.close()
    fresh.close()
