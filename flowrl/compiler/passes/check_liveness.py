"""check_liveness: whether a step can come to its end."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.diag.diagnostic import Diagnostic, FlowError, Label, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Edge, Graph
from flowrl.graph.rates import step_rates
from flowrl.graph.sdf import Deadlock, Wait, balance, schedule


def check_liveness(graph: Graph) -> Graph:
    """Fire one step symbolically, within the buffers that the program will have; the graph itself is unchanged.

    before: alice.generate, bob.generate <-> env.step · alice.generate -> critique.call -> bob.generate
    after:  FR0316: bob.generate waits for critique.call, which waits for alice.generate, with which bob.generate begins

    Requires: weights edges lowered, rates balanced. Ensures: there is a sequential schedule of one step, and so of any
    number of them: no ops wait for each other, each for tokens or for room.
    """
    rates = step_rates(graph)
    found = schedule(rates.actors, rates.channels, balance(rates.actors, rates.channels).repetitions)
    if isinstance(found, Deadlock):
        raise FlowError(_refusal(graph, found))
    return graph


def _refusal(graph: Graph, deadlock: Deadlock) -> Diagnostic:
    """The wait that is written last in the file is the one to look at first."""
    edges = {edge.id: edge for edge in graph.edges}
    spans = [(_span(graph, edges.get(wait.channel.name)), wait) for wait in deadlock.waits]
    spans.sort(key=lambda pair: _place(pair[0]))
    also = [Label(span, _words(wait, edges)) for span, wait in spans[:-1] if span is not None]
    circle = "; ".join(_words(wait, edges) for wait in deadlock.waits) + _together(deadlock, edges)
    return diagnose("FR0316", spans[-1][0], also=also, first=_words(spans[-1][1], edges), circle=circle)


def _words(wait: Wait, edges: Mapping[str, Edge]) -> str:
    """Who waits for whom on which channel with how many tokens."""
    channel = wait.channel
    edge = edges.get(channel.name)
    source, target = (edge.source, edge.target) if edge is not None else (channel.source, channel.target)
    if wait.for_room:
        room = f"{wait.has} of {channel.capacity} are free until `{target}` reads"
        return f"`{source}` waits for room for {wait.needs} rows on `{channel.name}`: {room}"
    return f"`{target}` waits for {wait.needs} rows of `{source}`, which has made {wait.has}"


def _together(deadlock: Deadlock, edges: Mapping[str, Edge]) -> str:
    """The interactions in which one member waits for what another has not begun."""
    ends = {end for w in deadlock.waits if (e := edges.get(w.channel.name)) is not None for end in (e.source, e.target)}
    found = [actor.split(" with ") for actor in dict.fromkeys(wait.actor for wait in deadlock.waits)]
    tied = [" and ".join(f"`{id}`" for id in members if id in ends) for members in found if len(members) > 1]
    return "".join(f"; {names} begin at once" for names in tied if " and " in names)


def _span(graph: Graph, edge: Edge | None) -> Span | None:
    """Where the user wrote what a channel carries out: the last of the edges that bring its rows, or the `inputs:` that
    chose them."""
    if edge is None:
        return None
    chosen = [i.span for op in graph.ops if op.id == edge.target for i in op.inputs if i.source == edge.source]
    drawn = [declared.span for declared in graph.declared if declared.id in edge.origin]
    return max((span for span in (*chosen, *drawn) if span is not None), key=_place, default=None)


def _place(span: Span | None) -> tuple[str, int, int]:
    return ("", 0, 0) if span is None else (span.file, span.line, span.column)
