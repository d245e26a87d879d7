"""What would help a flow: each change planned again, with the flags of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flowrl.api.compile import compile_spec
from flowrl.api.profile import load_profile
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError
from flowrl.explain.helps import Change, Helps, grown, what_would_help
from flowrl.placement.request import Mode
from flowrl.plan.plan import Plan
from flowrl.spec import load


def helps(
    plan: Plan,
    file: str | Path,
    sets: Sequence[str] = (),
    cluster: str | None = None,
    profile: str | Path | None = None,
) -> tuple[Helps, ...]:
    """For each stage of `plan`, which was made from `file` with these flags, what would make its step shorter."""
    rates = None if profile is None else load_profile(profile)

    def planned(change: Change) -> Plan | None:
        target = cluster if change.grown is None else grown(plan.cluster, change.grown)
        try:
            return compile_spec(load(file, (*sets, *change.sets)), target, profile=rates)
        except FlowError:
            return None

    explicit = lower_placement(load(file, sets), 0).mode is Mode.POOLS
    return what_would_help(plan, planned, explicit)
