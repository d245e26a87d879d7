"""Placement: which roles share which devices, in which layout, and what was decided on the way.

Every option is laid out and checked against memory (a hard limit); the fastest of those that fit is taken, the first of
equals. If none fits, the one nearest to fitting is taken and FR0501 says what would help.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.decisions import decide
from flowrl.placement.infeasible import explain
from flowrl.placement.memory import memory
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.search import search


def place(graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]) -> Placement:
    """Pools, decisions and memory of one stage. Deterministic.

    Raises FlowError for a request that no sizes can meet (FR0410, FR0411, FR0502 to FR0509, FR0513, FR0514, FR0516);
    one that does not fit in memory comes back with FR0501 in `diagnostics`.
    """
    best, tried = search(graph, cluster, request, shapes)
    decisions = decide(graph, cluster, request, best, tried)
    needed = memory(graph, best.laid.pools, shapes, cluster, request=request, decisions=decisions)
    found = Placement(pools=best.laid.pools, decisions=decisions, memory=needed)
    if best.laid.fits:
        return found
    return replace(found, diagnostics=(explain(graph, cluster, request, shapes, found, best),))
