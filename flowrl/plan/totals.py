"""The figures of two plans side by side: times, rates, prices, devices, and the fullest phase of each pool."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.plan.changes import Total
from flowrl.plan.plan import Memory, Plan, StagePlan

_OF_LINES = ("run", "checkpoint", "validation", "price per step", "price per hour")


def totals_of(before: Plan, after: Plan) -> tuple[Total, ...]:
    """Of every stage that either plan has, in the order of the second."""
    mine, theirs = ({stage.name: stage for stage in plan.stages} for plan in (before, after))
    several = len(mine) > 1 or len(theirs) > 1 or list(mine) != list(theirs)
    found: list[Total] = []
    for name in dict.fromkeys((*theirs, *mine)):
        found.extend(_of_stage(mine.get(name), theirs.get(name), name if several else None))
    return tuple(found)


def _of_stage(here: StagePlan | None, there: StagePlan | None, stage: str | None) -> Iterator[Total]:
    one, other = _figures(here), _figures(there)
    for what, unit in dict.fromkeys((*one, *other)):
        key = (what, unit)
        yield Total(what=what, unit=unit, before=one.get(key), after=other.get(key), stage=stage)
    full, fuller = _fullest(here), _fullest(there)
    for pool in dict.fromkeys((*fuller, *full)):
        was, now = full.get(pool), fuller.get(pool)
        yield Total(
            what="memory",
            unit="bytes",
            before=None if was is None else float(was.peak_bytes),
            after=None if now is None else float(now.peak_bytes),
            stage=stage,
            pool=pool,
            limit_before=None if was is None else float(was.limit_bytes),
            limit_after=None if now is None else float(now.limit_bytes),
        )


def _figures(stage: StagePlan | None) -> dict[tuple[str, str], float]:
    if stage is None:
        return {}
    estimate = stage.estimate
    lines = [line for line in estimate.lines if line.what in _OF_LINES]
    return {
        ("step", "seconds"): estimate.step_seconds,
        ("samples", "samples/s"): estimate.samples_per_second,
        ("tokens", "tokens/s"): estimate.tokens_per_second,
        **{(line.what, "seconds" if line.unit == "s" else line.unit): line.value for line in lines},
        ("devices", "devices"): float(sum(len(pool.devices) for pool in stage.pools)),
    }


def _fullest(stage: StagePlan | None) -> dict[str, Memory]:
    """The phase of each pool that is nearest to its limit."""
    found: dict[str, Memory] = {}
    for each in () if stage is None else stage.memory:
        before = found.get(each.pool)
        if before is None or _share(each) > _share(before):
            found[each.pool] = each
    return found


def _share(memory: Memory) -> float:
    return memory.peak_bytes / max(1, memory.limit_bytes)
