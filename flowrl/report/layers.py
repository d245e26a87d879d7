"""Which column each node of a drawing stands in, and in which order: the first half of the method of Sugiyama et al.
1981 (longest paths, then barycentres). Knows nothing of flows and of characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise

import networkx as nx

_Arc = tuple[str, str]
_SWEEPS = 4


def layers(nodes: Sequence[str], edges: Sequence[_Arc]) -> tuple[list[list[str]], set[_Arc]]:
    """Columns of names, and the arcs between neighbouring columns. An edge that passes columns is cut into steps: the
    place where one of `source` passes column d is named `source>d`, shared by all edges of that source."""
    depth = _depths(nodes, edges)
    columns: list[list[str]] = [[n for n in nodes if depth[n] == d] for d in range(max(depth.values(), default=-1) + 1)]
    arcs: set[_Arc] = set()
    for source, target in edges:
        passed = [f"{source}>{d}" for d in range(depth[source] + 1, depth[target])]
        for d, name in enumerate(passed, depth[source] + 1):
            if name not in columns[d]:
                columns[d].append(name)
        arcs |= set(pairwise([source, *passed, target]))
    return _ordered(columns, arcs), arcs


def _depths(nodes: Sequence[str], edges: Sequence[_Arc]) -> dict[str, int]:
    """The longest way from a source; a source itself stands just before the first that reads it."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    depth: dict[str, int] = {}
    for node in nx.topological_sort(graph):
        depth[node] = max((depth[before] + 1 for before in graph.predecessors(node)), default=0)
    for node in nodes:
        if graph.in_degree(node) == 0 and graph.out_degree(node):
            depth[node] = min(depth[after] for after in graph.successors(node)) - 1
    return depth


def _ordered(columns: list[list[str]], arcs: Iterable[_Arc]) -> list[list[str]]:
    """The order with the fewest crossings that a few sweeps of barycentres find; the given one where none is better."""
    into: dict[str, list[str]] = {}
    out: dict[str, list[str]] = {}
    for source, target in arcs:
        out.setdefault(source, []).append(target)
        into.setdefault(target, []).append(source)
    current = _swept(columns, into)
    best, fewest = current, _crossings(current, out)
    for _ in range(_SWEEPS):
        if fewest == 0:
            break
        current = _swept(_swept(current[::-1], out)[::-1], into)
        crossings = _crossings(current, out)
        if crossings < fewest:
            best, fewest = current, crossings
    return best


def _swept(columns: Sequence[list[str]], neighbours: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Each column sorted by the mean place of its neighbours in the column before; those without keep theirs."""
    made: list[list[str]] = []
    for column in columns:
        before = {name: place for place, name in enumerate(made[-1])} if made else {}
        means = {name: _mean([before[n] for n in neighbours.get(name, ()) if n in before]) for name in column}
        rank = {name: means[name] if means[name] is not None else float(place) for place, name in enumerate(column)}
        made.append(sorted(column, key=lambda name: rank[name] or 0.0))
    return made


def _mean(places: Sequence[int]) -> float | None:
    return sum(places) / len(places) if places else None


def _crossings(columns: Sequence[Sequence[str]], out: Mapping[str, Sequence[str]]) -> int:
    found = 0
    for left, right in pairwise(columns):
        place = {name: number for number, name in enumerate(right)}
        ends = [(number, place[target]) for number, name in enumerate(left) for target in out.get(name, ())]
        found += sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(ends, 2))
    return found
