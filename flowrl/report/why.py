"""WHY: the decisions of a stage, with what was rejected and the key that overrides each."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.plan.plan import Decision, Rejected
from flowrl.report.page import wrapped

_MOST = 6
"""Decisions shown; the others are in the JSON."""
_FORCED = "only_option"
_REJECTED = 2
"""Rejected options shown for each."""


def why(decisions: Sequence[Decision], width: int) -> list[str]:
    """Decisions that had a choice; those that rejected something come first where not all can be shown."""
    chosen = [d for place, d in enumerate(decisions) if place == 0 or d.reason != _FORCED]
    kept = sorted(chosen, key=lambda decision: not decision.rejected)[:_MOST]
    shown = [decision for decision in chosen if decision in kept]
    ids = max((len(decision.id) for decision in shown), default=0)
    lines = [line for decision in shown for line in _decision(decision, ids, width)]
    if len(decisions) > len(shown):
        lines.append("the other decisions are in the JSON")
    return lines


def _decision(decision: Decision, ids: int, width: int) -> list[str]:
    """What was chosen, why, and the key that overrides it; then the nearest options that were rejected."""
    indent = " " * (ids + 2)
    chosen = f"{decision.what}: {decision.chosen}"
    said = decision.text if decision.chosen in decision.text else f"{chosen}; {decision.text}"
    override = f"; override: {decision.override}" if decision.override else ""
    said += f" ({decision.reason.replace('_', ' ')}{override})"
    lines = wrapped(said, width, indent, f"{decision.id:<{ids}}  ")
    for rejected in decision.rejected[:_REJECTED]:
        lines += wrapped(f"not {_rejected(rejected)}", width, indent + "    ", indent)
    return lines


def _rejected(rejected: Rejected) -> str:
    delta = f", {rejected.delta}" if rejected.delta else ""
    return f"{rejected.option}: {rejected.reason.replace('_', ' ')}{delta}"
