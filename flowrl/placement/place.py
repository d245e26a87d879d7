"""Placement: which roles share which devices, in which layout, and what was decided on the way.

Every option is laid out and checked against memory (a hard limit); the fastest of those that fit is taken, the first of
equals. If none fits, the one nearest to fitting is taken and FR0501 says what would help.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.checks.engine import warn_positions
from flowrl.placement.checks.rows import warn_rows
from flowrl.placement.checks.sync import unreachable
from flowrl.placement.cost.workload import Workload
from flowrl.placement.decisions import decide
from flowrl.placement.infeasible import explain
from flowrl.placement.memory.pool import memory
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.search import search


def place(graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]) -> Placement:
    """Pools, decisions and memory of one stage. Deterministic.

    Raises FlowError for a request that no sizes can meet (FR04 and FR05, as `check_request` and `search` say). One that
    does not fit in memory comes back with FR0501 in `diagnostics`.
    """
    best, tried = search(graph, cluster, request, shapes)
    broken = tuple(unreachable(graph, cluster, best.laid.pools))
    if broken:
        raise FlowError(broken)
    decisions = decide(graph, cluster, request, best, tried)
    needed = memory(graph, best.laid.pools, shapes, cluster, request=request, decisions=decisions)
    work = Workload(graph, shapes, request)
    told = (*warn_positions(work), *warn_rows(graph, work, best.laid.pools))
    found = Placement(pools=best.laid.pools, decisions=decisions, memory=needed, diagnostics=told)
    if best.laid.fits:
        return found
    return replace(found, diagnostics=(explain(graph, cluster, request, shapes, found, best), *told))
