"""The critical circle: the instructions that wait for each other in turn and so bound the step.

In the event graph of a program every arc says that one instruction starts at the earliest some seconds after another
did, some steps (tokens) before. The step can be no shorter than the seconds of any circle divided by its tokens, and in
the steady state is as long as the largest of these ratios.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from flowrl.program.program import ChannelKind, Program


@dataclass(frozen=True, slots=True)
class Arc:
    """`target` starts `seconds` or more after `source` of `tokens` steps before."""

    source: str
    target: str
    seconds: float
    tokens: int


def event_arcs(program: Program, durations: Mapping[str, float]) -> Iterator[Arc]:
    """Arcs from lanes (one at a time, in order), from channels (token after its sender) and from their capacities. The
    members of an interaction start at one moment, so one of them stands for all."""
    first = {id: members[0] for id, members in program.together.items()}
    for arc in _arcs(program, durations):
        source, target = first.get(arc.source, arc.source), first.get(arc.target, arc.target)
        yield Arc(source, target, arc.seconds, arc.tokens)


def _arcs(program: Program, durations: Mapping[str, float]) -> Iterator[Arc]:
    for stream in program.streams:
        for lane in stream.lanes:
            for before, after in pairwise(lane):
                yield Arc(before.id, after.id, durations[before.id], 0)
            yield Arc(lane[-1].id, lane[0].id, durations[lane[-1].id], 1)
    for channel in program.channels:
        if channel.kind is ChannelKind.INTERACTION:
            continue
        yield Arc(channel.source, channel.target, durations[channel.source], channel.initial_tokens)
        yield Arc(channel.target, channel.source, 0.0, channel.capacity - channel.initial_tokens)


def critical_circle(program: Program, durations: Mapping[str, float], step_seconds: float) -> tuple[str, ...]:
    """Instructions of one circle whose ratio is `step_seconds`, in order; empty where slots bound the step, not a
    circle.

    With λ = step_seconds no circle of the arc lengths seconds - λ · tokens is positive, so longest paths exist; the
    arcs that they use up to equality hold every circle of ratio λ.
    """
    arcs = list(event_arcs(program, durations))
    slack = 1e-7 * (max((arc.seconds for arc in arcs), default=0.0) + step_seconds)
    reached = _longest(arcs, [i.id for i in program.instructions], step_seconds, slack)
    following: dict[str, list[str]] = {id: [] for id in reached}
    for arc in arcs:
        if reached[arc.source] + arc.seconds - step_seconds * arc.tokens >= reached[arc.target] - slack:
            following[arc.source].append(arc.target)
    return _named(_first_circle(following), program)


def _named(circle: tuple[str, ...], program: Program) -> tuple[str, ...]:
    """The circle with, for each interaction, the member that works in the pool of the instruction after it."""
    pool_of = {instruction.id: instruction.pool for instruction in program.instructions}
    together = program.together

    def name(id: str, following: str) -> str:
        members = together.get(id, (id,))
        return next((member for member in members if pool_of[member] == pool_of[following]), id)

    return tuple(name(id, circle[(place + 1) % len(circle)]) for place, id in enumerate(circle))


def _longest(arcs: list[Arc], nodes: list[str], step_seconds: float, slack: float) -> dict[str, float]:
    """Longest paths to each node from anywhere (Bellman & Ford), to within `slack`."""
    reached = dict.fromkeys(nodes, 0.0)
    for _ in nodes:
        moved = False
        for arc in arcs:
            longer = reached[arc.source] + arc.seconds - step_seconds * arc.tokens
            if longer > reached[arc.target] + slack / len(nodes):
                reached[arc.target], moved = longer, True
        if not moved:
            break
    return reached


def _first_circle(following: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The first circle that a depth-first walk in the order of the nodes closes."""
    done: set[str] = set()
    for start in following:
        path, ways = [start], [iter(following[start])]
        while path:
            target = next((node for node in ways[-1] if node not in done), None)
            if target is None:
                done.add(path.pop())
                ways.pop()
            elif target in path:
                return tuple(path[path.index(target) :])
            else:
                path.append(target)
                ways.append(iter(following[target]))
    return ()
