"""What a search says when it has nothing to give: no way to share devices, ranks without rows, steps too slow."""

from __future__ import annotations

from math import ceil

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.machine.cluster import Cluster
from flowrl.placement.checks.rows import more_ranks_than_rows, starved
from flowrl.placement.checks.wishes import wishes
from flowrl.placement.cost.placed import sides
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import PlacementRequest
from flowrl.placement.search.candidate import Candidate


def nothing_left(graph: Graph, cluster: Cluster, request: PlacementRequest) -> Diagnostic:
    """FR0514: why no way to share the devices is left, with the places of all wishes."""
    devices = cluster.device_count
    why = f"{cluster.name} has {devices} device{'s' if devices > 1 else ''}"
    span, apart = request.span, sides(graph)
    if request.pin or request.apart:
        why += ", and `pin` and `apart` exclude every way to share them"
    elif apart:
        names = " and ".join(f"`{name}`" for name in apart[0])
        why += f", and {names} answer each other within an episode, so each needs devices of its own"
        span = span or next((e.span for e in graph.edges if e.kind is EdgeKind.INTERACTION), None)
    else:
        why += ", and generators and trainers need one each at least"
    return diagnose("FR0514", span, also=wishes(request), asked=f"`placement: {request.mode}`", why=why)


def refused(graph: Graph, work: Workload, best: Candidate) -> Diagnostic | list[Diagnostic]:
    """FR0507 or FR0532: the first op with fewer rows than ranks."""
    short = starved(graph, work, best.laid.pools)
    return [] if short is None else more_ranks_than_rows(work, *short)


def too_slow(request: PlacementRequest, fastest: Candidate) -> Diagnostic:
    """FR0534: no placement is as fast as the flow asks."""
    return diagnose(
        "FR0534",
        request.at_most_span or request.span,
        asked=f"{request.step_seconds_at_most:g}",
        fastest=f"{ceil(10 * fastest.seconds) / 10:,.1f}",
        how=fastest.option.label,
    )
