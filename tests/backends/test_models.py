from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoModelForCausalLM

from flowrl.backends.models import materialise
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Model
from tests.backends.placed import INLINE, placed
from tests.backends.tiny import make_tiny, tiny_model
from tests.conftest import Told


@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_inline_model_loads_with_a_vocabulary_of_its_tokenizers_length(tmp_path: Path, tokenizer: str) -> None:
    folder = make_tiny(tmp_path / "m", tokenizer=tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder)
    codec = Codec(folder)
    assert model.config.vocab_size == codec.vocab_size == model.get_input_embeddings().num_embeddings
    assert model.dtype is torch.float32
    assert (model.config.eos_token_id, model.config.pad_token_id) == (codec.eos_id, codec.pad_id)
    assert not codec.has_template


def test_seed_and_name_make_the_weights(tmp_path: Path) -> None:
    def weights(name: str, seed: int, folder: str) -> torch.Tensor:
        model = Model(name=name, source="inline", dtype="float32", inline=tiny_model().inline)
        out = materialise(model, Path("."), tmp_path / folder, seed)
        return AutoModelForCausalLM.from_pretrained(out).get_input_embeddings().weight

    before = torch.random.get_rng_state()
    first = weights("policy", 0, "a")
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, weights("policy", 0, "b"))
    assert not torch.equal(first, weights("policy", 1, "c"))
    assert not torch.equal(first, weights("critic", 0, "d"))


def test_bfloat16_is_kept(tmp_path: Path) -> None:
    model = Model(name="m", source="inline", dtype="bfloat16", inline=tiny_model().inline)
    folder = materialise(model, Path("."), tmp_path / "m", 0)
    assert AutoModelForCausalLM.from_pretrained(folder).dtype is torch.bfloat16


def test_folder_is_used_as_it_lies(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "m")
    assert materialise(Model(name="m", source="m"), tmp_path, tmp_path / "unused", 0) == folder
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(("source", "name"), [("./gone", "gone"), ("empty", "empty")])
def test_missing_model_is_the_users_fault(tmp_path: Path, source: str, name: str, told: Told) -> None:
    (tmp_path / "empty").mkdir()
    model = placed(tmp_path, {INLINE: f"source: {source}"}).model("policy")
    with pytest.raises(FlowError) as caught:
        materialise(model, tmp_path, tmp_path / "out", 0)
    told(caught.value, "FR0803", name)


def test_a_hub_that_does_not_answer_is_told_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("An error happened while trying to locate the files on the Hub.\nMore.")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    model = placed(tmp_path, {INLINE: "source: acme/gone-7b"}).model("policy")
    with pytest.raises(FlowError) as caught:
        materialise(model, tmp_path, tmp_path / "out", 0)
    told(caught.value, "FR0803", "hub")
