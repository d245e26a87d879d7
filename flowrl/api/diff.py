"""Compares plans: two files, or a plan that was made now with one that was kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowrl.api.explain import plan_of
from flowrl.plan.changes import PlanDiff
from flowrl.plan.diff import diff
from flowrl.plan.io import read
from flowrl.plan.plan import Plan

PLAN_SUFFIX = ".json"


def diff_files(
    before: str | Path,
    after: str | Path,
    sets: Sequence[str] = (),
    cluster: str | None = None,
    profile: str | Path | None = None,
) -> PlanDiff:
    """What the plan of `after` changes of that of `before`. Each is a plan.json or a flow, which is planned first, with
    the flags that are given.

    Raises FlowError: every fault of a flow, FR07 for a plan.json that cannot be read, FR0708 for flags where both are
    plans.
    """
    files = [Path(before), Path(after)]
    flagged = [each.suffix != PLAN_SUFFIX for each in files]
    flagged = flagged if any(flagged) else [True, True]
    one, other = (
        plan_of(each, sets, cluster, profile) if takes else plan_of(each)
        for each, takes in zip(files, flagged, strict=True)
    )
    return diff(one, other, (str(before), str(after)))


def diff_with(kept: str | Path, made: Plan, name: str) -> PlanDiff:
    """What `made`, the plan of the file `name`, changes of the plan in the file `kept`. Raises FlowError FR07."""
    return diff(read(Path(kept)), made, (str(kept), name))
