"""fuse_forwards: one forward where two would compute the same values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from msgspec.structs import replace

from flowrl.graph.algorithms import toposort
from flowrl.graph.graph import Edge, EdgeKind, Graph, Op, Removal
from flowrl.graph.records import links_of
from flowrl.graph.rows import rows_of
from flowrl.graph.signatures import FIELDS
from flowrl.graph.weights import forward_key

WORDS = {EdgeKind.STATE: "before"}


def fuse_forwards(graph: Graph) -> Graph:
    """Make one op of forwards with equal weights, parameters, inputs and rows; readers of the others read it.

    before: generate -> reference.log_probs -> advantage.estimate    (reference and anchor: frozen, one model)
            generate -> anchor.log_probs -> actor_train.update
    after:  generate -> anchor.log_probs -> advantage.estimate, actor_train.update
            removed: reference.log_probs, reference: fused_forward

    The edges of the op that stays name the declared edges of both. The one that stands first stays, so that no reader
    comes before it; of two that nothing orders the one with more columns (`top_k`) is first.

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
    rows = rows_of(graph)
    groups: dict[Hashable, list[Op]] = {}
    for op in graph.ops:
        key = forward_key(graph, rows, op)
        if key is not None:
            groups.setdefault(key, []).append(op)
    found: dict[str, str] = {}
    doubled = [group for group in groups.values() if len(group) > 1]
    place = _places(graph) if doubled else {}
    for group in doubled:
        stays: list[Op] = []
        for op in sorted(group, key=lambda op: place[op.id]):
            same = next((kept for kept in stays if set(op.outputs) <= set(kept.outputs)), None)
            if same is None:
                stays.append(op)
            else:
                found[op.id] = same.id
    return found


def _places(graph: Graph) -> dict[str, int]:
    """Where each op stands in one order of all records, those that passed through removed ops too."""
    kinds = (EdgeKind.DATA, EdgeKind.INTERACTION)
    drawn = [(e.source, e.target, e.kind) for e in graph.declared if e.kind in kinds]
    pairs = [(target, source) if kind is EdgeKind.INTERACTION else (source, target) for source, target, kind in drawn]
    pairs += [(i.source, op.id) for op in graph.ops for i in op.inputs if i.source is not None and i.chosen is None]
    pairs += [(link.source, link.target) for link in links_of(graph)]
    wide = {op.id: f"{len(FIELDS) - len(op.outputs):04d} {op.id}" for op in graph.ops}
    names = {end: wide.get(end, end) for pair in pairs for end in pair} | wide
    order = toposort(names.values(), ((names[a], names[b]) for a, b in pairs))
    place = {name: index for index, name in enumerate(order)}
    return {op.id: place[names[op.id]] for op in graph.ops}


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
