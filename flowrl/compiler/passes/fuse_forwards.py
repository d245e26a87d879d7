"""fuse_forwards: one forward where two would compute the same values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from msgspec.structs import replace

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op, Removal
from flowrl.graph.rows import Rows
from flowrl.graph.weights import forward_key

WORDS = {EdgeKind.STATE: "before"}


def fuse_forwards(graph: Graph) -> Graph:
    """Make one op of forwards with equal weights, parameters, inputs and rows; readers of the others read it.

    before: generate -> reference.log_probs -> advantage.estimate    (reference and anchor: frozen, one model)
            generate -> anchor.log_probs -> actor_train.update
    after:  generate -> anchor.log_probs -> advantage.estimate, actor_train.update
            removed: reference.log_probs, reference: fused_forward

    The edges of the op that stays name the declared edges of both. Of ops that write different columns (`top_k`) the
    one with more stays if it writes all of the other's.

    Requires: live ops only. Ensures: no two forwards are equal; each reader is bound to its producer or to its equal.
    """
    twins: dict[str, str] = {}
    while found := _equal(graph):
        twins |= found
        graph = _bound(graph, found)
    if not twins:
        return graph
    used = {op.role for op in graph.ops}
    roles = tuple(role for role in graph.roles if role.name in used)
    text = {id: f"`{_last(twins, id)}` computes it: equal weights, the same rows" for id in twins}
    removed = [Removal(id=id, reason="fused_forward", text=text[id]) for id in twins]
    gone = (role.name for role in graph.roles if role.name not in used)
    removed += [Removal(id=name, reason="fused_forward", text="none of its ops is left") for name in gone]
    return replace(graph, roles=roles, removed=(*graph.removed, *removed))


def _equal(graph: Graph) -> dict[str, str]:
    """Op to be dropped → op that stays, for every set of equals."""
    rows = Rows(graph)
    groups: dict[Hashable, list[Op]] = {}
    for op in graph.ops:
        key = forward_key(graph, rows, op)
        if key is not None:
            groups.setdefault(key, []).append(op)
    found: dict[str, str] = {}
    for group in groups.values():
        stays: list[Op] = []
        for op in sorted(group, key=lambda op: (-len(op.outputs), op.derived, op.id)):
            same = next((kept for kept in stays if set(op.outputs) <= set(kept.outputs)), None)
            if same is None:
                stays.append(op)
            else:
                found[op.id] = same.id
    return found


def _last(twins: Mapping[str, str], id: str) -> str:
    while id in twins:
        id = twins[id]
    return id


def _bound(graph: Graph, twins: Mapping[str, str]) -> Graph:
    """Without the dropped ops; their readers and edges are those of the ops that stay."""
    ops = tuple(
        replace(op, inputs=tuple(replace(i, source=twins.get(i.source or "", i.source)) for i in op.inputs))
        for op in graph.ops
        if op.id not in twins
    )
    return replace(graph, ops=ops, edges=_merged(graph.edges, twins))


def _merged(edges: Iterable[Edge], twins: Mapping[str, str]) -> tuple[Edge, ...]:
    """Each edge at the ops that stay; of two between the same ops one, with the slots and origins of both."""
    found: dict[tuple[EdgeKind, str, str], Edge] = {}
    for edge in edges:
        if not {edge.source, edge.target} & twins.keys() and (edge.kind, edge.source, edge.target) not in found:
            found[edge.kind, edge.source, edge.target] = edge
            continue
        ends = (twins.get(edge.source, edge.source), twins.get(edge.target, edge.target))
        other = found.get((edge.kind, *ends), edge)
        origin = tuple(sorted({*other.origin, *edge.origin}))
        found[edge.kind, *ends] = replace(
            other,
            id=f"{ends[0]} {WORDS.get(edge.kind, '->')} {ends[1]}",
            source=ends[0],
            target=ends[1],
            fields=tuple(dict.fromkeys((*other.fields, *edge.fields))),
            origin=origin,
            derived=not origin,
        )
    return tuple(found.values())
