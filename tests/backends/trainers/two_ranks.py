"""What two gloo ranks do, each in a process of its own. test_two_ranks.py compares it with one rank.

`work` runs in both; what it returns is pickled back to the test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, Ragged
from flowrl.graph.graph import Kind
from flowrl.graph.params import OptimizerParams
from tests.backends.processes import free_port, in_processes
from tests.backends.ranks import forward, rank_of, sample_rows, update

RANKS = 2
SHARE = (7, 4)
"""Rows of each rank: with a small budget they need unequal numbers of micro-batches."""
STILL = (0, 1, 4, 5, 8)
BUDGET = 30
SGD = OptimizerParams(name="sgd", lr=1.0, max_grad_norm=1.0)
ADAM = OptimizerParams(name="adamw", lr=1e-2)
STEPS = 3
SGD_STEPS = 10
"""DESIGN, promise 2: losses and gradient norms agree over ten steps of a rate that moves the parameters."""


def rows_of(rank: int | None, step: int) -> Batch:
    """The minibatch of a step, whole or one rank's rows."""
    batch = _with_still(sample_rows(sum(SHARE), seed=step))
    if rank is None:
        return batch
    start = sum(SHARE[:rank])
    return batch.select(range(start, start + SHARE[rank]))


def _with_still(batch: Batch) -> Batch:
    """Some rows have no advantage, more of one rank's than of the other's: they are run forward only."""
    advantages = batch.ragged("advantages").rows()
    for row in STILL:
        advantages[row] = np.zeros_like(advantages[row])
    return Batch(batch.ids, batch.prompt_ids, {**batch.columns, "advantages": Ragged.of(advantages, np.float32)})


def train(
    trainer: Any, rank: int | None, first: int = 1, loss: str = "ppo", steps: int = STEPS
) -> list[dict[str, float]]:
    found = []
    for step in range(first, first + steps):
        metrics = trainer.call(update(step=step, loss=loss, micro_batch_tokens=BUDGET), rows_of(rank, step)).metrics
        found.append({name: value for name, (value, _) in metrics.items()})
    return found


def weights_of(trainer: Any, buffer: Any = None) -> Any:
    """The bytes that this rank writes; 0 elsewhere."""
    manifest = trainer.manifest()
    buffer = np.zeros(manifest[-1].offset + manifest[-1].nbytes, dtype=np.uint8)
    trainer.write_weights(buffer)
    return buffer


def work(rank: int, port: int, place: dict[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    common = {"rank": rank, "world_size": RANKS, "store_port": port}
    for name in ("tied", "untied"):
        trainer = rank_of(Kind.TRAINER, place[name], "fsdp", optimizer=SGD, **common)
        call = forward(micro_batch_tokens=BUDGET)
        found[f"{name} log_probs"] = trainer.call(call, rows_of(rank, 1)).batch.ragged("old_log_probs").values
        nothing = trainer.call(call, rows_of(rank, 1).select([] if rank else range(7))).batch
        found[f"{name} nothing"] = isinstance(nothing.columns["old_log_probs"], Ragged)
        found[f"{name} steps"] = train(trainer, rank, steps=SGD_STEPS)
        found[f"{name} after"] = trainer.call(call, rows_of(rank, 1)).batch.ragged("old_log_probs").values
        found[f"{name} weights"] = weights_of(trainer)
    adam = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM, **common)
    found["adam steps"] = train(adam, rank, steps=1)
    adam.restore(place["one rank"])
    found["restored weights"] = weights_of(adam)
    found["restored steps"] = train(adam, rank, first=3)[:1]
    adam.save(place["two ranks"])
    found["saved weights"] = weights_of(adam)
    found["saved steps"] = train(adam, rank, first=6)[:1]
    critic = rank_of(Kind.TRAINER, place["tied"], "fsdp", head="scalar", optimizer=SGD, **common)
    found["critic steps"] = train(critic, rank, loss="value")
    found["critic values"] = critic.call(forward("values", micro_batch_tokens=BUDGET), rows_of(rank, 1)).batch
    low = rank_of(Kind.TRAINER, place["tied"], "fsdp", dtype="bfloat16", optimizer=SGD, **common)
    found["low log_probs"] = low.call(call, rows_of(rank, 1)).batch.ragged("old_log_probs").values
    found["low steps"] = train(low, rank)
    for made in (adam, critic, low):
        made._rank.mesh = None
    trainer.close()
    return found


def both(place: dict[str, Path]) -> list[dict[str, Any]]:
    """What each rank returns. Raises what a rank raised."""
    return in_processes(work, RANKS, free_port(), place)
