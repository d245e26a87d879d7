"""What two gloo ranks do that cut every matrix in two (tp). test_tensor_parallel.py compares it with one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.graph.graph import Kind
from flowrl.graph.params import EngineParams
from flowrl.plan.plan import Layout
from tests.backends.processes import free_port, in_processes
from tests.backends.ranks import forward, rank_of
from tests.backends.trainers.two_ranks import ADAM, BUDGET, SGD, rows_of, train, weights_of

WAYS: dict[str, EngineParams] = {
    "tied": EngineParams(),
    "untied": EngineParams(packing=True, recompute="full"),
}


def work(rank: int, port: int, place: dict[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    common: dict[str, Any] = {"rank": rank, "world_size": 2, "store_port": port, "layout": Layout(tp=2)}
    for name, engine in WAYS.items():
        trainer = rank_of(Kind.TRAINER, place[name], "fsdp", optimizer=SGD, engine=engine, **common)
        made = trainer.call(forward(micro_batch_tokens=BUDGET), rows_of(None, 1)).batch
        found[f"{name} log_probs"] = None if made is None else made.ragged("old_log_probs").values
        found[f"{name} steps"] = train(trainer, None)
        found[f"{name} weights"] = weights_of(trainer)
    adam = rank_of(Kind.TRAINER, place["tied"], "fsdp", optimizer=ADAM, **common)
    adam.restore(place["one rank"])
    found["restored weights"] = weights_of(adam)
    adam.save(place["two ranks"])
    found["saved"] = train(adam, None, first=4)[:1]
    return found


def both(place: dict[str, Path]) -> list[dict[str, Any]]:
    return in_processes(work, 2, free_port(), place)
