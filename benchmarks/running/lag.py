"""Asynchrony where answers have a long tail: samples a second at lag 1, beside the synchronous flow on the same pools
and beside the best synchronous plan that the search finds for the same two cores.

Every flow is run in turns, on one Ray, each rank with one thread. The synchronous flow trains on the samples of the
newest weights; at lag 1 the next samples are made meanwhile.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.running.runs import FLOWS, plan_of, run_plan, start_ray
from benchmarks.searching.outcome import Outcome, Progress
from flowrl.plan.plan import Plan

SAME_POOLS, BEST_PLAN = 1.4, 1.05
SLOTS = 2
ROUNDS, STEPS, QUICK_STEPS = 3, 14, 6
SYNC_PLANS = ("auto", "colocated", "disaggregated")
"""Beside what `auto` finds, what it should not be worse than."""


@dataclass(slots=True)
class Contender:
    name: str
    plan: Plan
    rates: list[float] = field(default_factory=list[float])

    @property
    def rate(self) -> float:
        """Samples a second in the best of its turns."""
        return max(self.rates)


def section(quick: bool = False) -> Outcome:
    out = Outcome("lag 1 on long-tailed lengths")
    steps = f"run.steps={QUICK_STEPS if quick else STEPS}"
    same = Contender("lag 0, same pools", plan_of(FLOWS / "tails.yaml", steps))
    lagging = Contender("lag 1", plan_of(FLOWS / "tails.yaml", steps, "vars.lag=1"))
    best = Contender("lag 0, best plan", _best_plan(out, steps))
    contenders = (same, lagging, best)
    ray = start_ray(SLOTS)
    progress = Progress("lag")
    try:
        rounds = 1 if quick else ROUNDS
        for turn in range(rounds):
            for place, one in enumerate(contenders):
                one.rates.append(_rate(one.plan))
                progress.tell(turn * len(contenders) + place + 1, len(contenders) * rounds, one.name)
    finally:
        ray.shutdown()
    for one in contenders:
        planned = one.plan.stages[0].estimate.samples_per_second
        out.lines.append(f"{one.name}: {one.rate:.1f} samples/s (planned {planned:.1f}); {_placed(one.plan)}")
        out.rows.append({"flow": one.name, "samples_per_second": one.rate, "turns": one.rates, "planned": planned})
    for other, least in ((same, SAME_POOLS), (best, BEST_PLAN)):
        ratio = lagging.rate / other.rate
        out.bar(f"samples/s at lag 1 over {other.name}", f"{ratio:.2f}", f"at least {least}", ratio >= least)
    return out


def _best_plan(out: Outcome, steps: str) -> Plan:
    """The synchronous plan with the shortest planned step: the search's, or a policy's if that is shorter."""
    plans = {name: plan_of(FLOWS / "tails.yaml", steps, f"placement={name}") for name in SYNC_PLANS}
    for name, plan in plans.items():
        out.lines.append(
            f"placement {name}: planned step {plan.stages[0].estimate.step_seconds:.2f} s; {_placed(plan)}"
        )
    return min(plans.values(), key=lambda plan: plan.stages[0].estimate.step_seconds)


def _rate(plan: Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        ran = run_plan(plan, Path(folder), "ray", SLOTS)
        samples = [float(line["samples_per_second"]) * float(line["seconds"]) for line in ran.metrics][2:]
        return statistics.mean(samples) / statistics.mean(ran.step_seconds())


def _placed(plan: Plan) -> str:
    pools = (pool for pool in plan.stages[0].pools if pool.devices)
    return ", ".join(
        f"{'+'.join(f'{r.role} dp{r.layout.dp}' for r in pool.roles)} on {len(pool.devices)}" for pool in pools
    )
