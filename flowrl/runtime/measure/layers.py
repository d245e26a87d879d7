"""Passes through whole layers: what a token costs forward and backward, and what a layer and a micro-batch cost at
least.

Seconds are fitted to the planner's own form (placement/time/training.py): FLOPs·(1 + c·R/w)/X over models of several
widths, where products are large enough to fill the device; and L·l + o over several depths, where nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from flowrl.runtime.measure.figures import Figure, Times, fit, timed
from flowrl.runtime.measure.machine import Machine
from flowrl.runtime.measure.models import VOCABULARY, Small, make

ROW_TOKENS = 64
FORWARD, BOTH = 2.0, 6.0
"""FLOPs of a token and parameter: a pass forward, and one forward and backward (Kaplan et al. 2020)."""
ATTENTION = {FORWARD: 1.0, BOTH: 3.5}
"""Passes of attention, the backward one at 2.5 (Dao 2023)."""


@dataclass(frozen=True, slots=True)
class Pass:
    small: Small
    tokens: int
    kind: float
    flops: float
    times: Times


def widths(machine: Machine, quick: bool) -> list[tuple[Small, int]]:
    """Models and tokens whose time is in products: narrow to wide."""
    scale = 1 if machine.card.device.is_cpu else 16
    found = [(Small(hidden * scale, 2), tokens * scale) for hidden, tokens in ((128, 1024), (256, 512), (512, 256))]
    return found[::2] if quick else found


def depths(quick: bool) -> list[Small]:
    """Models whose time is in launches."""
    return [Small(64, 1), Small(64, 4)] if quick else [Small(64, 1), Small(64, 3), Small(64, 6)]


def layers(machine: Machine, quick: bool) -> list[Figure]:
    dtype = machine.dtypes[0]
    span = 0.1 if quick else 0.6
    name = machine.name
    both = [_passes(machine, small, tokens, BOTH, dtype, span) for small, tokens in widths(machine, quick)]
    ahead = [_passes(machine, small, tokens, FORWARD, dtype, span) for small, tokens in widths(machine, quick)]
    figures = _rates(machine, both, ahead)
    least = [_passes(machine, small, 8, BOTH, dtype, span) for small in depths(quick)]
    (a_layer, a_batch), left = fit([[each.small.layers, 1.0] for each in least], [each.times.median for each in least])
    spread = max(left, max(each.times.spread for each in least))
    repeats = sum(len(each.times.seconds) for each in least)
    launched = f"{a_layer * 1e3:.3g} ms a layer, {a_batch * 1e3:.3g} ms a micro-batch, forward and backward"
    facts = {"spread": spread, "text": launched, "repeats": repeats}
    return [
        *figures,
        Figure(path=f"device.{name}.layer_seconds", value=a_layer, **facts),
        Figure(path=f"device.{name}.micro_batch_seconds", value=a_batch, **facts),
    ]


def _rates(machine: Machine, both: list[Pass], ahead: list[Pass]) -> list[Figure]:
    """One `c` for both kinds of passes, as the planner has it: fitted with those that train."""
    peak = machine.card.device.bf16_flops_per_second
    ridge = peak / machine.card.device.memory_bytes_per_second
    (slope, narrow), left = fit([_row(each) for each in both], [each.times.median for each in both])
    if slope <= 0:  # on a busy machine widths differ by less than repeats
        (slope,), left = fit([[each.flops] for each in both], [each.times.median for each in both])
        narrow = 0.0
    traffic = narrow / max(slope, 1e-30) / ridge
    rows = [[sum(part * by for part, by in zip(_row(each), (1.0, traffic * ridge), strict=True))] for each in ahead]
    (alone,), left_ahead = fit(rows, [each.times.median for each in ahead])
    name, cores = machine.name, machine.cores
    found: list[Figure] = []
    for path, taken, missed, passes in (("train", slope, left, both), ("forward", alone, left_ahead, ahead)):
        if taken <= 0:
            continue
        spread = max(missed, sorted(each.times.spread for each in passes)[len(passes) // 2])
        text = f"{1 / taken / 1e12:.3g} TFLOP/s in layers, {'forward' if path == 'forward' else 'forward and backward'}"
        repeats = sum(len(each.times.seconds) for each in passes)
        value = 1 / taken / (peak * cores)
        found.append(Figure(path=f"device.{name}.{path}", value=value, text=text, spread=spread, repeats=repeats))
    text = f"{traffic:.3g} of a product's bytes moved beside it, from the widths of {len(both)} models"
    return [*found, Figure(path=f"device.{name}.traffic", value=traffic, text=text, spread=left, repeats=len(both))]


def _row(each: Pass) -> list[float]:
    narrow = 1.0 / each.tokens + 1.0 / each.small.hidden + 1.0 / each.small.ffn
    return [each.flops, each.small.parameters * each.tokens * narrow * each.kind]


def _passes(machine: Machine, small: Small, tokens: int, kind: float, dtype: torch.dtype, span: float) -> Pass:
    model = make(small, machine, dtype)
    rows = max(1, tokens // ROW_TOKENS)
    ids = torch.randint(0, VOCABULARY, (rows, min(tokens, ROW_TOKENS)), device=machine.device)
    times = timed(_work(model, ids, backward=kind == BOTH), machine.wait, span)
    attended = small.layers * 2.0 * small.hidden * min(tokens, ROW_TOKENS) * ATTENTION[kind]
    return Pass(small, tokens, kind, tokens * (kind * small.parameters + attended), times)


def _work(model: Any, ids: torch.Tensor, *, backward: bool) -> Callable[[], object]:
    def ahead() -> object:
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits

    def both() -> object:
        logits = model(input_ids=ids, use_cache=False).logits
        cross_entropy(logits.flatten(0, 1).float(), ids.flatten()).backward()
        return model.zero_grad(set_to_none=True)

    return both if backward else ahead
