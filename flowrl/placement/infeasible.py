"""FR0501: why a placement does not fit, and what would make it fit. Every edit that it names has been placed again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Help, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.placed import HOST
from flowrl.placement.request import Mode, Placement, PlacementRequest
from flowrl.placement.search import Candidate
from flowrl.placement.tries import Fix, fixes, guilty_roles
from flowrl.plan.plan import LedgerLine, Memory

GIB = 2**30
_PLACE = re.compile(r"[^\s,;()]+:\d+:\d+")
SMALL_SHARE = 0.01
LONGEST_FORMULA = 72


def explain(
    graph: Graph,
    cluster: Cluster,
    request: PlacementRequest,
    shapes: Mapping[str, ModelShape],
    placement: Placement,
    best: Candidate,
) -> Diagnostic:
    """The ledger of the tightest device and the cheapest edits, at most three, that make everything fit."""
    tightest = max(placement.memory, key=lambda entry: entry.peak_bytes / max(1, entry.limit_bytes))
    over = tightest.peak_bytes - tightest.limit_bytes
    where = "node" if tightest.pool == HOST else "device"
    why = f"{tightest.phase} needs {_gib(tightest.peak_bytes)} GiB of {_gib(tightest.limit_bytes)} GiB on a {where}"
    facts: dict[str, Any] = {"asked": _asked(request, cluster), "why": f"{why}: {_gib(over)} GiB too much"}
    found = fixes((graph, cluster, request), shapes, tightest, best)
    span = request.span or _span_of_active(graph, tightest)
    return diagnose(
        "FR0501",
        span,
        notes=_ledger(tightest),
        helps=_helps(found, _untried(graph, request, shapes, guilty_roles(best))),
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


def _untried(graph: Graph, request: PlacementRequest, shapes: Mapping[str, ModelShape], guilty: frozenset[str]) -> str:
    """Axes that roles which do not fit could be cut along and placement does not try: `pp of actor_infer`."""
    given = {role for pool in request.pools for role in pool.layouts}
    left: list[str] = []
    for role in graph.roles:
        traits = TRAITS.get(role.backend or "")
        if role.name in guilty and role.name not in given and traits is not None and role.model is not None:
            tried = ("dp", *traits.searched, *traits.by_need)
            axes = [axis for axis in traits.axes if axis not in tried and (axis != "ep" or shapes[role.model].experts)]
            left += [f"{', '.join(axes)} of {role.name}"] if axes else []
    return "; ".join(left)


def _helps(fixes: list[Fix], untried: str) -> tuple[Help, ...]:
    if not fixes:
        text = "no single edit that was tried makes it fit: use more or larger devices, or a smaller model"
        own = f", or layouts of your own in `placement.pools` (not tried: {untried})" if untried else ""
        return (Help(text=text + own),)
    count = "this edit fits" if len(fixes) == 1 else "any one of these fits"
    widths = max(len(fix.text) for fix in fixes), max(len(_freed(fix)) for fix in fixes)
    rows = (f"  {number}  {_fix_text(fix, *widths)}" for number, fix in enumerate(fixes, start=1))
    return (Help(text="\n".join((f"{count} (effect on the tightest device and on the estimated step time)", *rows))),)


def _fix_text(fix: Fix, text_width: int, freed_width: int) -> str:
    added = round(fix.added_seconds, 1)
    return f"{fix.text:<{text_width}}  {_freed(fix):>{freed_width}}  {'+' if added >= 0 else '−'}{abs(added):,.1f} s"


def _freed(fix: Fix) -> str:
    return f"{'−' if fix.freed_bytes >= 0 else '+'}{_gib(abs(fix.freed_bytes))} GiB"
