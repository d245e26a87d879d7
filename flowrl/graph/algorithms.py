"""Graph algorithms over names and pairs of names. They know nothing of flows; results do not depend on input order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

import networkx as nx

Pair = tuple[str, str]


def toposort(nodes: Iterable[str], pairs: Iterable[Pair]) -> tuple[str, ...]:
    """Nodes so that each pair goes forward; among free nodes the smallest name first. ValueError on a cycle."""
    into, follow = _degrees(nodes, pairs)
    free = [node for node, count in into.items() if count == 0]
    heapify(free)
    order: list[str] = []
    while free:
        node = heappop(free)
        order.append(node)
        for target in follow.get(node, ()):
            into[target] -= 1
            if into[target] == 0:
                heappush(free, target)
    if len(order) < len(into):
        raise ValueError("the graph has a cycle")
    return tuple(order)


def find_cycle(nodes: Iterable[str], pairs: Iterable[Pair]) -> tuple[str, ...] | None:
    """The shortest cycle, the one with the smallest names first; it starts at its smallest name and each node is named
    once. None if there is none."""
    nodes, pairs = tuple(nodes), tuple(pairs)
    if _is_acyclic(nodes, pairs):
        return None
    graph = _digraph(nodes, pairs)
    best: tuple[str, ...] | None = None
    for component in nx.strongly_connected_components(graph):
        within = {node: sorted(component.intersection(graph.successors(node))) for node in component}
        for node in sorted(component):
            # Each cycle is found from its smallest name; only a shorter one is better than one with a smaller name.
            candidate = _cycle_from(within, node, len(component) if best is None else len(best))
            if candidate is not None and (best is None or (len(candidate), candidate) < (len(best), best)):
                best = candidate
    return best


def ancestors(nodes: Iterable[str], pairs: Iterable[Pair]) -> Mapping[str, frozenset[str]]:
    """For each node those it can be reached from, without itself. ValueError on a cycle."""
    pairs = tuple(pairs)
    before: dict[str, set[str]] = {}
    for source, target in pairs:
        before.setdefault(target, set()).add(source)
    found: dict[str, frozenset[str]] = {}
    for node in toposort(nodes, pairs):
        above = before.get(node, ())
        found[node] = frozenset(above).union(*(found[each] for each in above))
    return found


def reachable(sources: Iterable[str], pairs: Iterable[Pair]) -> frozenset[str]:
    """The sources and everything that can be reached from them."""
    follow: dict[str, list[str]] = {}
    for source, target in pairs:
        follow.setdefault(source, []).append(target)
    seen: set[str] = set()
    queue = list(sources)
    while queue:
        node = queue.pop()
        if node in seen:
            continue
        seen.add(node)
        queue.extend(follow.get(node, ()))
    return frozenset(seen)


def backward(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Each pair turned round."""
    return tuple((target, source) for source, target in pairs)


def _digraph(nodes: Iterable[str], pairs: Iterable[Pair]) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(sorted(nodes))
    graph.add_edges_from(sorted(pairs))
    return graph


def _degrees(nodes: Iterable[str], pairs: Iterable[Pair]) -> tuple[dict[str, int], dict[str, list[str]]]:
    """How many pairs end at each node, and where the pairs from it lead: what Kahn's search (1962) counts down."""
    into = dict.fromkeys(nodes, 0)
    follow: dict[str, list[str]] = {}
    for source, target in pairs:
        into[target] = into.get(target, 0) + 1
        into.setdefault(source, 0)
        follow.setdefault(source, []).append(target)
    return into, follow


def _is_acyclic(nodes: Sequence[str], pairs: Sequence[Pair]) -> bool:
    """Whether taking away what nothing leads to takes everything away; most graphs are asked only this."""
    into, follow = _degrees(nodes, pairs)
    free = [node for node, count in into.items() if count == 0]
    left = len(into)
    while free:
        left -= 1
        for target in follow.get(free.pop(), ()):
            into[target] -= 1
            if into[target] == 0:
                free.append(target)
    return left == 0


def _cycle_from(within: Mapping[str, Sequence[str]], start: str, most: int) -> tuple[str, ...] | None:
    """The shortest cycle of at most `most` nodes through `start` and larger names; of equals the one with the smallest
    names. `within` gives the sorted successors of each node."""
    before = {start: start}
    level = [start]
    for _ in range(most):
        following: list[str] = []
        for node in level:
            for other in within[node]:
                if other == start:
                    return _way_back(before, node)
                if other > start and other not in before:
                    before[other] = node
                    following.append(other)
        level = following
    return None


def _way_back(before: Mapping[str, str], node: str) -> tuple[str, ...]:
    way = [node]
    while before[way[-1]] != way[-1]:
        way.append(before[way[-1]])
    return tuple(reversed(way))
