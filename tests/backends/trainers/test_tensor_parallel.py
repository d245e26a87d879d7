"""Two ranks that cut every matrix in two, against one rank on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.trainers.fsdp.export import export_checkpoint
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.graph.params import EngineParams
from flowrl.plan.plan import Layout
from tests.backends.ranks import forward, rank_of
from tests.backends.tiny import make_tiny
from tests.backends.trainers.tensor_ranks import WAYS, both
from tests.backends.trainers.two_ranks import ADAM, BUDGET, SGD, rows_of, train, weights_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An odd vocabulary and an odd feed-forward, so that cuts are uneven."""
    root = tmp_path_factory.mktemp("tensor")
    place = {"one rank": root / "one rank", "two ranks": root / "two ranks"}
    for folder in place.values():
        folder.mkdir()
    place["tied"] = make_tiny(root / "tied", kv_heads=2, ffn_size=52)
    place["untied"] = make_tiny(root / "untied", kv_heads=2, tie_embeddings=False)
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM)
    train(single, None)
    single.save(place["one rank"])
    return place


@pytest.fixture(scope="module")
def found(place: dict[str, Path]) -> list[dict[str, Any]]:
    return both(place)


@pytest.mark.parametrize("name", WAYS)
def test_losses_gradient_norms_and_weights(place: dict[str, Path], found: list[dict[str, Any]], name: str) -> None:
    single = rank_of(Kind.TRAINER, place[name], "fsdp", optimizer=SGD)
    before = single.call(forward(micro_batch_tokens=BUDGET), rows_of(None, 1)).batch.ragged("old_log_probs").values
    assert np.abs(found[0][f"{name} log_probs"] - before).max() < 1e-5
    assert found[1][f"{name} log_probs"] is None  # told once
    for made in found:
        for got, expected in zip(made[f"{name} steps"], train_anew(place[name]), strict=True):
            for metric, value in expected.items():
                assert got[metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric
    train(single, None)
    together = found[0][f"{name} weights"].view(np.float32) + found[1][f"{name} weights"].view(np.float32)
    assert np.abs(together - weights_of(single).view(np.float32)).max() < 1e-5
    assert all(made[f"{name} weights"].any() for made in found)


def train_anew(folder: Path) -> list[dict[str, float]]:
    return train(rank_of(Kind.TRAINER, folder, "fsdp", optimizer=SGD), None)


def test_checkpoints_of_one_rank_on_two_and_back(
    place: dict[str, Path], found: list[dict[str, Any]], tmp_path: Path
) -> None:
    single = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM)
    single.restore(place["one rank"])
    start = weights_of(single)
    assert np.array_equal(sum(made["restored weights"] for made in found), start)
    single.restore(place["two ranks"])
    assert np.array_equal(weights_of(single), start)
    exported = export_checkpoint(place["two ranks"], place["tied"], tmp_path / "out")
    assert np.array_equal(weights_of(rank_of(Kind.TRAINER, exported, "fsdp")), start)
    (expected,) = train(single, None, first=4)[:1]
    for metric, value in found[0]["saved"][0].items():
        assert value == pytest.approx(expected[metric], rel=1e-5, abs=1e-6), metric


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"lora": {"rank": 2, "alpha": 2}}, "lora"),
        ({"engine": EngineParams(cross_entropy="chunked")}, "chunked"),
        ({"engine": EngineParams(shard_devices=1)}, "shard_devices"),
    ],
)
def test_what_does_not_go_together_is_refused(place: dict[str, Path], changes: dict[str, Any], word: str) -> None:
    with pytest.raises(FlowError) as caught:
        rank_of(Kind.TRAINER, place["tied"], "fsdp", layout=Layout(tp=2), world_size=2, **changes)
    assert caught.value.diagnostics[0].code == "FR0801"
    assert word in str(caught.value)


def test_heads_that_tp_does_not_share_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as caught:
        rank_of(Kind.TRAINER, make_tiny(tmp_path / "m"), "fsdp", layout=Layout(tp=2), world_size=2)
    assert "num_key_value_heads" in str(caught.value)
