"""WHY: the decisions of a stage, with what was rejected and the key that overrides each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from flowrl.plan.plan import Decision, Rejected
from flowrl.report.page import wrapped

_MOST = 6
"""Decisions shown; the others are in the JSON."""
_FORCED = "only_option"
_REJECTED = 2
"""Rejected options shown for each."""


def why(decisions: Sequence[Decision], width: int, every: bool = False) -> list[str]:
    """Decisions that had a choice; those that rejected something come first where not all can be shown. `every`: all
    decisions with all that they rejected."""
    if every:
        ids = max((len(each.id) for each in decisions), default=0)
        return [line for each in decisions for line in _decision(each, ids, width, len(each.rejected))]
    chosen = [d for place, d in enumerate(decisions) if place == 0 or d.reason != _FORCED]
    groups = [tuple(group) for _, group in groupby(chosen, key=_alike)]
    kept = sorted(groups, key=lambda group: not group[0].rejected)[:_MOST]
    shown = [group for group in groups if group in kept]
    ids = max((len(group[0].id) for group in shown), default=0)
    lines = [line for group in shown for line in _told(group, ids, width)]
    if len(decisions) > sum(map(len, shown)):
        lines.append("the other decisions: -v")
    return lines


def _alike(decision: Decision) -> tuple[str, ...]:
    """Neighbours of one key are told together: the same was chosen for several roles, for the same reason."""
    head, _, _ = decision.what.rpartition(" ")
    return (decision.id,) if decision.rejected or not head else (head, decision.chosen, decision.reason)


def _told(group: Sequence[Decision], ids: int, width: int) -> list[str]:
    if len(group) == 1:
        return _decision(group[0], ids, width)
    first = group[0]
    head, _, _ = first.what.rpartition(" ")
    subjects = ", ".join(f"{each.what.rpartition(' ')[2]} ({each.id})" for each in group)
    text = f"{head} {subjects}: {first.chosen} ({first.reason.replace('_', ' ')})"
    return wrapped(text, width, " " * (ids + 2), f"{first.id:<{ids}}  ")


def _decision(decision: Decision, ids: int, width: int, most: int = _REJECTED) -> list[str]:
    """What was chosen, why, and the key that overrides it; then the nearest options that were rejected."""
    indent = " " * (ids + 2)
    chosen = f"{decision.what}: {decision.chosen}"
    said = decision.text if decision.chosen in decision.text else f"{chosen}; {decision.text}"
    override = f"; override: {decision.override}" if decision.override else ""
    said += f" ({decision.reason.replace('_', ' ')}{override})"
    lines = wrapped(said, width, indent, f"{decision.id:<{ids}}  ")
    for rejected in decision.rejected[:most]:
        lines += wrapped(f"not {_rejected(rejected)}", width, indent + "    ", indent)
    return lines


def _rejected(rejected: Rejected) -> str:
    delta = f", {rejected.delta}" if rejected.delta else ""
    return f"{rejected.option}: {rejected.reason.replace('_', ' ')}{delta}"
