"""What of a graph is drawn: ops, the arrows between them, and the label of each. Takes a Graph, knows no characters.

Arrows are the data edges and the declared ones (a filter has readers of its rows who read none of its columns), without
those that a longer way implies. An environment's step stands on the label of the generators that it talks with: data
leaves an interaction from them. Where a picture has too many ops, those that are alike but for a number are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import Edge, EdgeKind, Graph

Arc = tuple[str, str]
_FEWEST_ALIKE = 3
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Picture:
    """`nodes` in the order of the graph; `arcs` without cycles and implied ones, sorted."""

    nodes: tuple[str, ...]
    arcs: tuple[Arc, ...]
    labels: Mapping[str, tuple[str, ...]]

    def part(self, nodes: Iterable[str]) -> Picture:
        kept = set(nodes)
        return Picture(
            tuple(node for node in self.nodes if node in kept),
            tuple(arc for arc in self.arcs if arc[0] in kept),
            {node: label for node, label in self.labels.items() if node in kept},
        )

    def parts(self) -> list[Picture]:
        """The connected parts, in the order of their first nodes."""
        digraph = _digraph(self.nodes, self.arcs)
        found = [self.part(part) for part in nx.weakly_connected_components(digraph)]
        return sorted(found, key=lambda part: self.nodes.index(part.nodes[0]))


def picture(graph: Graph) -> Picture:
    """All ops of `graph` after whichever passes."""
    talks = interactions(graph)
    within = {step: generators for step, generators in talks.items() if generators}
    nodes = tuple(op.id for op in graph.ops if op.id not in within)
    known = set(nodes)
    arcs = {arc for arc in _arcs(graph, within) if known.issuperset(arc)}
    labels: dict[str, tuple[str, ...]] = {id: (_label(graph, id),) for id in nodes}
    for step, generators in within.items():
        labels[generators[-1]] = (*labels[generators[-1]], f"<-> {step}")
    return Picture(nodes, reduced(nodes, arcs), labels)


def interactions(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Each environment's step with the generators that it talks with, in the order of the graph."""
    edges = [edge for edge in graph.declared if edge.kind is EdgeKind.INTERACTION]
    order = [op.id for op in graph.ops]
    steps = dict.fromkeys(edge.target for edge in edges if edge.target in order)
    return {
        step: tuple(id for id in order if any(e.source == id and e.target == step for e in edges)) for step in steps
    }


def reduced(nodes: Sequence[str], arcs: Iterable[Arc]) -> tuple[Arc, ...]:
    """Without the arcs that a longer way implies. Arcs of a cycle (before refuse_cycles) are all kept."""
    digraph = _digraph(nodes, arcs)
    if not nx.is_directed_acyclic_graph(digraph):
        return tuple(sorted(digraph.edges))
    return tuple(sorted(nx.transitive_reduction(digraph).edges))


def is_acyclic(part: Picture) -> bool:
    return nx.is_directed_acyclic_graph(_digraph(part.nodes, part.arcs))


def folded(part: Picture) -> Picture:
    """Ops whose names differ in numbers only and that stand in the same place (same kinds of neighbours, all the way
    up and down) as one, if there are at least three of them: `rm_1.score … rm_8.score ×8`."""
    colours = _colours(part)
    alike: dict[int, list[str]] = {}
    for node in part.nodes:
        alike.setdefault(colours[node], []).append(node)
    stands: dict[str, str] = {}
    labels: dict[str, tuple[str, ...]] = {}
    for members in alike.values():
        counted = sorted(members, key=lambda member: [int(number) for number in _NUMBER.findall(member)])
        groups = [counted] if len(members) >= _FEWEST_ALIKE else [[member] for member in members]
        for group in groups:
            first, last = part.labels[group[0]], part.labels[group[-1]]
            stands |= dict.fromkeys(group, group[0])
            labels[group[0]] = first if len(group) == 1 else (f"{first[0]} … {last[0]}, {len(group)} alike", *first[1:])
    nodes = tuple(node for node in part.nodes if stands[node] == node)
    return Picture(nodes, reduced(nodes, {(stands[a], stands[b]) for a, b in part.arcs}), labels)


def _colours(part: Picture) -> dict[str, int]:
    """Colour refinement: nodes of one colour have the same name but for numbers and neighbours of the same colours."""
    digraph = _digraph(part.nodes, part.arcs)
    colours = _numbered({node: _NUMBER.sub("#", "\n".join(part.labels[node])) for node in part.nodes})
    while True:
        finer = _numbered(
            {
                node: (
                    colours[node],
                    sorted({colours[n] for n in digraph.predecessors(node)}),
                    sorted({colours[n] for n in digraph.successors(node)}),
                )
                for node in part.nodes
            }
        )
        if len(set(finer.values())) == len(set(colours.values())):
            return finer
        colours = finer


def _numbered(keys: Mapping[str, object]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    return {node: numbers.setdefault(repr(key), len(numbers)) for node, key in keys.items()}


def _label(graph: Graph, id: str) -> str:
    op = graph.op(id)
    return f"{id} ×{op.firings}" if op.firings > 1 else id


def _arcs(graph: Graph, within: Mapping[str, Sequence[str]]) -> set[Arc]:
    ids = {op.id for op in graph.ops}
    edges = [e for e in (*graph.edges, *graph.declared) if e.kind is EdgeKind.DATA and ids.issuperset(_ends(e))]
    below = {g: _below(g, edges) for generators in within.values() for g in generators}
    arcs: set[Arc] = set()
    for edge in edges:
        sources = within.get(edge.source, (edge.source,))
        own = [source for source in sources if edge.target in below.get(source, ())] or sources
        targets = within.get(edge.target, (edge.target,))
        arcs |= {(source, target) for source in own for target in targets if source != target}
    talking = {frozenset((a, b)) for generators in within.values() for a in generators for b in generators if a != b}
    return {arc for arc in arcs if frozenset(arc) not in talking}


def _ends(edge: Edge) -> Arc:
    return edge.source, edge.target


def _below(generator: str, edges: Iterable[Edge]) -> set[str]:
    """What the edges lead to from `generator` itself."""
    return set(reachable((generator,), map(_ends, edges))) - {generator}


def _digraph(nodes: Iterable[str], arcs: Iterable[Arc]) -> nx.DiGraph[str]:
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(nodes)
    digraph.add_edges_from(arcs)
    return digraph
