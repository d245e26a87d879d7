"""refuse_cycles: within a step no value depends on itself."""

from __future__ import annotations

from flowrl.diag.diagnostic import Diagnostic, FlowError, Label, diagnose
from flowrl.graph.algorithms import find_cycle
from flowrl.graph.graph import Edge, Graph
from flowrl.graph.records import Link, links_of


def refuse_cycles(graph: Graph) -> Graph:
    """Refuse declared data edges that go round; the graph itself is unchanged.

    before: generate -> score -> update            before: generate -> score -> generate
    after:  the same                               after:  FR0302 with the path and every edge on it

    Requires: nothing. Ensures: the declared data edges are acyclic, so that records exist.
    """
    links = links_of(graph)
    cycle = find_cycle((op.id for op in graph.ops), ((link.source, link.target) for link in links))
    if cycle is None:
        return graph
    raise FlowError(_refusal(graph, links, cycle))


def _refusal(graph: Graph, links: tuple[Link, ...], cycle: tuple[str, ...]) -> Diagnostic:
    """The last edge of the cycle in the file is the one that closes it."""
    declared = {edge.id: edge for edge in graph.declared}
    turned = (*cycle[1:], cycle[0])
    by_pair = {(link.source, link.target): link.edge for link in links if link.edge is not None}
    ids = (by_pair.get(pair) for pair in zip(cycle, turned, strict=True))
    edges = sorted((declared[id] for id in ids if id is not None), key=_place)
    also = [Label(edge.span, f"`{edge.id}`") for edge in edges[:-1] if edge.span is not None]
    return diagnose("FR0302", edges[-1].span, also=also, path=" -> ".join((*cycle, cycle[0])))


def _place(edge: Edge) -> tuple[str, int, int, str]:
    span = edge.span
    return ("", 0, 0, edge.id) if span is None else (span.file, span.line, span.column, edge.id)
