"""Interactions: the ops that `<->` edges tie together and that must be live at once. Takes a graph; gives op ids."""

from __future__ import annotations

import networkx as nx

from flowrl.graph.graph import EdgeKind, Graph


def interactions(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Each interaction as the ids of its ops, in the order of the graph's ops; interactions in the order of their first
    op. One environment's step with every generator on its edges is one interaction."""
    tied: nx.Graph[str] = nx.Graph()
    tied.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.kind is EdgeKind.INTERACTION)
    place = {op.id: index for index, op in enumerate(graph.ops)}
    parts = [sorted(part, key=lambda id: place[id]) for part in nx.connected_components(tied)]
    return tuple(tuple(part) for part in sorted(parts, key=lambda part: place[part[0]]))
