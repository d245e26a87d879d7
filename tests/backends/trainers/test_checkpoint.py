from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from flowrl.backends.trainers.fsdp.export import export_checkpoint
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import OptimizerParams
from tests.backends.ranks import forward, rank_of, sample_rows, update
from tests.backends.tiny import make_tiny
from tests.conftest import Told

ADAM = OptimizerParams(name="adamw", lr=1e-2, weight_decay=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("checkpoints") / "m")


def trained(folder: Path, steps: int, **changes: Any) -> Any:
    rank = rank_of(Kind.TRAINER, folder, "fsdp", **({"optimizer": ADAM} | changes))
    for step in range(1, steps + 1):
        rank.call(update(step=step), sample_rows(8, seed=step))
    return rank


@pytest.mark.parametrize("optimizer", [ADAM, OptimizerParams(name="sgd", lr=0.1)], ids=["adamw", "sgd"])
def test_going_on_is_bit_equal(folder: Path, tmp_path: Path, optimizer: OptimizerParams) -> None:
    rank = trained(folder, 2, optimizer=optimizer)
    rank.save(tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.suffix not in {".safetensors", ".json"}]
    again = trained(folder, 1, optimizer=optimizer)
    again.restore(tmp_path)
    for step in (3, 4):
        one, two = (r.call(update(step=step), sample_rows(8, seed=step)).metrics for r in (rank, again))
        assert one == two
    left, right = (dict(r._rank.module.named_parameters()) for r in (rank, again))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_checkpoint_before_the_first_update(folder: Path, tmp_path: Path) -> None:
    trained(folder, 0).save(tmp_path)
    rank, fresh = trained(folder, 1), trained(folder, 0)
    rank.restore(tmp_path)
    assert rank.call(update(), sample_rows(8)).metrics == fresh.call(update(), sample_rows(8)).metrics


@pytest.mark.parametrize("file_bytes", [2**32, 20_000])
def test_an_exported_folder_loads_with_equal_logits(folder: Path, tmp_path: Path, file_bytes: int) -> None:
    rank = trained(folder, 2)
    (tmp_path / "checkpoint").mkdir()
    rank.save(tmp_path / "checkpoint")
    out = export_checkpoint(tmp_path / "checkpoint", folder, tmp_path / "out", file_bytes=file_bytes)
    files = sorted(out.glob("*.safetensors"))
    assert len(files) == 1 or (len(files) > 3 and all(f.stat().st_size < 25_000 for f in files))
    model = AutoModelForCausalLM.from_pretrained(out)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, rank._rank.module(ids).logits)
    assert AutoTokenizer.from_pretrained(out).eos_token == "<eos>"
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    again = rank_of(Kind.TRAINER, out, "fsdp")
    batch = sample_rows(3)
    logs = [r.call(forward(), batch).batch.ragged("old_log_probs").values for r in (rank, again)]
    assert np.array_equal(*logs)


def test_export_in_the_models_dtype(folder: Path, tmp_path: Path) -> None:
    rank = trained(folder, 1, dtype="bfloat16")
    (tmp_path / "checkpoint").mkdir()
    rank.save(tmp_path / "checkpoint")
    out = export_checkpoint(tmp_path / "checkpoint", folder, tmp_path / "out")
    assert {value.dtype for value in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(out).dtype is torch.bfloat16
    rank.close()


def test_a_scalar_head_is_exported_with_its_class(folder: Path, tmp_path: Path) -> None:
    rank = rank_of(Kind.TRAINER, folder, "fsdp", head="scalar", optimizer=ADAM)
    rank.call(update(loss="value"), sample_rows(8))
    (tmp_path / "checkpoint").mkdir()
    rank.save(tmp_path / "checkpoint")
    out = export_checkpoint(tmp_path / "checkpoint", folder, tmp_path / "out")
    model, report = AutoModelForTokenClassification.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    assert model.config.architectures == ["Qwen2ForTokenClassification"]
    assert model.num_labels == 1
    again = rank_of(Kind.TRAINER, out, "fsdp", head="scalar")
    batch = sample_rows(3)
    values = [r.call(forward("values"), batch).batch.ragged("values").values for r in (rank, again)]
    assert values[0].any()
    assert np.array_equal(*values)


def test_another_models_checkpoint_is_refused(folder: Path, tmp_path: Path, told: Told) -> None:
    kept = tmp_path / "checkpoint"
    kept.mkdir()
    trained(folder, 0).save(kept)
    other = trained(make_tiny(tmp_path / "wide", hidden_size=64), 0)
    with pytest.raises(FlowError) as caught:
        other.restore(kept)
    told(caught.value, "FR0831", "shape")
    with pytest.raises(FlowError) as caught:
        other.restore(tmp_path / "nowhere")
    told(caught.value, "FR0831", "gone")
