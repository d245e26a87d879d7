"""What a run made of its plan: each instruction estimated and measured, and what its metrics did over the steps.

Takes a plan, the events of the run's trace and the lines of its metrics; gives a value. The first step of a stage warms
caches up and is left out of what is measured, as it is for `calibrate`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from flowrl.explain.pairs import Event
from flowrl.plan.plan import Plan, StagePlan

CURVES = ("loss", "reward", "kl", "entropy", "response_tokens", "grad_norm")
"""Parts of the names of metrics that are drawn."""
MOST_CURVES = 12


class RanRow(msgspec.Struct, frozen=True, kw_only=True):
    """An instruction of the plan."""

    instruction: str
    pool: str
    estimated_seconds: float
    measured_seconds: float
    """Median over the steps from the second on; of a run of one step, that one."""
    start_seconds: float
    """Since the first instruction of its step began, in the median."""
    p90_seconds: float
    repeats: int

    @property
    def ratio(self) -> float:
        """Measured over estimated."""
        return self.measured_seconds / self.estimated_seconds if self.estimated_seconds > 0 else float("inf")


class RanStage(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    estimated_step_seconds: float
    measured_step_seconds: float | None
    """Median of the steps from the second on; None where no step was whole."""
    steps: int
    rows: tuple[RanRow, ...]
    """The largest difference in seconds first."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    folder: str
    state: str
    stages: tuple[RanStage, ...]
    curves: dict[str, tuple[tuple[float, float], ...]]
    """Metric → (step, value); with several stages their names stand before it."""


def ran(plan: Plan, events: Sequence[Event], lines: Sequence[Mapping[str, Any]], folder: str, state: str = "") -> Ran:
    """`lines`: of metrics.jsonl."""
    stages = tuple(
        _stage(stage, events, [line for line in lines if line.get("stage") == stage.name]) for stage in plan.stages
    )
    return Ran(name=plan.name, folder=folder, state=state, stages=stages, curves=_curves(plan, lines))


def _stage(stage: StagePlan, events: Iterable[Event], lines: Sequence[Mapping[str, Any]]) -> RanStage:
    pools = {each.id: each.pool for each in stage.programs.instructions}
    own = [event for event in events if event.stage == stage.name and event.instruction in pools]
    began: dict[int, float] = {}
    for event in own:
        began[event.step] = min(began.get(event.step, event.start_seconds), event.start_seconds)
    taken: dict[str, list[Event]] = {}
    for event in own:
        taken.setdefault(event.instruction, []).append(event)
    rows = [_row(stage, id, pools[id], found, began) for id, found in taken.items()]
    steps = [(int(line["step"]), float(line["seconds"])) for line in lines if _number(line.get("seconds"))]
    return RanStage(
        name=stage.name,
        estimated_step_seconds=stage.estimate.step_seconds,
        measured_step_seconds=statistics.median(_warm(steps)) if steps else None,
        steps=max((step for step, _ in steps), default=0),
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.measured_seconds - row.estimated_seconds), row.instruction))),
    )


def _row(stage: StagePlan, id: str, pool: str, found: Sequence[Event], began: Mapping[int, float]) -> RanRow:
    seconds = sorted(_warm([(event.step, event.seconds) for event in found]))
    return RanRow(
        instruction=id,
        pool=pool,
        estimated_seconds=stage.estimate.durations.get(id, 0.0),
        measured_seconds=statistics.median(seconds),
        start_seconds=statistics.median(_warm([(e.step, e.start_seconds - began[e.step]) for e in found])),
        p90_seconds=seconds[min(len(seconds) - 1, round(0.9 * (len(seconds) - 1)))],
        repeats=len(seconds),
    )


def _warm(found: Sequence[tuple[int, float]]) -> list[float]:
    """Without the first step, where there are others."""
    first = min(step for step, _ in found)
    return [seconds for step, seconds in found if step > first] or [seconds for _, seconds in found]


def _curves(plan: Plan, lines: Sequence[Mapping[str, Any]]) -> dict[str, tuple[tuple[float, float], ...]]:
    several = len(plan.stages) > 1
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        for name, value in line.items():
            if _number(value) and any(part in name for part in CURVES):
                key = f"{line.get('stage')}: {name}" if several else name
                found.setdefault(key, []).append((float(line.get("step", 0)), float(value)))
    ordered = sorted(found, key=lambda name: (_rank(name), name))[:MOST_CURVES]
    return {name: tuple(found[name]) for name in ordered}


def _rank(name: str) -> int:
    """Rewards first, then losses."""
    return next((place for place, part in enumerate(("reward", "loss", *CURVES)) if part in name), len(CURVES))


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
