"""How many instructions a second the driver gets done where ranks do nothing, beside Ray's own round trips."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.running import ranks
from benchmarks.running.runs import FLOWS, Ran, plan_of, run_plan, start_ray, with_ranks
from benchmarks.searching.outcome import Outcome

LEAST = 200.0
"""Instructions a second."""
SLOTS = 2
ROUND_TRIPS = 300


def section(quick: bool = False) -> Outcome:
    out = Outcome("dispatch of an empty step")
    steps = 20 if quick else 60
    plan = plan_of(FLOWS / "idle.yaml", f"run.steps={steps}")
    ray = start_ray(SLOTS, [ranks])
    try:
        with tempfile.TemporaryDirectory() as folder:
            alone = _round_trips(ray)
            ran = run_plan(plan, Path(folder), "ray", 1, with_ranks(ranks.maker(16)))
            alone = max(alone, _round_trips(ray))
            rate, per_step = _rate(ran)
            out.lines.append(
                f"{per_step:.0f} instructions a step, {statistics.median(ran.step_seconds()) * 1e3:.1f} ms"
            )
    finally:
        ray.shutdown()
    out.lines.append(f"{rate:.0f} instructions/s; bare calls of one Ray actor, one after another: {alone:.0f} /s")
    out.rows.append({"instructions_per_second": rate, "round_trips_per_second": alone, "ratio": rate / alone})
    out.bar(
        "instructions a second", f"{rate:.0f}, {rate / alone:.2f} of Ray's round trips", f"{LEAST:.0f}", rate >= LEAST
    )
    return out


def _rate(ran: Ran) -> tuple[float, float]:
    """Instructions a second in the faster half of the steps, and their number in a step."""
    spans = [span for span in ran.spans if span["args"]["step"] > 2]
    steps = {span["args"]["step"] for span in spans}
    seconds = sorted(ran.step_seconds())
    per_step = len(spans) / len(steps)
    return per_step / statistics.median(seconds[: len(seconds) // 2]), per_step


def _round_trips(ray: Any) -> float:
    actor = ray.remote(ranks.Idle).remote()
    ray.get(actor.load.remote())
    found: list[float] = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        ray.get(actor.load.remote())
        found.append(time.perf_counter() - start)
    ray.kill(actor)
    return 1 / statistics.median(sorted(found)[: ROUND_TRIPS // 2])
