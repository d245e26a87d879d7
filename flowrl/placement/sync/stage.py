"""The weights edges of a stage as its plan tells them: transport, way, bytes by link. Takes a graph and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrl.graph.graph import EdgeKind, Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.placed import placed_roles
from flowrl.placement.request import PlacementRequest
from flowrl.placement.sync.edge import sync_links, sync_of
from flowrl.plan.plan import Decision, EdgeSync, Pool


def edge_syncs(
    graph: Graph,
    pools: Sequence[Pool],
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    request: PlacementRequest,
    decisions: Sequence[Decision] = (),
) -> tuple[EdgeSync, ...]:
    """One for each weights edge whose ends are both on devices, in the order of the edges."""
    placed = {
        each.role.name: each
        for pool in pools
        if pool.devices
        for each in placed_roles(graph, pool, shapes, cluster, request, decisions)
    }
    found: list[EdgeSync] = []
    for edge in (each for each in graph.edges if each.kind is EdgeKind.WEIGHTS):
        source, target = (placed.get(end.split(".")[0]) for end in (edge.source, edge.target))
        if source is not None and target is not None and source.shape is not None:
            sync = sync_of(source, target, edge.transport)
            links = sync_links(source, target, edge.transport)
            told = {"transport": sync.transport, "way": sync.way}
            found.append(EdgeSync(edge=edge.id, **told, lines=links.moved, overlap=links.overlap))
    return tuple(found)
