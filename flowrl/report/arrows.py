"""A graph as the drawn views show it: its ops, and the three kinds of arrows between them.

The arrows of data are those of `picture` (what a longer way implies is left out), with the columns that travel; weights
go from the op that makes them to the op that reads them; an environment's step has an arrow of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.report.picture import interactions, picture


class Node(msgspec.Struct, frozen=True):
    """An op."""

    id: str
    role: str
    kind: str
    """Of its role."""
    label: str
    note: str
    """What it takes in a step; empty before placement."""
    pool: str
    derived: bool
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Arrow(msgspec.Struct, frozen=True):
    source: str
    target: str
    kind: str
    """data, weights or interaction."""
    text: str
    """What travels."""


class GraphView(msgspec.Struct, frozen=True):
    name: str
    """The pass after which the graph is so."""
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    removed: tuple[str, ...]


def graph_view(
    name: str, graph: Graph, pool_of: Mapping[str, str] | None = None, taken: Mapping[str, str] | None = None
) -> GraphView:
    """`pool_of`: role → pool. `taken`: op → what it takes in a step."""
    nodes = tuple(_node(graph, op, pool_of or {}, taken or {}) for op in graph.ops)
    return GraphView(name, nodes, tuple(_arrows(graph)), tuple(f"{each.id}: {each.text}" for each in graph.removed))


def _node(graph: Graph, op: Op, pool_of: Mapping[str, str], taken: Mapping[str, str]) -> Node:
    return Node(
        id=op.id,
        role=op.role,
        kind=graph.role(op.role).kind.value,
        label=f"{op.id} ×{op.firings}" if op.firings > 1 else op.id,
        note=taken.get(op.id, ""),
        pool=pool_of.get(op.role, ""),
        derived=op.derived,
        reads=tuple(f"{i.slot} from {i.source}" if i.source else i.slot for i in op.inputs),
        writes=tuple(f"{field.name} ({field.unit.value}, {field.dtype})" for field in op.outputs),
    )


def _arrows(graph: Graph) -> Iterator[Arrow]:
    travels: dict[tuple[str, str], list[str]] = {}
    for edge in graph.edges:
        if edge.kind is EdgeKind.DATA:
            travels.setdefault((edge.source, edge.target), []).extend(edge.fields)
    for source, target in picture(graph).arcs:
        yield Arrow(source, target, "data", ", ".join(dict.fromkeys(travels.get((source, target), []))))
    for step, generators in interactions(graph).items():
        yield from (Arrow(generator, step, "interaction", "turn by turn") for generator in generators)
    for edge in graph.edges if graph.edges else graph.declared:
        if edge.kind is EdgeKind.WEIGHTS:
            yield from _weights(graph, edge.source, edge.target, edge.tokens)


def _weights(graph: Graph, source: str, target: str, tokens: int) -> Iterator[Arrow]:
    """From the op that makes new weights to the first one that reads them."""
    made = [op.id for op in graph.ops if op.role == source and op.method == "update"]
    read = [op.id for op in graph.ops if op.role == target and op.label is None]
    if made and read:
        lag = max(tokens - 1, 0)
        yield Arrow(made[0], read[0], "weights", f"weights, up to {lag} old" if lag else "weights")
