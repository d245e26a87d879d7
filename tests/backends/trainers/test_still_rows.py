"""Rows whose advantages are all zero are read and not trained: nothing that an update gives or does may tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.trainers.fsdp.update import without_gradient
from flowrl.graph.graph import Kind
from flowrl.graph.params import KlParams, OptimizerParams, UpdateParams
from tests.backends.ranks import rank_of, sample_rows, update
from tests.backends.tiny import make_tiny
from tests.backends.trainers.two_ranks import weights_of

SGD = OptimizerParams(name="sgd", lr=1.0, max_grad_norm=1.0)
STILL = (1, 4, 5)
ALMOST = 1e-30
"""An advantage too small to move a float32 weight, and no zero: such rows go the whole way."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("still"))


def _rows(value: float, rows: tuple[int, ...] = STILL) -> Batch:
    batch = sample_rows(8, seed=3)
    advantages = batch.ragged("advantages").rows()
    for row in rows:
        advantages[row] = np.full(len(advantages[row]), value, dtype=np.float32)
    return Batch(batch.ids, batch.prompt_ids, {**batch.columns, "advantages": Ragged.of(advantages, np.float32)})


def _trained(
    folder: Path, *batches: Batch, optimizer: OptimizerParams = SGD, **params: Any
) -> tuple[dict[str, Any], Any, list[bool]]:
    """Metrics of the last update, the weights after it, and whether each forward pass kept its graph."""
    trainer = rank_of(Kind.TRAINER, folder, "fsdp", optimizer=optimizer)
    graphs: list[bool] = []
    trainer._rank.module.register_forward_pre_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    metrics: dict[str, Any] = {}
    for step, batch in enumerate(batches, start=1):
        metrics = trainer.call(update(step=step, micro_batch_tokens=30, **params), batch).metrics
    return metrics, weights_of(trainer).view(np.float32), graphs


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo", "reinforce", "topr"])
def test_the_update_is_that_of_all_rows(folder: Path, loss: str) -> None:
    """Beside the same rows with an advantage that is next to nothing: those are trained."""
    metrics, weights, graphs = _trained(folder, _rows(0.0), _rows(0.0), loss=loss)
    expected, moved, all_graphs = _trained(folder, _rows(ALMOST), _rows(ALMOST), loss=loss)
    assert set(metrics) == set(expected)
    expected.pop("clip_fraction", None)  # an advantage is clipped however small, and no advantage is not
    for name, (value, count) in expected.items():
        assert metrics[name] == (pytest.approx(value, rel=1e-5, abs=1e-6), count), name
    assert np.abs(weights - moved).max() < 1e-5
    assert all(all_graphs)
    assert 0 < sum(graphs) < len(graphs)


def test_with_no_row_to_train_the_optimizer_moves_by_its_moments(folder: Path) -> None:
    adam, every = OptimizerParams(name="adamw", lr=1e-2), tuple(range(8))
    _, before, _ = _trained(folder, _rows(1.0), optimizer=adam)
    _, weights, graphs = _trained(folder, _rows(1.0), _rows(0.0, every), optimizer=adam)
    _, moved, _ = _trained(folder, _rows(1.0), _rows(ALMOST, every), optimizer=adam)
    assert all(graphs)
    assert np.abs(weights - before).max() > 1e-3
    assert np.abs(weights - moved).max() < 1e-6


def test_an_entropy_bonus_and_a_kl_move_every_row() -> None:
    rows = _rows(0.0)
    assert without_gradient(rows, UpdateParams(loss="ppo")).tolist() == [row in STILL for row in range(8)]
    assert without_gradient(rows, UpdateParams(loss="ppo", entropy_coef=0.01)) is None
    assert without_gradient(rows, UpdateParams(loss="ppo", kl=KlParams(coef=0.1, form="k3"))) is None
    assert without_gradient(rows, UpdateParams(loss="ppo", kl=KlParams(coef=0.0, form="k3"))) is not None
    assert without_gradient(rows, UpdateParams(loss="value")) is None
