"""canonicalize: one order for everything, whatever the order in which the flow was written."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.graph.algorithms import toposort
from flowrl.graph.graph import Edge, EdgeKind, Graph, Op

_KINDS = tuple(EdgeKind)


def canonicalize(graph: Graph) -> Graph:
    """Order ops upstream first (ties by name), everything else by name.

    before: ops update, score, generate · fields [loss_mask, tokens] as first used
    after:  ops generate, score, update · edges by kind, then by the order of their ends

    Requires: acyclic lowered edges. Ensures: equal flows give equal graphs up to spans; ops stand in an order in which
    they may run.
    """
    known = {op.id: op for op in graph.ops}
    pairs = [(e.source, e.target) for e in graph.edges if _orders(e)]
    order = toposort(known, pairs)
    place = {id: index for index, id in enumerate(order)}
    return replace(
        graph,
        models=tuple(sorted(graph.models, key=lambda m: m.name)),
        roles=tuple(sorted(graph.roles, key=lambda r: r.name)),
        ops=tuple(_sorted_inputs(known[id]) for id in order),
        declared=tuple(sorted(graph.declared, key=lambda e: e.id)),
        edges=tuple(sorted(map(_sorted_fields, graph.edges), key=lambda e: _place(e, place))),
        removed=tuple(sorted(graph.removed, key=lambda r: r.id)),
    )


def _orders(edge: Edge) -> bool:
    if edge.kind is EdgeKind.STATE:
        return edge.tokens == 0
    return edge.kind is EdgeKind.DATA


def _sorted_inputs(op: Op) -> Op:
    return replace(op, inputs=tuple(sorted(op.inputs, key=lambda i: i.slot)))


def _sorted_fields(edge: Edge) -> Edge:
    return replace(edge, fields=tuple(sorted(edge.fields)), origin=tuple(sorted(edge.origin)))


def _place(edge: Edge, place: dict[str, int]) -> tuple[int, int, int, str]:
    return (_KINDS.index(edge.kind), place.get(edge.target, 0), place.get(edge.source, 0), edge.id)
