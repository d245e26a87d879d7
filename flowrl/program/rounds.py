"""Rounds of refill: what of a program is run again while filters leave too few prompts, and what waits for its end.

Takes a program and the ops of a round (graph/rows.py); gives the program of one more round, which the executor runs
within the step, and the order that holds everything else back: what stands behind a round in a lane (an engine that
leaves its devices, new weights), and the next step's data. Knows no rows and no counts.

Roles of a round that take turns on their devices do so in every round: it then begins by bringing the first one back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Kind
from flowrl.graph.rows import rows_of
from flowrl.program.program import MOVES, ChannelKind, Instruction, InstructionKind, Program, Stream


@dataclass(frozen=True, slots=True)
class Hold:
    """`target` waits for the last round; `tokens` 1: for that of the step before."""

    source: str
    target: str
    tokens: int


def last_ops(graph: Graph) -> tuple[str, ...]:
    """The filters that end a round: those of which no other op of it reads or works on what is left."""
    rows = rows_of(graph)
    above = {each.id for id in rows.round for each in rows.filters(graph.op(id))}
    read = {i.source for id in rows.round for i in graph.op(id).inputs}
    filters = [op.id for op in graph.ops if op.id in rows.round and op.method == "select"]
    return tuple(id for id in filters if id not in above | read)


def holds(graph: Graph, streams: Iterable[Stream]) -> Iterator[Hold]:
    """What keeps all else out of the rounds: nothing without refill."""
    own = rows_of(graph).round
    if not own:
        return
    lanes = [lane for stream in streams for lane in stream.lanes]
    ends = [i.id for lane in lanes for i in lane if i.op in last_ops(graph) and i.kind is InstructionKind.RUN]
    for lane in lanes:
        places = [place for place, i in enumerate(lane) if i.op in own]
        here = {i.id for i in lane}
        for place in places:
            if graph.role(lane[place].role).kind is Kind.DATA:
                yield from (Hold(end, lane[place].id, 1) for end in ends if end not in here)
        if not places:
            continue
        behind = lane[(places[-1] + 1) % len(lane)]
        if behind.op not in own:
            tokens = int(places[-1] + 1 == len(lane))
            yield from (Hold(end, behind.id, tokens) for end in ends if end not in here)


def round_program(program: Program, own: Collection[str]) -> Program:
    """One more round of the ops `own`, as a program of one step: no streams without any. Its instructions have the ids
    of those that they repeat, and work whenever they are asked to."""
    streams = tuple(
        replace(stream, instructions=tuple(i for lane in stream.lanes for i in _again(lane, own)))
        for stream in program.streams
    )
    runs = {i.id for stream in streams for i in stream.instructions if i.kind not in MOVES}
    channels = tuple(c for c in program.channels if {c.source, c.target} <= runs and c.initial_tokens == 0)
    between = {c.id for c in channels if c.kind is not ChannelKind.INTERACTION}

    def wired(i: Instruction) -> Instruction:
        receives = tuple(id for id in i.receives if id in between)
        sends = tuple(id for id in i.sends if id in between)
        return replace(i, receives=receives, sends=sends, every_steps=1, start_step=0, epilogue=False)

    return Program(
        streams=tuple(replace(s, instructions=tuple(map(wired, s.instructions))) for s in streams if s.instructions),
        channels=channels,
    )


def _again(lane: Sequence[Instruction], own: Collection[str]) -> list[Instruction]:
    """Of a lane the ops of a round and, where their roles take turns, the moves in between."""
    places = [place for place, i in enumerate(lane) if i.op in own]
    if not places:
        return []
    roles = {lane[place].role for place in places}
    within = [i for i in lane[places[0] : places[-1] + 1] if i.op in own or (i.kind in MOVES and i.role in roles)]
    if all(i.kind not in MOVES for i in within):
        return within
    return [*_back(lane, places[0], places[-1], roles), *within]


def _back(lane: Sequence[Instruction], first: int, last: int, roles: Collection[str]) -> Iterator[Instruction]:
    """From what the last op of a round has on the devices to what the first one has."""
    before, after = _brought(lane[:first], roles), _brought(lane[: last + 1], roles)
    for role in (role for role in after if role not in before):
        yield next(i for i in lane[last + 1 :] if i.role == role and i.kind is InstructionKind.OFFLOAD)
    for role in (role for role in before if role not in after):
        yield from before[role]


def _brought(lane: Iterable[Instruction], roles: Collection[str]) -> dict[str, list[Instruction]]:
    """Roles that are on the devices at the end, and what has brought each."""
    found: dict[str, list[Instruction]] = {}
    for i in (each for each in lane if each.kind in MOVES and each.role in roles):
        if i.kind is InstructionKind.OFFLOAD:
            found.pop(i.role, None)
        else:
            found.setdefault(i.role, []).append(i)
    return found
