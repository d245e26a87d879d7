"""FR0501: why a placement does not fit, and what would make it fit. Every edit that it names has been placed again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.placed import HOST
from flowrl.placement.relax import (
    Edit,
    Situation,
    cluster_edits,
    combined_edits,
    joint_edits,
    placement_edits,
    role_edits,
    shorter_edits,
)
from flowrl.placement.request import Mode, Placement, PlacementRequest
from flowrl.placement.search import Candidate, search
from flowrl.plan.plan import LedgerLine, Memory

GIB = 2**30
_PLACE = re.compile(r"[^\s,;()]+:\d+:\d+")
SHOWN_EDITS = 3
SMALL_SHARE = 0.01
LONGEST_FORMULA = 72


MOST_CANDIDATES = 100
"""Placements that are worked out to find edits that fit."""


@dataclass(frozen=True, slots=True)
class _Fix:
    text: str
    freed_bytes: int
    added_seconds: float


def explain(
    graph: Graph,
    cluster: Cluster,
    request: PlacementRequest,
    shapes: Mapping[str, ModelShape],
    placement: Placement,
    best: Candidate,
) -> Diagnostic:
    """The ledger of the tightest device and the cheapest edits, at most three, that make everything fit.

    An edit of a role is tried on the pools of `best`; one of placement or cluster searches anew.
    """
    tightest = max(placement.memory, key=lambda entry: entry.peak_bytes / max(1, entry.limit_bytes))
    over = tightest.peak_bytes - tightest.limit_bytes
    where = "node" if tightest.pool == HOST else "device"
    why = f"{tightest.phase} needs {_gib(tightest.peak_bytes)} GiB of {_gib(tightest.limit_bytes)} GiB on a {where}"
    facts: dict[str, Any] = {"asked": _asked(request, cluster), "why": f"{why}: {_gib(over)} GiB too much"}
    fixes = _fixes((graph, cluster, request), shapes, tightest, best)
    span = request.span or _span_of_active(graph, tightest)
    return diagnose(
        "FR0501",
        span,
        notes=_ledger(tightest),
        helps=_helps(fixes, _untried(graph, request, shapes, _guilty(best))),
        **facts,
    )


def _span_of_active(graph: Graph, tightest: Memory) -> Span | None:
    """Of the role that works in the phase: its lines come first."""
    active = next((line.role for line in tightest.lines if line.role is not None), None)
    return None if active is None else graph.role(active).span


def _asked(request: PlacementRequest, cluster: Cluster) -> str:
    asked = "these pools" if request.mode is Mode.POOLS else f"`placement: {request.mode}`"
    return f"{asked} on {cluster.name}"


def _gib(count: int | float) -> str:
    return f"{count / GIB:,.1f}"


def _ledger(entry: Memory) -> tuple[str, ...]:
    """One heading and one line per ledger line, largest first; small ones are summed."""
    heading = f"{entry.pool} {entry.device}, {entry.phase}: limit {_gib(entry.limit_bytes)} GiB, "
    lines = sorted(entry.lines, key=lambda each: -each.value)
    large = [each for each in lines if each.value >= SMALL_SHARE * entry.peak_bytes]
    rows = [(_name(each), _gib(each.value), _formula(each), _origin(each)) for each in large]
    rest = sum(each.value for each in lines if each not in large)
    if rest:
        small = len(lines) - len(large)
        rows.append((f"{small} smaller line{'' if small == 1 else 's'}", _gib(rest), "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    table = (f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}".rstrip() for a, b, c, d in rows)
    return ("\n".join((heading + f"need {_gib(entry.peak_bytes)} GiB", *(f"  {row}" for row in table))),)


def _name(entry: LedgerLine) -> str:
    return entry.what if entry.role is None else f"{entry.role} {entry.what}"


def _formula(entry: LedgerLine) -> str:
    values = ", ".join(f"{name} {_figure(value)}" for name, value in entry.inputs.items())
    text = f"{entry.formula}: {values}"
    return text if len(text) <= LONGEST_FORMULA else entry.formula


def _figure(value: float) -> str:
    if value >= 1e7:
        return f"{value:.3e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


def _origin(entry: LedgerLine) -> str:
    """The origin the user can edit: a place in the flow, else a decision, else nothing."""
    written = [place for origin in entry.origins.values() for place in _PLACE.findall(origin)]
    decided = [origin for origin in entry.origins.values() if origin.startswith("decided")]
    return next(iter([*written, *decided]), "")


def _fixes(situation: Situation, shapes: Mapping[str, ModelShape], tightest: Memory, best: Candidate) -> list[_Fix]:
    """Edits that fit, the cheapest in step time first; equal ones in the order they are tried; more devices last."""
    graph, cluster, request = situation
    tries = _Tries(situation, shapes, best)

    def fitting(edits: Iterable[Edit]) -> list[_Fix]:
        tried = (_tried(edit, tries, tightest) for edit in edits)
        return [fix for fix in tried if fix is not None]

    guilty = _guilty(best)
    found = fitting(role_edits(graph, guilty)) or fitting(joint_edits(graph, guilty))
    found = found or fitting(combined_edits(graph, guilty))
    found = found or fitting(shorter_edits(graph, request))
    found = sorted((*found, *fitting(placement_edits(request))), key=lambda fix: fix.added_seconds)
    return [*found, *fitting(cluster_edits(cluster, request))][:SHOWN_EDITS]


def _guilty(best: Candidate) -> frozenset[str]:
    over = (entry for entry in best.laid.memory if entry.peak_bytes > entry.limit_bytes)
    return frozenset(line.role for entry in over for line in entry.lines if line.role is not None)


def _tried(edit: Edit, tries: _Tries, tightest: Memory) -> _Fix | None:
    for text, apply in edit:
        changed = tries.placed(apply)
        if changed is not None and changed.laid.fits:
            freed = tightest.peak_bytes - _peak_of(changed, tightest)
            return _Fix(text, freed, changed.seconds - tries.best.seconds)
    return None


@dataclass(slots=True)
class _Tries:
    """Places changed flows again, a limited number of candidates in all: explaining must not take longer than planning.
    What is left out is an edit that might have been shown."""

    situation: Situation
    shapes: Mapping[str, ModelShape]
    best: Candidate
    left: int = MOST_CANDIDATES

    def placed(self, apply: Callable[[Situation], Situation]) -> Candidate | None:
        if self.left <= 0:
            return None
        graph, cluster, request = apply(self.situation)
        same_pools = (cluster, _unmarked(request)) == (self.situation[1], _unmarked(self.situation[2]))
        try:
            only = self.best.option if same_pools else None
            found = search(graph, cluster, request, self.shapes, only=only)
        except FlowError:
            self.left -= 1
            return None
        self.left -= len(found.tried)
        return found.best


def _unmarked(request: PlacementRequest) -> PlacementRequest:
    """Without places in the flow: they do not change which pools there are."""
    return replace(request, origins={})


def _peak_of(candidate: Candidate, tightest: Memory) -> int:
    """The same phase afterwards; the tightest one if that phase is gone."""
    same = [entry.peak_bytes for entry in candidate.laid.memory if entry.phase == tightest.phase]
    return max(same) if same else max((entry.peak_bytes for entry in candidate.laid.memory), default=0)


def _untried(graph: Graph, request: PlacementRequest, shapes: Mapping[str, ModelShape], guilty: frozenset[str]) -> str:
    """Axes that roles which do not fit could be cut along and placement does not try: `pp of actor_infer`."""
    given = {role for pool in request.pools for role in pool.layouts}
    left: list[str] = []
    for role in graph.roles:
        traits = TRAITS.get(role.backend or "")
        if role.name in guilty and role.name not in given and traits is not None and role.model is not None:
            known = ("dp", *traits.searched) if shapes[role.model].experts else ("dp", "ep", *traits.searched)
            axes = [axis for axis in traits.axes if axis not in known]
            left += [f"{', '.join(axes)} of {role.name}"] if axes else []
    return "; ".join(left)


def _helps(fixes: list[_Fix], untried: str) -> tuple[Help, ...]:
    if not fixes:
        text = "no single edit that was tried makes it fit: use more or larger devices, or a smaller model"
        own = f", or layouts of your own in `placement.pools` (not tried: {untried})" if untried else ""
        return (Help(text=text + own),)
    count = "this edit fits" if len(fixes) == 1 else "any one of these fits"
    widths = max(len(fix.text) for fix in fixes), max(len(_freed(fix)) for fix in fixes)
    rows = (f"  {number}  {_fix_text(fix, *widths)}" for number, fix in enumerate(fixes, start=1))
    return (Help(text="\n".join((f"{count} (effect on the tightest device and on the estimated step time)", *rows))),)


def _fix_text(fix: _Fix, text_width: int, freed_width: int) -> str:
    added = round(fix.added_seconds, 1)
    return f"{fix.text:<{text_width}}  {_freed(fix):>{freed_width}}  {'+' if added >= 0 else '−'}{abs(added):,.1f} s"


def _freed(fix: _Fix) -> str:
    return f"{'−' if fix.freed_bytes >= 0 else '+'}{_gib(abs(fix.freed_bytes))} GiB"
