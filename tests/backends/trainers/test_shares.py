"""Two ranks that share a model out in other ways than FSDP2's own, against one rank on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.backends.trainers.fsdp.export import export_checkpoint
from flowrl.graph.graph import Kind
from tests.backends.ranks import forward, rank_of
from tests.backends.tiny import make_tiny
from tests.backends.trainers.two_ranks import ADAM, BUDGET, SGD, rows_of, train, weights_of
from tests.backends.trainers.two_ranks_more import LORA, WAYS, both

pytestmark = pytest.mark.slow
KEPT = ("lora", "copies")
SINGLE: dict[str, dict[str, Any]] = {name: {"lora": LORA} if "lora" in name else {} for name in WAYS}
"""The one rank's way: nothing of it is shared out."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("shares")
    place = {"model": make_tiny(root / "model", ffn_size=51)}
    for name in KEPT:
        for ranks in ("one rank", "two ranks"):
            place[f"{ranks}, {name}"] = root / f"{ranks}, {name}"
            place[f"{ranks}, {name}"].mkdir()
        single = rank_of(Kind.TRAINER, place["model"], "fsdp", optimizer=ADAM, **SINGLE[name])
        train(single, None)
        single.save(place[f"one rank, {name}"])
    return place


@pytest.fixture(scope="module")
def found(place: dict[str, Path]) -> list[dict[str, Any]]:
    return both(place)


@pytest.mark.parametrize("name", WAYS)
def test_losses_gradient_norms_and_weights(place: dict[str, Path], found: list[dict[str, Any]], name: str) -> None:
    single = rank_of(Kind.TRAINER, place["model"], "fsdp", optimizer=SGD, **SINGLE[name])
    before = single.call(forward(micro_batch_tokens=BUDGET), rows_of(None, 1)).batch.ragged("old_log_probs").values
    assert np.abs(np.concatenate([made[f"{name} log_probs"] for made in found]) - before).max() < 1e-5
    for got, expected in zip(found[0][f"{name} steps"], train(single, None), strict=True):
        for metric, value in expected.items():
            assert got[metric] == pytest.approx(value, rel=1e-5, abs=1e-6), metric
    assert found[0][f"{name} steps"] == found[1][f"{name} steps"]
    together = found[0][f"{name} weights"].view(np.float32) + found[1][f"{name} weights"].view(np.float32)
    moved = weights_of(single).view(np.float32)
    assert np.abs(together - moved).max() < 1e-5


@pytest.mark.parametrize("name", KEPT)
def test_checkpoints_of_one_rank_on_two_and_back(
    place: dict[str, Path], found: list[dict[str, Any]], name: str, tmp_path: Path
) -> None:
    singles = []
    for ranks in ("one rank", "two ranks"):
        single = rank_of(Kind.TRAINER, place["model"], "fsdp", optimizer=ADAM, **SINGLE[name])
        single.restore(place[f"{ranks}, {name}"])
        singles.append(single)
    one, two = (weights_of(single) for single in singles)
    assert np.array_equal(one, two)
    exported = [
        weights_of(
            rank_of(Kind.TRAINER, export_checkpoint(place[f"{r}, {name}"], place["model"], tmp_path / r), "fsdp")
        )
        for r in ("one rank", "two ranks")
    ]
    assert np.array_equal(*exported)
    assert np.abs(exported[0].view(np.float32) - one.view(np.float32)).max() < 1e-6
    (expected,) = train(singles[0], None, first=4)[:1]
    for metric, value in found[0][f"{name} saved"][0].items():
        assert value == pytest.approx(expected[metric], rel=1e-5, abs=1e-6), metric
