"""Placement: which roles share which devices, in which layout, and what was decided on the way.

The best of those that fit in memory (a hard limit) is taken, the first of equals. If none fits, the one nearest to
fitting is taken and FR0501 says what would help.
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
from flowrl.placement.request import Mode, Placement, PlacementRequest
from flowrl.placement.search import StepInParts, search


def place(
    graph: Graph,
    cluster: Cluster,
    request: PlacementRequest,
    shapes: Mapping[str, ModelShape],
    in_parts: StepInParts | None = None,
    *,
    any_that_fits: bool = False,
) -> Placement:
    """Pools, decisions and memory of one stage. Deterministic. `in_parts`: seconds of a step of a flow whose generation
    may be handed on in parts, by which the best few ways are compared once more. `any_that_fits`: the first that is
    found, not the best, of which nothing is said that another might not have; pools that the flow writes are still
    laid out as well as they can be.

    Raises FlowError for a request that no sizes can meet (FR04 and FR05, as `check_request` and `search` say). One that
    does not fit in memory comes back with FR0501 in `diagnostics`.
    """
    any_that_fits = any_that_fits and request.mode is not Mode.POOLS
    found = search(graph, cluster, request, shapes, in_parts=in_parts, any_that_fits=any_that_fits)
    pools = found.best.laid.pools
    broken = tuple(unreachable(graph, cluster, pools))
    if broken:
        raise FlowError(broken)
    is_any = any_that_fits and found.best.usable
    decisions = () if is_any else decide(graph, cluster, request, found)
    needed = memory(graph, pools, shapes, cluster, request=request, decisions=decisions)
    work = Workload(graph, shapes, request)
    told = (*warn_positions(work), *(() if is_any else warn_rows(graph, work, pools)))
    placement = Placement(pools=pools, decisions=decisions, memory=needed, diagnostics=told, search=found.report)
    if found.best.laid.fits:
        return placement
    return replace(placement, diagnostics=(explain(graph, cluster, request, shapes, placement, found.best), *told))
