"""Records: which producer each column has at each op, from the declared edges alone (LANGUAGE.md, "Binding").

A record holds its op's own columns and all upstream ones. Of two producers of one column the later hides the earlier
where one lies upstream of the other; two that do not are both in scope, which is an error for whoever reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from flowrl.graph.algorithms import Pair, ancestors, toposort
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op, Role
from flowrl.graph.once import once

Producers = Mapping[str, frozenset[str]]
"""Column → ids of the ops whose column it may be."""


class Link(msgspec.Struct, frozen=True, gc=False):
    """A step that a record takes from one op to the next. `edge` is the declared edge, None from a reset to its step;
    `fields` restricts the columns that pass (empty: all); `stands_for` are the edges that a derived one comes from."""

    source: str
    target: str
    edge: str | None
    fields: frozenset[str] = frozenset()
    stands_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Records:
    order: tuple[str, ...]
    """Op ids, upstream first."""
    links: tuple[Link, ...]
    into: Mapping[str, Sequence[Link]]
    """The links that end at each op."""
    ancestors: Mapping[str, frozenset[str]]
    scope: Mapping[str, Producers]
    """What an op sees upstream of it."""
    below: Mapping[str, Producers]
    """What an op hands on: its scope, with its own columns over it."""

    def origin(self, producer: str, field: str, consumer: str) -> tuple[str, ...]:
        """Ids of the declared edges on every path that puts the producer's column in the consumer's scope, sorted. With
        an edge that feeds an inner call come those that feed its caller.

        A column that is hidden on the way (chosen by `inputs:`) comes along every path from its producer.
        """
        visible = producer in self.scope[consumer].get(field, ())
        found: set[str] = set()
        seen: set[str] = set()
        queue = [consumer]
        while queue:
            node = queue.pop()
            if node in seen or node == producer:
                continue
            seen.add(node)
            for link in self.into[node]:
                if not self._carries(link, producer, field, visible):
                    continue
                queue.append(link.source)
                if link.edge is not None:
                    found.update((link.edge, *link.stands_for))
        return tuple(sorted(found))

    def _carries(self, link: Link, producer: str, field: str, visible: bool) -> bool:
        if link.fields and field not in link.fields:
            return False
        if visible:
            return producer in self.below[link.source].get(field, ())
        return link.source == producer or producer in self.ancestors[link.source]


def data_links(ops: Iterable[Op], roles: Iterable[Role], declared: Iterable[Edge]) -> tuple[Link, ...]:
    """How records travel: data edges, from an environment's step to its generators, from its reset to its step."""
    known = {op.id: op for op in ops}
    envs = {role.name for role in roles if role.kind is Kind.ENV}
    links: list[Link] = []
    for edge in declared:
        if edge.source not in known or edge.target not in known:
            continue
        if edge.kind is EdgeKind.DATA:
            links.append(Link(edge.source, edge.target, edge.id, frozenset(edge.fields), edge.origin))
        if edge.kind is EdgeKind.INTERACTION:
            links.append(Link(edge.target, edge.source, edge.id, frozenset(edge.fields)))
    resets = {(op.role, op.label): op.id for op in known.values() if op.role in envs and op.method == "reset"}
    steps = {(op.role, op.label): op.id for op in known.values() if op.role in envs and op.method == "step"}
    links += [Link(resets[key], steps[key], None) for key in sorted(resets.keys() & steps.keys(), key=str)]
    return tuple(sorted(links, key=lambda link: (link.source, link.target, link.edge or "")))


@once
def links_of(graph: Graph) -> tuple[Link, ...]:
    """The links of a graph's declared edges."""
    return data_links(graph.ops, graph.roles, graph.declared)


def records(ops: Iterable[Op], roles: Iterable[Role], declared: Iterable[Edge]) -> Records:
    """The record at every op. The declared data edges must be acyclic (ValueError otherwise)."""
    known = {op.id: op for op in ops}
    links = data_links(known.values(), roles, declared)
    pairs: list[Pair] = [(link.source, link.target) for link in links]
    order = toposort(known, pairs)
    upstream = ancestors(known, pairs)
    into: dict[str, list[Link]] = {id: [] for id in known}
    for link in links:
        into[link.target].append(link)
    scope: dict[str, Producers] = {}
    below: dict[str, Producers] = {}
    for id in order:
        scope[id] = _joined(into[id], below, upstream)
        alone = frozenset({id})
        below[id] = {**scope[id], **{field.name: alone for field in known[id].outputs}}
    return Records(order, links, into, upstream, scope, below)


def _joined(links: Sequence[Link], below: Mapping[str, Producers], upstream: Mapping[str, frozenset[str]]) -> Producers:
    if len(links) == 1 and not links[0].fields:
        return below[links[0].source]
    merged: dict[str, frozenset[str]] = {}
    for link in links:
        for field, producers in below[link.source].items():
            if link.fields and field not in link.fields:
                continue
            known = merged.setdefault(field, producers)
            if known is not producers:
                merged[field] = known | producers
    return {field: _latest(found, upstream) if len(found) > 1 else found for field, found in merged.items()}


def _latest(producers: frozenset[str], upstream: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return producers.difference(*(upstream[p] for p in producers))
