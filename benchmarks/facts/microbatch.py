"""Peak memory of published training micro-batches (`train_microbatch`) against the plan of the same trainer.

The figures are torch's peak of *reserved* memory (prime-rl's trainer/rl/train.py, torch.cuda.max_memory_reserved),
without CUDA context and NCCL. What prime-rl's trainer does is read from its sources and said in the engine's keys, the
same for all its rows:
  master weights, also those that LoRA freezes, in float32 (model.optimization_dtype), compute in bfloat16, gradients
  reduced in float32, AdamW; a group per layer, freed after forward; two micro-batches a step (benchmarks/scripts/
  run_single_benchmark.py); reinforcement learning with a fused output layer (fused_lm_head_chunk_size, 2,048),
  supervised training with whole logits that the loop holds; activation checkpointing of each layer (`Recompute`), its
  inputs moved to the host but for five (`Offload`, max_inflight_activations); LoRA of rank 16 on all linear layers and
  experts.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any, cast

from benchmarks.facts.cards import card_of
from benchmarks.facts.records import device_of
from benchmarks.facts.section import Facts, Section, bar
from benchmarks.facts.trainer import NotPlannedError, Trainer, update_lines

GIB = 2**30
LIMIT = 0.10
MICRO_BATCHES = 2
LORA_RANK = 16


def rows(facts: Facts) -> Section:
    """One row a record."""
    found: list[dict[str, Any]] = []
    excluded: list[dict[str, str]] = []
    for record in facts.perf:
        if record.get("kind") != "train_microbatch":
            continue
        id = str(record.get("id"))
        try:
            found.append(_row(id, record))
        except (NotPlannedError, KeyError, TypeError, ValueError) as error:
            excluded.append({"id": id, "reason": str(error) or type(error).__name__})
    errors = [abs(row["error"]) for row in found]
    summary = {
        "rows": len(found),
        "median_error": bar(statistics.median(errors) if errors else None, LIMIT),
        "largest_error": max(errors, default=None),
    }
    return Section("memory of training micro-batches", found, excluded, summary, _text(found))


def _row(id: str, record: Mapping[str, Any]) -> dict[str, Any]:
    measured = cast("Mapping[str, Any]", record["measured"]).get("peak_gpu_mem_gib")
    if not isinstance(measured, int | float) or measured <= 0:
        raise NotPlannedError("no peak memory")
    lines = update_lines(trainer_of(record))
    predicted = sum(line.value for line in lines) / GIB
    return {
        "id": id,
        "measured_gib": float(measured),
        "predicted_gib": round(predicted, 2),
        "error": round(predicted / measured - 1, 4),
        "lines": {line.what: round(line.value / GIB, 2) for line in lines},
    }


def trainer_of(record: Mapping[str, Any]) -> Trainer:
    """What the record trains and how. Raises NotPlannedError."""
    name, notes, algorithm = str(record["models"]["actor"]), str(record.get("notes") or ""), str(record["algorithm"])
    card, gpu = card_of(name), device_of(str(record.get("gpu") or ""))
    if card is None or gpu is None:
        raise NotPlannedError(f"no card of {name}" if card is None else f"no card of {record.get('gpu')}")
    length = record.get("response_len")
    tokens = int(length["seq_len"]) if isinstance(length, Mapping) else int(cast("Any", length))
    said = cast("Mapping[str, Any]", (record.get("parallelism") or {}).get("train") or {})
    layout = {axis: int(said[axis]) for axis in ("tp", "cp", "ep") if int(said.get(axis) or 1) > 1}
    lora = re.search(r"lora(?:\(r=(\d+)\))?", algorithm, re.IGNORECASE)
    return Trainer(
        model=card,
        gpu=gpu,
        devices=int(record["num_gpus"]),
        tokens=tokens // layout.get("cp", 1),
        micro_batches=MICRO_BATCHES,
        layout=layout,
        engine=_engine(notes, supervised=algorithm.upper().startswith("SFT")),
        model_keys={"lora": {"rank": int(lora[1] or LORA_RANK), "alpha": 32}} if lora else {},
    )


def _engine(notes: str, *, supervised: bool) -> dict[str, Any]:
    checkpointing = re.search(r"activation ckpt (\w+)", notes, re.IGNORECASE)
    way = checkpointing[1].lower() if checkpointing else "recompute"
    return {
        "recompute": "none" if way == "none" else "full",
        "activation_offload": way == "offload",
        "cross_entropy": "whole" if supervised else "fused",
        "master_dtype": "float32",
    }


def _text(found: list[dict[str, Any]]) -> str:
    head = f"{'record':72} {'measured':>8} {'planned':>8} {'error':>6}  GiB"
    body = [
        f"{row['id'][:72]:72} {row['measured_gib']:8.1f} {row['predicted_gib']:8.1f} {row['error']:+6.0%}"
        for row in found
    ]
    return "\n".join([head, *body])
