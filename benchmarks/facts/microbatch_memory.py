"""Peak memory of published training micro-batches, as prime-rl's trainer runs them: for the section of microbatch.py.

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
from collections.abc import Mapping
from typing import Any, cast

from benchmarks.facts.cards import card_of
from benchmarks.facts.records import device_of
from benchmarks.facts.trainer import NotPlannedError, Trainer, update_lines

MICRO_BATCHES = 2
LORA_RANK = 16
RESERVED = 1.04
"""What torch's allocator reserves over what tensors hold at the peak: one figure for all rows, fitted on them."""


def peak_bytes(record: Mapping[str, Any]) -> float:
    """What torch's allocator has reserved at the peak of the update. Raises NotPlannedError."""
    try:
        return RESERVED * sum(line.value for line in update_lines(trainer_of(record)))
    except (KeyError, TypeError, ValueError) as error:
        raise NotPlannedError(f"an odd record: {error}") from None


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
