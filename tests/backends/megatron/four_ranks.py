"""What four gloo ranks do in one layout after another, each in a process of its own. test_layouts.py compares it with
one rank of backend `fsdp` on the same rows.

`work` runs in all four; what it returns is pickled back to the test.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch
from flowrl.backends.trainers.megatron.library import core
from flowrl.graph.graph import Kind
from flowrl.graph.params import EngineParams, OptimizerParams
from flowrl.plan.plan import Layout
from tests.backends.processes import free_port, in_processes
from tests.backends.ranks import forward, rank_of, update
from tests.backends.trainers.two_ranks import ADAM, BUDGET, SGD, weights_of
from tests.backends.trainers.two_ranks import rows_of as rows_of_step

with suppress(ModuleNotFoundError):
    core()  # once for all ranks (processes.py)

RANKS = 4
LAYOUTS = {
    "dp4": Layout(dp=4),
    "tp2 dp2": Layout(dp=2, tp=2),
    "pp2 dp2": Layout(dp=2, pp=2),
    "tp2 pp2": Layout(tp=2, pp=2),
}
SHARES = {1: (11,), 2: (7, 4), 4: (5, 4, 2, 0)}
"""Rows of each replica: they need unequal numbers of micro-batches, and one has none."""
WHOLE = {"tied": EngineParams(), "untied": EngineParams(sequence_parallel=False, recompute="selective")}
"""Models and what is asked of the engine; with tp the first one cuts tokens too."""
STEPS = 4


def replica_of(rank: int, layout: Layout) -> int:
    """tp ranks are neighbours, then replicas, then stages."""
    return rank // layout.tp % layout.dp


def speaks(rank: int, layout: Layout) -> bool:
    """Whether the rank gives the rows of its replica."""
    return rank % layout.tp == 0 and rank // (layout.tp * layout.dp) == layout.pp - 1


def rows_of(replica: int | None, replicas: int, step: int) -> Batch:
    batch, shares = rows_of_step(None, step), SHARES[replicas]
    if replica is None:
        return batch
    start = sum(shares[:replica])
    return batch.select(range(start, start + shares[replica]))


def train(
    trainer: Any, replica: int | None, replicas: int, first: int = 1, steps: int = STEPS, loss: str = "ppo"
) -> list[dict[str, float]]:
    found = []
    for step in range(first, first + steps):
        call = update(step=step, loss=loss, micro_batch_tokens=BUDGET)
        metrics = trainer.call(call, rows_of(replica, replicas, step)).metrics
        found.append({name: value for name, (value, _) in metrics.items()})
    return found


def work(rank: int, ports: dict[str, int], place: dict[str, Path]) -> dict[str, Any]:
    return {name: _in_layout(name, rank, ports[name], place) for name in ports}


def _in_layout(name: str, rank: int, port: int, place: dict[str, Path]) -> dict[str, Any]:
    layout = LAYOUTS[name]
    replica, replicas = replica_of(rank, layout), layout.dp
    common = {"rank": rank, "world_size": RANKS, "store_port": port, "layout": layout}
    found: dict[str, Any] = {}
    call = forward(micro_batch_tokens=BUDGET)

    def made(folder: str, optimizer: OptimizerParams = SGD, **changes: Any) -> Any:
        return rank_of(Kind.TRAINER, place[folder], "megatron", optimizer=optimizer, **common, **changes)

    trainers = []
    for model, engine in WHOLE.items():
        trainer = made(model, engine=engine)
        trainers.append(trainer)
        given = trainer.call(call, rows_of(replica, replicas, 1)).batch
        found[f"{model} log_probs"] = None if given is None else given.columns
        found[f"{model} manifest"] = trainer.manifest()
        found[f"{model} steps"] = train(trainer, replica, replicas)
        found[f"{model} weights"] = weights_of(trainer)
    adam = made("tied", ADAM)
    found["adam steps"] = train(adam, replica, replicas, steps=1)
    adam.restore(place["one rank"])
    found["restored weights"] = weights_of(adam)
    found["restored steps"] = train(adam, replica, replicas, first=3, steps=1)
    folder = place["root"] / name
    folder.mkdir(exist_ok=True)
    adam.save(folder)
    found["saved weights"] = weights_of(adam)
    found["saved steps"] = train(adam, replica, replicas, first=6, steps=2)
    again = made("tied", ADAM)
    again.restore(folder)
    found["again steps"] = train(again, replica, replicas, first=6, steps=2)
    found["again same"] = np.array_equal(weights_of(again), weights_of(adam))
    critic = made("tied", head="scalar")
    found["critic steps"] = train(critic, replica, replicas, loss="value")
    given = critic.call(forward("values", micro_batch_tokens=BUDGET), rows_of(replica, replicas, 1)).batch
    found["critic values"] = None if given is None else given.columns
    low = made("tied", dtype="bfloat16")
    found["low steps"] = train(low, replica, replicas)
    scorer = rank_of(Kind.SCORER, place["untied"], "megatron", **common)
    given = scorer.call(call, rows_of(replica, replicas, 1)).batch
    found["scorer log_probs"] = None if given is None else given.columns
    for each in (*trainers, adam, again, critic, low, scorer):
        each.close()
    return found


def all_four(place: dict[str, Path]) -> list[dict[str, Any]]:
    """What each rank returns. Raises what a rank raised."""
    return in_processes(work, RANKS, {name: free_port() for name in LAYOUTS}, place)
