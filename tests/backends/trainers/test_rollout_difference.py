"""The check that engine and trainer agree: |difference| of the log-probs of sampled tokens, by hand on the columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Call
from flowrl.graph.graph import Kind
from flowrl.graph.signatures import slot
from tests.backends.ranks import forward, rank_of, sample_rows, update
from tests.backends.tiny import make_tiny

MEAN, MAX = "rollout_log_prob_diff_mean", "rollout_log_prob_diff_max"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rank = rank_of(Kind.TRAINER, make_tiny(tmp_path_factory.mktemp("difference") / "m"), "fsdp")
    yield rank
    rank.close()


def _reading(call: Call, field: str) -> Call:
    """The update's old log-probs come from the column `field`."""
    inputs = tuple(
        structs.replace(one, field=field if one.slot == "old_log_probs" else one.field, source="actor_infer.generate")
        for one in (slot("tokens"), slot("loss_mask"), slot("advantages"), slot("old_log_probs"))
    )
    return dataclasses.replace(call, op=structs.replace(call.op, inputs=inputs))


def _off_by(trainer: Any, batch: Batch) -> tuple[Batch, np.ndarray[Any, Any]]:
    """The batch with generator's log-probs that are off by known amounts, and those under the mask."""
    computed = trainer.call(forward(), batch).batch.ragged("old_log_probs")
    far = np.random.default_rng(0).uniform(-0.02, 0.02, len(computed.values)).astype(np.float32)
    rollout = Ragged(computed.values + far, computed.lengths)
    columns = {**batch.columns, "rollout_log_probs": rollout, "old_log_probs": rollout}
    mask = batch.ragged("loss_mask").values.astype(bool)
    return Batch(batch.ids, batch.prompt_ids, columns), np.abs(far)[mask]


def test_log_probs_measure_it_where_they_are_given_the_rollouts(trainer: Any) -> None:
    batch, far = _off_by(trainer, sample_rows(6))
    metrics = trainer.call(forward(), batch).metrics
    assert metrics[MEAN] == (pytest.approx(far.mean(), abs=1e-6), len(far))
    assert metrics[MAX] == (pytest.approx(far.max(), abs=1e-6), 1.0)


def test_without_them_nothing_is_claimed(trainer: Any) -> None:
    batch = sample_rows(6)
    columns = {name: column for name, column in batch.columns.items() if name != "rollout_log_probs"}
    assert MEAN not in trainer.call(forward(), Batch(batch.ids, batch.prompt_ids, columns)).metrics


@pytest.mark.parametrize("budget", [25, 10_000])
def test_an_update_measures_it_where_the_rollouts_are_its_old_policy(trainer: Any, budget: int) -> None:
    batch, far = _off_by(trainer, sample_rows(6))
    call = _reading(update(micro_batch_tokens=budget), "rollout_log_probs")
    metrics = trainer.call(call, batch).metrics
    assert metrics[MEAN] == (pytest.approx(far.mean(), abs=1e-6), len(far))
    assert metrics[MAX] == (pytest.approx(far.max(), abs=1e-6), 1.0)


def test_an_update_with_recomputed_old_log_probs_does_not(trainer: Any) -> None:
    batch, _ = _off_by(trainer, sample_rows(6))
    assert MEAN not in trainer.call(_reading(update(), "old_log_probs"), batch).metrics
