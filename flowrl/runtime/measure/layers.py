"""Passes of the trainer `fsdp` through small models: what a token costs forward and backward, what a layer, a call and
a row cost at least.

Seconds are fitted to the planner's own form (placement/time/training.py). A GPU's take FLOPs·(1 + c·R/w)/X where
products are large, and L·l + o where nothing is, as it works on what was launched before. A CPU's take the sum of both
and N·s for N rows: all passes are fitted together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flowrl.runtime.measure.figures import Figure, Times, fit, timed
from flowrl.runtime.measure.machine import Machine
from flowrl.runtime.measure.models import VOCABULARY, Small
from flowrl.runtime.measure.ranks import log_probs, rows_of, trainer, update

FORWARD, BOTH = 2.0, 6.0
"""FLOPs of a token and parameter: a pass forward, and one forward and backward (Kaplan et al. 2020)."""
ATTENTION = {FORWARD: 1.0, BOTH: 3.5}
"""Passes of attention, the backward one at 2.5 (Dao 2023)."""
ADAM_BYTES, LOGIT_BYTES = 30.0, {FORWARD: 12.0, BOTH: 24.0}
"""Of a parameter and of a logit, as the planner counts them apart."""
LEAST = (1, 8)
"""Rows and tokens of each where products are nothing."""


@dataclass(frozen=True, slots=True)
class Pass:
    small: Small
    rows: int
    row_tokens: int
    kind: float
    times: Times

    @property
    def tokens(self) -> int:
        return self.rows * self.row_tokens

    @property
    def flops(self) -> float:
        """Half of the tokens are responses, which alone meet the head."""
        head = 0.5 * VOCABULARY * self.small.hidden
        attended = self.small.layers * 2.0 * self.small.hidden * self.row_tokens * ATTENTION[self.kind]
        return self.tokens * (self.kind * (self.small.parameters - head) + attended)


def wide(machine: Machine, quick: bool) -> list[tuple[Small, int, int]]:
    """Models, rows and tokens of a row whose time is in products and in rows: narrow to wide, short rows and long."""
    if not machine.card.device.is_cpu:
        return [(Small(2048 * scale, 2), 64 // scale, 256) for scale in (1, 2, 4)][:: 2 if quick else 1]
    found = [
        (Small(64, 3), 128, 12),
        (Small(128, 2), 64, 12),
        (Small(128, 2), 16, 64),
        (Small(160, 3), 256, 12),
        (Small(256, 2), 128, 12),
        (Small(256, 2), 16, 64),
        (Small(512, 2), 8, 64),
    ]
    return found[1::2] if quick else found


def depths(quick: bool) -> list[Small]:
    """Models whose time is in launches."""
    return [Small(64, 1), Small(64, 4)] if quick else [Small(64, 1), Small(64, 3), Small(64, 6)]


def layers(machine: Machine, quick: bool, known: Mapping[str, float]) -> list[Figure]:
    """`known`: figures so far by path; memory's rate is used if it is there."""
    span = 0.1 if quick else 0.4
    cells = [(small, *LEAST) for small in depths(quick)] + wide(machine, quick)
    found: list[Pass] = []
    with TemporaryDirectory(prefix="flowrl-measure-") as folder:
        for small, rows, row_tokens in cells:
            found += _passes(machine, small, rows, row_tokens, Path(folder), span)
    both, ahead = ([each for each in found if each.kind == kind] for kind in (BOTH, FORWARD))
    memory = known.get(f"device.{machine.name}.decode", 0.7)
    if machine.card.device.is_cpu:
        return together(machine, both, ahead, memory * machine.card.device.memory_bytes_per_second * machine.cores)
    large = len(depths(quick))
    return [*_rates(machine, both[large:], ahead[large:]), *_launches(machine.name, both[:large])]


def _passes(machine: Machine, small: Small, rows: int, row_tokens: int, folder: Path, span: float) -> list[Pass]:
    rank: Any = trainer(small, machine, folder)
    batch, work = rows_of(rows, row_tokens), {BOTH: update(), FORWARD: log_probs()}
    found: list[Pass] = []
    for kind, call in work.items():
        once: Callable[[], object] = lambda call=call: rank.call(call, batch)  # noqa: E731
        found.append(Pass(small, rows, row_tokens, kind, timed(once, machine.wait, span)))
    rank.close()
    return found


