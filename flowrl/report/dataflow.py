"""WHAT: the dataflow of a stage as a drawing, and as an indented list where a drawing would not fit or not be true.

Takes a Graph; gives lines. Drawn are the data edges that no longer way implies (the transitive reduction): a column
that skips an op is not shown as a second arrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from flowrl.graph.graph import Edge, EdgeKind, Graph
from flowrl.report.drawing import draw
from flowrl.report.numbers import count
from flowrl.report.page import joined, wrapped

MOST_DRAWN = 14
"""Ops in one drawing; more are listed."""


def dataflow(graph: Graph, width: int) -> list[str]:
    """The drawing of each connected part, then the weights that travel, then what passes added and took away."""
    data: nx.DiGraph[str] = nx.DiGraph()
    data.add_nodes_from(op.id for op in graph.ops)
    data.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.kind is EdgeKind.DATA)
    arcs = sorted(nx.transitive_reduction(data).edges)
    parts = [[op.id for op in graph.ops if op.id in part] for part in nx.weakly_connected_components(data)]
    lines: list[str] = []
    for part in sorted(parts, key=lambda part: _interval(graph, part)):
        lines += _part(graph, part, [arc for arc in arcs if arc[0] in part], width)
    return [*lines, *_weights(graph, width), *_changes(graph, width)]


def _part(graph: Graph, part: Sequence[str], arcs: Sequence[tuple[str, str]], width: int) -> list[str]:
    every = _interval(graph, part)
    title = [] if every == 1 else [f"every {count(every)} steps, and after the last:"]
    indent = "  " if title else ""
    labels = {id: _label(graph, id) for id in part}
    drawing = draw(part, arcs, labels, width - len(indent)) if len(part) <= MOST_DRAWN else None
    if drawing is None:
        drawing = _listed(part, arcs, labels, width - len(indent))
    return [*title, *(indent + line for line in drawing)]


def _interval(graph: Graph, part: Sequence[str]) -> int:
    """Steps between two firings of a part that works seldom as a whole; 1 for the rest."""
    ops = [graph.op(id) for id in part]
    if any(op.method == "update" for op in ops):
        return 1
    edges = [e.every_steps or 1 for e in graph.edges if e.kind is EdgeKind.DATA and e.target in part]
    return max(op.every_steps for op in ops) if not edges else max(*edges, *(op.every_steps for op in ops))


def _label(graph: Graph, id: str) -> str:
    op = graph.op(id)
    return f"{id} ×{op.firings}" if op.firings > 1 else id


def _listed(part: Sequence[str], arcs: Sequence[tuple[str, str]], labels: dict[str, str], width: int) -> list[str]:
    """One op a line, under the last of those that it reads from; the others are named behind it."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(part)
    graph.add_edges_from(arcs)
    order = list(nx.lexicographical_topological_sort(graph, key=part.index))
    under = {id: max(graph.predecessors(id), key=order.index, default=None) for id in order}
    lines: list[str] = []

    def add(id: str, depth: int) -> None:
        indent = "  " * depth
        others = sorted((source for source in graph.predecessors(id) if source != under[id]), key=order.index)
        after = f" ◀ {', '.join(others)}" if others else ""
        lines.extend(wrapped(labels[id] + after, width, indent + "    ", indent))
        for other in order:
            if under[other] == id:
                add(other, depth + 1)

    for id in order:
        if under[id] is None:
            add(id, 0)
    return lines


def _weights(graph: Graph, width: int) -> list[str]:
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS]
    return [line for edge in edges for line in wrapped(_age(edge), width, "    ", f"{edge.id}  ")]


def _age(edge: Edge) -> str:
    lag = edge.tokens - 1
    if lag <= 0:
        return "weights every step; on-policy (lag 0)"
    return f"weights every step; samples up to {lag} version{'' if lag == 1 else 's'} old"


def _changes(graph: Graph, width: int) -> list[str]:
    added = [op.id for op in graph.ops if op.derived]
    lines = joined([f"added: {', '.join(added)}"], width) if added else []
    for removal in graph.removed:
        lines += wrapped(f"left out: {removal.id}: {removal.text}", width, "    ")
    return lines
