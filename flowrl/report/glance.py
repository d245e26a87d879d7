"""The first lines of a page, before any drawing: what a step costs, what it waits for, what the devices hold, and how
full they are. One screen of 24 lines has these answers, whatever the plan."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.plan.plan import Memory, Plan, Pool, RandomStep, StagePlan
from flowrl.report.fits import fullness
from flowrl.report.numbers import count, gib, rate, seconds
from flowrl.report.page import joined, wrapped
from flowrl.report.when import bound_by

_NAMES = 11
"""Columns of the names of lines: ` costs     `."""
_MOST_POOLS = 4
"""Pools told; of more than these the biggest, for the rest stands under WHERE."""


def glance(plan: Plan, width: int) -> list[str]:
    """Lines of at most `width` columns; of several stages each with its name."""
    stages = plan.stages
    if len(stages) == 1:
        return [
            *_named("costs", _costs(stages[0]), width),
            *_said("waits", _waits(stages[0]), width),
            *_holds(stages[0], width),
            *_said("tightest", _tightest(stages[0]), width),
        ]
    lines: list[str] = []
    for stage in stages:
        lines += joined(_costs(stage), width, " " * _NAMES, first=f" {stage.name:<{_NAMES - 2}} ")
        told = [f"waits {_waits(stage)}", *map(_hold, _told(stage))]
        lines += [line for text in told for line in wrapped(text, width, " " * _NAMES, " " * _NAMES)]
    return lines


def _named(name: str, parts: Iterable[str], width: int) -> list[str]:
    return joined(parts, width, " " * _NAMES, first=f" {name:<{_NAMES - 1}}")


def _said(name: str, text: str, width: int) -> list[str]:
    return wrapped(text, width, " " * _NAMES, f" {name:<{_NAMES - 1}}") if text else []


def _costs(stage: StagePlan) -> Iterable[str]:
    """The step, with how it spreads; the run; throughput; money where devices have a price."""
    estimate = stage.estimate
    likely = f" ({seconds(estimate.low_seconds)} to {seconds(estimate.high_seconds)})" if estimate.high_seconds else ""
    parts = [f"step ≈ {seconds(estimate.step_seconds)}{likely}"]
    parts += _drawn(estimate.random)
    parts += [f"{what} ≈ {seconds(value)}" for what, value in _of_lines(stage, "run")]
    if estimate.tokens_per_second > 0:
        parts.append(f"{rate(estimate.tokens_per_second)} tokens/s")
    parts.append(f"{rate(estimate.samples_per_second)} samples/s")
    parts += [f"{value:,.2f} a step" for _, value in _of_lines(stage, "price per step")]
    return [*parts, *(f"{value:,.2f} an hour" for _, value in _of_lines(stage, "price per hour"))]


def _drawn(random: RandomStep | None) -> list[str]:
    """What drawn lengths make of the step, whose means alone are a lower bound of the mean."""
    if random is None:
        return []
    parts = [f"drawn ≈ {seconds(random.mean_seconds)}, 99 of 100 within {seconds(random.p99_seconds)}"]
    parts += [f"lag {random.lag:.1f} in the mean"] if random.lag > 0 else []
    return [*parts, *([f"{random.dropped:.0%} dropped as stale"] if random.dropped > 0 else [])]


def _of_lines(stage: StagePlan, what: str) -> list[tuple[str, float]]:
    return [(line.what, line.value) for line in stage.estimate.lines if line.what == what]


def _waits(stage: StagePlan) -> str:
    """`for reference.log_probs ▶ actor_train.update`."""
    return bound_by(stage).replace("bound by ", "for ", 1)


def _holds(stage: StagePlan, width: int) -> list[str]:
    told = enumerate(map(_hold, _told(stage)))
    return [line for place, text in told for line in _said("" if place else "holds", text, width)]


def _told(stage: StagePlan) -> list[Pool]:
    """The pools of devices, or the biggest of many, in the plan's order."""
    pools = [pool for pool in stage.pools if pool.devices]
    kept = sorted(pools, key=lambda pool: -len(pool.devices))[:_MOST_POOLS]
    return [pool for pool in pools if pool in kept]


def _hold(pool: Pool) -> str:
    """`5 × H100-80G (node1/3 .. node1/7): actor_infer, reference`."""
    first, last = pool.devices[0], pool.devices[-1]
    span = first if first == last else f"{first} .. {last}"
    return f"{count(len(pool.devices))} × {pool.device} ({span}): {', '.join(placed.role for placed in pool.roles)}"


def _tightest(stage: StagePlan) -> str:
    tightest = max(stage.memory, key=fullness, default=None)
    return "" if tightest is None else f"{of_limit(tightest)} in {tightest.phase} on {tightest.device}"


def of_limit(memory: Memory) -> str:
    """`74.2 of 79.6 GiB`."""
    return f"{gib(memory.peak_bytes)} of {gib(memory.limit_bytes)} GiB"