def together(
    machine: Machine, both: Sequence[Pass], ahead: Sequence[Pass], memory_bytes_per_second: float
) -> list[Figure]:
    """Of a CPU: one fit of all passes that train, then the rate of those that don't, a third of whose launches and rows
    the planner counts."""
    peak = machine.card.device.bf16_flops_per_second
    ridge = peak / machine.card.device.memory_bytes_per_second
    apart = [_bytes_apart(each) / memory_bytes_per_second for each in both]
    columns = [[*_row(each), float(each.small.layers), 1.0, float(each.rows)] for each in both]
    (slope, narrow, a_layer, a_call, a_row), left = fit(columns, [each.times.median for each in both], apart)
    if slope <= 0:
        return []
    traffic = narrow / slope / ridge
    least = [(a_layer * each.small.layers + a_call + a_row * each.rows) / 3 for each in ahead]
    least = [more + _bytes_apart(each) / memory_bytes_per_second for more, each in zip(least, ahead, strict=True)]
    rows = [[_row(each)[0] + traffic * ridge * _row(each)[1]] for each in ahead]
    (alone,), left_ahead = fit(rows, [each.times.median for each in ahead], least)
    told = ("forward and backward", "forward")
    rates = [
        _rate(machine, *each)
        for each in (("train", slope, left, both, told[0]), ("forward", alone, left_ahead, ahead, told[1]))
    ]
    facts = {"spread": max(left, _spread(both)), "repeats": sum(len(each.times.seconds) for each in both)}
    name = f"device.{machine.name}"
    launched = f"{a_layer * 1e3:.3g} ms a layer, {a_call * 1e3:.3g} ms a call, {a_row * 1e6:.3g} µs a row, {told[0]}"
    moved = f"{traffic:.3g} of a product's bytes moved beside it, from {len(both)} passes"
    return [
        *(rate for rate in rates if rate is not None),
        Figure(path=f"{name}.traffic", value=traffic, text=moved, **facts),
        Figure(path=f"{name}.layer_seconds", value=a_layer, text=launched, **facts),
        Figure(path=f"{name}.micro_batch_seconds", value=a_call, text=launched, **facts),
        Figure(path=f"{name}.row_seconds", value=a_row, text=launched, **facts),
    ]


def _bytes_apart(each: Pass) -> float:
    """What the planner counts beside layers: the optimizer's and those of the logits of responses."""
    optimizer = ADAM_BYTES * each.small.parameters if each.kind == BOTH else 0.0
    return optimizer + LOGIT_BYTES[each.kind] * VOCABULARY * each.tokens / 2


def _launches(name: str, least: Sequence[Pass]) -> list[Figure]:
    """Of a GPU, from passes where nothing is large."""
    (a_layer, a_batch), left = fit([[each.small.layers, 1.0] for each in least], [each.times.median for each in least])
    launched = f"{a_layer * 1e3:.3g} ms a layer, {a_batch * 1e3:.3g} ms a micro-batch, forward and backward"
    spread, repeats = max(left, max(each.times.spread for each in least)), sum(len(p.times.seconds) for p in least)
    return [
        Figure(path=f"device.{name}.{key}", value=value, text=launched, spread=spread, repeats=repeats)
        for key, value in (("layer_seconds", a_layer), ("micro_batch_seconds", a_batch))
    ]


def _rates(machine: Machine, both: Sequence[Pass], ahead: Sequence[Pass]) -> list[Figure]:
    """Of a GPU. One `c` for both kinds of passes, as the planner has it: fitted with those that train."""
    ridge = machine.card.device.bf16_flops_per_second / machine.card.device.memory_bytes_per_second
    (slope, narrow), left = fit([_row(each) for each in both], [each.times.median for each in both])
    if slope <= 0:  # on a busy machine widths differ by less than repeats
        (slope,), left = fit([[each.flops] for each in both], [each.times.median for each in both])
        narrow = 0.0
    traffic = narrow / max(slope, 1e-30) / ridge
    rows = [[_row(each)[0] + traffic * ridge * _row(each)[1]] for each in ahead]
    (alone,), left_ahead = fit(rows, [each.times.median for each in ahead])
    found = [
        _rate(machine, "train", slope, left, both, "forward and backward"),
        _rate(machine, "forward", alone, left_ahead, ahead, "forward"),
    ]
    text = f"{traffic:.3g} of a product's bytes moved beside it, from the widths of {len(both)} models"
    path = f"device.{machine.name}.traffic"
    moved = Figure(path=path, value=traffic, text=text, spread=left, repeats=len(both))
    return [*(each for each in found if each is not None), moved]


def _rate(machine: Machine, key: str, taken: float, missed: float, passes: Sequence[Pass], what: str) -> Figure | None:
    """The share of the peak at which FLOPs take `taken` seconds each."""
    if taken <= 0:
        return None
    return Figure(
        path=f"device.{machine.name}.{key}",
        value=1 / taken / (machine.card.device.bf16_flops_per_second * machine.cores),
        text=f"{1 / taken / 1e12:.3g} TFLOP/s in layers, {what}",
        spread=max(missed, _spread(passes)),
        repeats=sum(len(each.times.seconds) for each in passes),
    )


def _spread(passes: Sequence[Pass]) -> float:
    return statistics.median(each.times.spread for each in passes)


def _row(each: Pass) -> list[float]:
    narrow = 1.0 / each.tokens + 1.0 / each.small.hidden + 1.0 / each.small.ffn
    return [each.flops, each.small.parameters * each.tokens * narrow * each.kind]
