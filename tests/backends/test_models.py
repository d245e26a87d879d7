from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from flowrl.backends.models import materialise
from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Model
from tests.backends.tiny import make_tiny, tiny_model


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


@pytest.mark.parametrize("source", ["./gone", "empty"])
def test_missing_model_is_the_users_fault(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FlowError) as caught:
        materialise(Model(name="policy", source=source), tmp_path, tmp_path / "out", 0)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FR0803"
    assert "config.json" in (diagnostic.why or "")
