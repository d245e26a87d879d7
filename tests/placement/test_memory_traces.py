"""Peaks of FSDP2 in other ways than the shared table against traces of torch's FSDPMemTracker: gathered layers kept,
bfloat16 weights and gradients, hybrid shard, frozen bases, tensor parallelism, a mixture of experts.

benchmarks/trace_memory.py made the table (torch 2.13, transformers 5.19); nothing was compared with a GPU.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowrl.machine.models import CARDS
from flowrl.machine.profile import PROFILE, with_constants
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, bytes_of
from flowrl.placement.memory.fsdp import moments, update_inputs
from flowrl.placement.memory.training import resident_lines
from tests.placement.trainers import trainer

GIB = 2**30
ROWS = json.loads((Path(__file__).parent / "fsdp_memory_ways.json").read_text(encoding="utf-8"))["rows"]
CARD = {
    "qwen2": "Qwen/Qwen2.5-1.5B",
    "qwen3": "Qwen/Qwen3-4B",
    "llama": "meta-llama/Llama-3.2-1B",
    "qwen3_moe": "Qwen/Qwen3-30B-A3B",
}
LOGIT_BYTES = {"hf": 12.0, "bf16": 6.0, "last": 0.0}


def shape_of(row: dict[str, Any]) -> ModelShape:
    return replace(CARDS[CARD[row["model"]]], layers=row["layers"], vocab=151_936, tied=row.get("tied", False))


def planned_gib(row: dict[str, Any]) -> float:
    shape = shape_of(row)
    assert shape.parameters + (row["trained"] if row.get("frozen") else 0) == pytest.approx(row["params"], rel=1e-6)
    engine: dict[str, Any] = {}
    if row.get("keep_gathered"):
        engine["zero_stage"] = 2
    if row.get("shard"):
        engine["shard_devices"] = row["shard"]
    if row.get("bf16_weights"):
        engine["master_dtype"] = "bfloat16"
    elif row.get("frozen"):
        engine["master_dtype"] = "float32"
    if row.get("bf16_gradients"):
        engine["gradient_dtype"] = "bfloat16"
    placed = trainer(
        shape,
        dp=row["world"] // row["tp"],
        tp=row["tp"],
        recompute=row["recompute"],
        adapter=row["trained"] if row.get("frozen") else 0,
        **engine,
    )
    said = {"training.logit_bytes": LOGIT_BYTES[row["loss"]], "training.weighted_expert_bytes": 0.0}
    placed = replace(placed, profile=with_constants(PROFILE, said))
    inputs = update_inputs(placed, Given(row["seq"] * row["mb"], "test"))
    found = moments(placed, inputs, accumulates=row["accum"] > 1)
    return (bytes_of(resident_lines(placed)) + max(map(bytes_of, found))) / GIB


def name_of(row: dict[str, Any]) -> str:
    said = [f"{key} {value}" for key, value in row.items() if not isinstance(value, dict | float)]
    return " ".join(said[:-2])


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_peak_in_other_ways_is_what_the_tracker_saw(row: dict[str, Any]) -> None:
    """Constants were fitted on the dense rows without tp. Those with tp, seen afterwards, were off by -1.6 and +2.5 %,
    experts of transformers' modules by +2.4 and +5.1 %."""
    found = planned_gib(row)
    assert found == pytest.approx(row["peak_GiB"], rel=0.06)
    assert found >= row["peak_GiB"] * 0.97
