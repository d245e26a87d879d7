"""Decoding by the generator `hf`: seconds of a step, of a layer and of a sequence, from models of two depths.

Seconds are fitted to the planner's form (placement/time/decode.py): a step takes the larger of its products and L
layers' launches, then the step's own seconds, then those of each sequence. Launches and the step come from shallow and
deep models at batch 1, where products are nothing; sequences from what larger batches leave.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.backends.generators.decode import decode
from flowrl.backends.generators.sampling import Sampling
from flowrl.runtime.measure.figures import Figure, Times, fit, timed
from flowrl.runtime.measure.machine import Machine
from flowrl.runtime.measure.models import VOCABULARY, Small, make

PROMPT = 8
STEPS, QUICK_STEPS = 12, 4
SHALLOW, DEEP, SMALL = Small(64, 2), Small(64, 6), Small(256, 4)
ONE = (1,)
MANY, QUICK_MANY = (64, 256), (128,)


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of a batch."""

    small: Small
    batch: int
    times: Times


def decoding(machine: Machine, quick: bool, known: Mapping[str, float]) -> list[Figure]:
    """`known`: figures so far by path; the rate of forward passes is used if it is there."""
    steps, span = (QUICK_STEPS, 0.15) if quick else (STEPS, 0.6)
    found: list[Step] = []
    many = QUICK_MANY if quick else MANY
    for small, batches in ((SHALLOW, (*ONE, *many[-1:])), (DEEP, ONE), (SMALL, many)):
        model = make(small, machine, machine.dtypes[0]).eval().requires_grad_(False)
        found += [_step(machine, model, small, batch, steps, span) for batch in batches]
    share = known.get(f"device.{machine.name}.forward", 0.5)
    return figures_of(machine.name, found, share * machine.card.device.bf16_flops_per_second * machine.cores)


def _step(machine: Machine, model: Any, small: Small, batch: int, steps: int, span: float) -> Step:
    """A step is what a longer answer takes more than one of a token, over its further tokens."""
    one = timed(lambda: _decode(model, batch, 1), machine.wait, span / 4)
    many = timed(lambda: _decode(model, batch, 1 + steps), machine.wait, span)
    seconds = tuple(max(1e-9, (each - one.median) / steps) for each in many.seconds)
    return Step(small, batch, Times(seconds))


def _decode(model: Any, batch: int, tokens: int) -> object:
    prompts = [np.arange(PROMPT, dtype=np.int32) % VOCABULARY for _ in range(batch)]
    limits = np.full(batch, tokens, dtype=np.int64)
    uniforms = np.full((batch, tokens), 0.5)
    return decode(model, prompts, limits, uniforms, Sampling(), lambda ids: np.zeros(len(ids), dtype=np.bool_))


def figures_of(name: str, steps: Sequence[Step], flops_per_second: float) -> list[Figure]:
    """The three seconds, from measured steps and the rate of products."""
    alone = [each for each in steps if each.batch == 1]
    (a_layer, a_step), _ = fit([[each.small.layers, 1.0] for each in alone], [each.times.median for each in alone])
    together = [each for each in steps if each.batch > 1]
    more = [max(1e-9, each.times.median - _on_device(each, a_layer, flops_per_second) - a_step) for each in together]
    (a_sequence,), _ = fit([[float(each.batch)] for each in together], more) if more else ([0.0], 0.0)
    missed = [
        abs((_on_device(each, a_layer, flops_per_second) + a_step + a_sequence * each.batch) / each.times.median - 1.0)
        for each in steps
    ]
    spread = max(statistics.median(missed), statistics.median(each.times.spread for each in steps))
    repeats = sum(len(each.times.seconds) for each in steps)
    said = (
        ("eager_layer_seconds", a_layer, f"hf: {a_layer * 1e3:.3g} ms a layer of a decode step, at least"),
        ("decode_step_seconds", a_step, f"hf: {a_step * 1e3:.3g} ms a decode step beside its layers"),
        ("decode_sequence_seconds", a_sequence, f"hf: {a_sequence * 1e6:.3g} µs a sequence in a decode step"),
    )
    return [
        Figure(path=f"device.{name}.{key}", value=value, text=text, spread=spread, repeats=repeats)
        for key, value, text in said
    ]


def _on_device(step: Step, a_layer: float, flops_per_second: float) -> float:
    return max(2.0 * step.small.parameters * step.batch / flops_per_second, a_layer * step.small.layers)
