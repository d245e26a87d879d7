"""order_filters: what works on the rows that a filter leaves waits for its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from flowrl.graph.algorithms import Pair, backward, reachable
from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.graph.records import Link, links_of
from flowrl.graph.rows import rows_of

VERDICT = "keep"


def order_filters(graph: Graph) -> Graph:
    """Add an edge from each filter to the first ops that it governs: nothing else ties them, since `keep` is no input.

    before: best.select reads rewards; advantage.estimate, drawn below it, reads none of its columns
    after:  state best.select before advantage.estimate [keep]: rows that are dropped leave the step there

    A filter governs what is drawn below it and every update of its sample space, so that a dropped row leaves on every
    path (LANGUAGE, "Presets, stages, text"); a masking one in the same way. Ops that read from a governed one follow.

    Requires: bound inputs. Ensures: along edges of a step each filter comes before every op that it governs; the edges
    drawn from a filter to what it governs are origins, also where no column that is read travels on them.
    """
    rows = rows_of(graph)
    links = links_of(graph)
    governing = {op.id: [each.id for each in rows.governing(op)] for op in graph.ops}
    added = [
        _verdict(filter, op, links)
        for op in graph.ops
        for filter in governing[op.id]
        if not any(source == filter or filter in governing[source] for source in _sources(op))
    ]
    return replace(graph, edges=(*graph.edges, *added))


def _sources(op: Op) -> Iterator[str]:
    return (input.source for input in op.inputs if input.source is not None)


def _verdict(filter: str, op: Op, links: Iterable[Link]) -> Edge:
    origin = _ways(filter, op.id, links)
    return Edge(
        id=f"{filter} before {op.id}",
        kind=EdgeKind.STATE,
        source=filter,
        target=op.id,
        fields=(VERDICT,),
        origin=origin,
        derived=not origin,
    )


def _ways(start: str, end: str, links: Iterable[Link]) -> tuple[str, ...]:
    """The declared edges on every way from one op to the other, and those that they come from."""
    pairs: list[Pair] = [(link.source, link.target) for link in links]
    below, above = reachable([start], pairs), reachable([end], backward(pairs))
    on_way = [link for link in links if link.edge and link.source in below and link.target in above]
    return tuple(sorted({id for link in on_way for id in (link.edge, *link.stands_for) if id is not None}))
