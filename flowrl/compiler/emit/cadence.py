"""How often each op works: every how many steps, from which step on, and whether in the epilogue.

Takes a lowered Graph; gives a Cadence per op id. An op that reads from one that works every k steps does so too.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm

import networkx as nx

from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op


@dataclass(frozen=True, slots=True)
class Cadence:
    every_steps: int = 1
    start_step: int = 0
    epilogue: bool = False


def cadences(graph: Graph) -> dict[str, Cadence]:
    """Cadence of every op. A data set read only every k steps is itself read only every k steps."""
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.DATA]
    found: dict[str, Cadence] = {}
    epilogue = _evaluated(graph, edges)
    for id in _order(graph, edges):
        found[id] = _forward(graph.op(id), [edge for edge in edges if edge.target == id], found, epilogue)
    for op in graph.ops:
        readers = [found[edge.target] for edge in edges if edge.source == op.id]
        if graph.role(op.role).kind is Kind.DATA and readers:
            found[op.id] = Cadence(
                every_steps=lcm(op.every_steps, gcd(*(reader.every_steps for reader in readers))),
                start_step=max(op.start_step, min(reader.start_step for reader in readers)),
                epilogue=found[op.id].epilogue,
            )
    return found


def _forward(op: Op, incoming: list[Edge], found: dict[str, Cadence], epilogue: set[str]) -> Cadence:
    sources = [found[edge.source] for edge in incoming]
    every = [op.every_steps, *(edge.every_steps or 1 for edge in incoming), *(c.every_steps for c in sources)]
    start = [op.start_step, *(edge.start_step or 0 for edge in incoming), *(c.start_step for c in sources)]
    return Cadence(every_steps=lcm(*every), start_step=max(start), epilogue=op.id in epilogue)


def _order(graph: Graph, edges: list[Edge]) -> list[str]:
    try:
        return list(nx.topological_sort(_digraph(graph, edges)))
    except nx.NetworkXUnfeasible as cycle:
        raise InternalError(f"graph `{graph.name}` has a cycle within a step") from cycle


def _evaluated(graph: Graph, edges: list[Edge]) -> set[str]:
    """Ops that only look on while others train: no update shares data with them, directly or through others."""
    updates = {op.id for op in graph.ops if op.method == "update"}
    if not updates:
        return set()
    components = nx.connected_components(_digraph(graph, edges).to_undirected())
    return {id for component in components if not component & updates for id in component}


def _digraph(graph: Graph, edges: list[Edge]) -> nx.DiGraph[str]:
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(op.id for op in graph.ops)
    digraph.add_edges_from((edge.source, edge.target) for edge in edges)
    return digraph
