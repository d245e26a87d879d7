"""Peaks of torch's FSDPMemTracker (fsdp_memory.json) against the plan of the same trainer.

The tracker ran Qwen2.5 on fake tensors with master weights, gradients and reduction in float32, one FSDP group per
layer, the second step, without the optimizer's own peak. Its losses: `hf`, float32 cross-entropy on logits that are let
go of (12 bytes a logit); `bf16`, the same on bfloat16 (6); `last`, logits of one token, which stands for a loss without
any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.facts.cards import card_of
from benchmarks.facts.section import Facts, Section, bar
from benchmarks.facts.trainer import NotPlannedError, Trainer, update_lines
from flowrl.machine.profile import PROFILE, Profile, with_constants

GIB = 2**30
LOGIT_BYTES: Mapping[str, float] = {"hf": 12.0, "bf16": 6.0, "last": 0.0}
LIMIT, UNDER = 0.05, 0.03
"""Bars: of the error of a total, and of how far it may be too low."""


def rows(facts: Facts) -> Section:
    """One row a configuration."""
    found: list[dict[str, Any]] = []
    excluded: list[dict[str, str]] = []
    for record in facts.tracker:
        id = name_of(record)
        try:
            found.append(_row(id, record))
        except (NotPlannedError, KeyError, TypeError, ValueError) as error:
            excluded.append({"id": id, "reason": str(error) or type(error).__name__})
    errors = [row["error"] for row in found]
    summary = {
        "rows": len(found),
        "largest_error": bar(max(map(abs, errors), default=None), LIMIT),
        "most_under": bar(max((-error for error in errors), default=None), UNDER),
    }
    return Section("memory of fsdp, by tracker", found, excluded, summary, _text(found))


def name_of(record: Mapping[str, Any]) -> str:
    """Such as `7B 8x4096x1 full hf --accum 2`."""
    size = f"{record.get('world')}x{record.get('seq')}x{record.get('micro_batch')}"
    said = (record.get("size"), size, record.get("act_ckpt"), record.get("loss"), record.get("variant"))
    return " ".join(str(each) for each in said if each)


def _row(id: str, record: Mapping[str, Any]) -> dict[str, Any]:
    lines = update_lines(_trainer(record), _profile(str(record.get("loss") or "hf")))
    predicted, measured = sum(line.value for line in lines) / GIB, float(record["peak_GiB"])
    return {
        "id": id,
        "measured_gib": measured,
        "predicted_gib": round(predicted, 3),
        "error": round(predicted / measured - 1, 5),
        "lines": {line.what: round(line.value / GIB, 3) for line in lines},
    }


def _trainer(record: Mapping[str, Any]) -> Trainer:
    size, variant = str(record["size"]), str(record.get("variant") or "")
    card = card_of(str(record.get("model") or f"Qwen2.5-{size}"))
    if card is None:
        raise NotPlannedError(f"no card of a model of {size}")
    accumulated = re.search(r"--accum\s+(\d+)", variant)
    engine: dict[str, Any] = {"recompute": str(record.get("act_ckpt") or "none")}
    if "--reduce_bf16" in variant:
        engine["gradient_dtype"] = "bfloat16"
    if "--param_bf16" in variant:
        engine["master_dtype"] = "bfloat16"
    return Trainer(
        model=card,
        gpu="B200",
        devices=int(record["world"]),
        tokens=int(record["seq"]) * int(record["micro_batch"]),
        micro_batches=int(accumulated[1]) if accumulated else 1,
        engine=engine,
    )


def _profile(loss: str) -> Profile:
    return with_constants(PROFILE, {"training.held_logit_bytes": LOGIT_BYTES[loss]}, f"tracker, loss {loss}")


def _text(found: list[dict[str, Any]]) -> str:
    head = f"{'configuration':44} {'tracked':>9} {'planned':>9} {'error':>7}   GiB per rank"
    body = [
        f"{row['id']:44} {row['measured_gib']:9.2f} {row['predicted_gib']:9.2f} {row['error']:+7.1%}" for row in found
    ]
    return "\n".join([head, *body])
