"""A program as an event graph: one node for each instruction, one arc for each wait of one instruction for another.

Takes a program and the seconds of its instructions; gives arcs, and names the pools that no arc can speak for. Every
instruction fires once a step, so the graph is homogeneous as it stands: minibatches of an update are instructions of
their own, and a token on an arc is a step.

What is an arc: the next of a lane after the one before it, the first of a lane in the next step after its last, a
receiver after its sender (the channel's initial tokens later), a sender after its receiver has made room (capacity less
tokens later). The members of an interaction start at one moment, so one of them stands for all.

What is no arc: slots. A host pool of k slots lets at most k of its lanes work at once, whichever come first. With as
many slots as lanes (what placement gives up to 8 roles on the host) that never holds a lane up. With fewer, who waits
for whom depends on times: the ratio of the arcs is then a lower bound, the work of the pool divided by its slots
another, and the simulator tells what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from flowrl.execution.cycle_ratio import Arc, maximum_cycle_ratio
from flowrl.program.program import ChannelKind, Instruction, InstructionKind, Program


@dataclass(frozen=True, slots=True)
class Expanded:
    """The event graph of a program."""

    arcs: tuple[Arc, ...]
    crowded: tuple[str, ...]
    """Pools with fewer slots than lanes, whose waits for a slot are not among the arcs."""
    least_seconds: float
    """No step is shorter: the largest work of a crowded pool divided by its slots; 0 without one."""


def expanded(program: Program, durations: Mapping[str, float]) -> Expanded:
    """The event graph of the plain step: what works only every k steps takes no time."""
    working = {each.id: working_seconds(each, durations) for each in program.instructions}
    crowded = [stream for stream in program.streams if stream.slots < len(stream.lanes)]
    return Expanded(
        arcs=tuple(event_arcs(program, working)),
        crowded=tuple(stream.pool for stream in crowded),
        least_seconds=max((sum(working[i.id] for i in s.instructions) / s.slots for s in crowded), default=0.0),
    )


def ratio_of(program: Program, durations: Mapping[str, float]) -> tuple[float, tuple[str, ...]]:
    """Seconds of a plain step by the maximum cycle ratio, and the instructions of the critical circle. With a crowded
    pool a lower bound, and no circle where its slots are what binds."""
    graph = expanded(program, durations)
    ratio, circle = maximum_cycle_ratio(graph.arcs)
    if graph.least_seconds > ratio:
        return graph.least_seconds, ()
    return ratio, named(circle, program)


def working_seconds(instruction: Instruction, durations: Mapping[str, float]) -> float:
    """Seconds of an instruction in a step without validation, checkpoints and warm-ups."""
    return durations[instruction.id] if is_plain(instruction) else 0.0


def is_plain(instruction: Instruction) -> bool:
    """Whether an instruction works in every step once warm-ups are over. A checkpoint never counts, however often it is
    written."""
    return instruction.every_steps == 1 and not is_save(instruction)


def is_save(instruction: Instruction) -> bool:
    """Whether the instruction writes a checkpoint."""
    return instruction.kind is InstructionKind.SAVE


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


def named(circle: tuple[str, ...], program: Program) -> tuple[str, ...]:
    """The circle with, for each interaction, the member that works in the pool of the instruction after it."""
    pool_of = {instruction.id: instruction.pool for instruction in program.instructions}
    together = program.together

    def name(id: str, following: str) -> str:
        members = together.get(id, (id,))
        return next((member for member in members if pool_of[member] == pool_of[following]), id)

    return tuple(name(id, circle[(place + 1) % len(circle)]) for place, id in enumerate(circle))
