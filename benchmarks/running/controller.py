"""What the driver's process takes: its share of the seconds of a real step, and its bytes by length of sequences."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.running import meter, ranks
from benchmarks.running.meter import Mark, MeteredLauncher
from benchmarks.running.runs import FLOWS, plan_of, run_plan, start_ray
from benchmarks.searching.outcome import Outcome
from flowrl.runtime.launchers.contract import Launcher

MOST_SHARE = 0.02
LENGTHS = (1024, 8192)
"""Tokens of every sample of the fake generator."""
MOST_GROWTH = 1.05
SLOTS = 2
SIZES = ("models.policy.source.hidden_size=256", "models.policy.source.layers=4", "models.policy.source.ffn_size=1024")
"""Of the real step: 4 million parameters, and 64 samples of `TOKENS` tokens."""
TOKENS, QUICK_TOKENS = 128, 16


def section(quick: bool = False) -> Outcome:
    out = Outcome("controller")
    steps = 6 if quick else 20
    ray = start_ray(SLOTS, [ranks, meter])
    try:
        _share(out, steps, QUICK_TOKENS if quick else TOKENS)
        _bytes(out, steps)
    finally:
        ray.shutdown()
    return out


def _share(out: Outcome, steps: int, tokens: int) -> None:
    found = _marks(None, f"run.steps={steps}", f"vars.tokens={tokens}", "step.samples_per_prompt=8", *SIZES)
    step = statistics.median(_differences(found, "seconds"))
    whole, thread = (statistics.median(_differences(found, n)) for n in ("processor_seconds", "thread_seconds"))
    share = whole / step
    out.lines.append(
        f"step of {step:.2f} s: {whole * 1e3:.1f} ms of the processor in the driver's process, {thread * 1e3:.1f} ms of"
        " them in the thread that drives"
    )
    out.rows.append({"step_seconds": step, "driver_seconds": whole, "thread_seconds": thread, "share": share})
    out.bar("controller time", f"{share:.2%} of the step", f"at most {MOST_SHARE:.0%}", share <= MOST_SHARE)


def _bytes(out: Outcome, steps: int) -> None:
    totals: list[float] = []
    for tokens in LENGTHS:
        found = _marks(ranks.maker(tokens), f"run.steps={steps}", f"vars.tokens={tokens}")
        sent, received = (statistics.median(_differences(found, name)) for name in ("sent", "received"))
        totals.append(sent + received)
        out.lines.append(f"{tokens:,} tokens a sample: {sent:,.0f} bytes sent a step, {received:,.0f} received")
        out.rows.append({"tokens": tokens, "sent": sent, "received": received})
    growth = totals[-1] / totals[0]
    demand = f"at most {MOST_GROWTH}"
    out.bar(
        f"bytes a step at {LENGTHS[-1]:,} tokens over {LENGTHS[0]:,}", f"{growth:.3f}", demand, growth <= MOST_GROWTH
    )


def _marks(make_rank: Callable[[Any], object] | None, *sets: str) -> Sequence[Mark]:
    launcher = MeteredLauncher(SLOTS, make_rank=make_rank)
    launcher.marks = []

    def make(kind: str, threads: int) -> Launcher:
        return launcher

    with tempfile.TemporaryDirectory() as folder:
        run_plan(plan_of(FLOWS / "idle.yaml", *sets), Path(folder), "ray", SLOTS, make)
    return launcher.marks


def _differences(marks: Sequence[Mark], name: str) -> list[float]:
    """Of each step but the first two, to the start of the next."""
    values = [getattr(mark, name) for mark in marks[2:]]
    return [after - before for before, after in pairwise(values)]
