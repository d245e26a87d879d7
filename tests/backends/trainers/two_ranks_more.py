"""What two gloo ranks do with ways to share out a model that test_two_ranks.py does not have.

test_shares.py compares it with one rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowrl.graph.graph import Kind
from flowrl.graph.params import EngineParams
from tests.backends.processes import free_port, in_processes
from tests.backends.ranks import forward, rank_of
from tests.backends.trainers.two_ranks import ADAM, BUDGET, RANKS, SGD, rows_of, train, weights_of

LORA = {"rank": 3, "alpha": 6, "targets": "all_linear"}
WAYS: dict[str, dict[str, Any]] = {
    "lora": {"lora": LORA},
    "lora, packed, in chunks": {"lora": LORA, "engine": EngineParams(packing=True, cross_entropy="chunked")},
    "zero 1": {"engine": EngineParams(zero_stage=1)},
    "zero 2": {"engine": EngineParams(zero_stage=2)},
    "copies": {"engine": EngineParams(shard_devices=1)},
    "parameters on the host": {"engine": EngineParams(parameter_offload=True)},
}


def work(rank: int, port: int, place: dict[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    common = {"rank": rank, "world_size": RANKS, "store_port": port}
    for name, way in WAYS.items():
        trainer = rank_of(Kind.TRAINER, place["model"], "fsdp", optimizer=SGD, **way, **common)
        call = forward(micro_batch_tokens=BUDGET)
        found[f"{name} log_probs"] = trainer.call(call, rows_of(rank, 1)).batch.ragged("old_log_probs").values
        found[f"{name} steps"] = train(trainer, rank)
        found[f"{name} weights"] = weights_of(trainer)
    for name in ("lora", "copies"):
        adam = rank_of(Kind.TRAINER, place["model"], "fsdp", optimizer=ADAM, **WAYS[name], **common)
        adam.restore(place[f"one rank, {name}"])
        adam.save(place[f"two ranks, {name}"])
        found[f"{name} saved"] = train(adam, rank, first=4)[:1]
    return found


def both(place: dict[str, Path]) -> list[dict[str, Any]]:
    return in_processes(work, RANKS, free_port(), place)
