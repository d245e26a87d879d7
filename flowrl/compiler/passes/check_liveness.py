"""check_liveness: whether a step can come to its end."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.diag.diagnostic import Diagnostic, FlowError, Label, diagnose
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
    """The wait whose edge stands last in the file is the one to look at first."""
    edges = {edge.id: edge for edge in graph.edges}
    declared = {edge.id: edge for edge in graph.declared}
    waits = sorted(deadlock.waits, key=lambda wait: _place(_written(wait, edges, declared)))
    last = waits[-1]
    also = [
        Label(edge.span, _words(wait, edges))
        for wait in waits[:-1]
        if (edge := _written(wait, edges, declared)) is not None and edge.span is not None
    ]
    written = _written(last, edges, declared)
    circle = "; ".join(_words(wait, edges) for wait in deadlock.waits) + _together(deadlock, edges)
    span = written.span if written is not None else None
    return diagnose("FR0316", span, also=also, first=_words(last, edges), circle=circle)


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


def _written(wait: Wait, edges: Mapping[str, Edge], declared: Mapping[str, Edge]) -> Edge | None:
    """The user's own edge behind a channel: the last one of the file that brings its rows."""
    edge = edges.get(wait.channel.name)
    if edge is None:
        return None
    return max((declared[id] for id in edge.origin if id in declared), key=_place, default=edge)


def _place(edge: Edge | None) -> tuple[str, int, int, str]:
    span = edge.span if edge is not None else None
    return ("", 0, 0, "") if edge is None or span is None else (span.file, span.line, span.column, edge.id)
