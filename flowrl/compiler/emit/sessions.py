"""Sessions: a generator hands its rows on in parts, so that scoring need not wait for the last of them.

Takes the streams and channels of a program whose ops run whole, and the graph; gives them with `run generate` as open,
takes and close, and with ops that read no more than a part of the rows, elsewhere, as a run for each part. A part is
as many rows as so many prompts have, those that are done next: samples, or whole prompts where nobody reads samples.

What reads more than a group waits for the last part: a whitening over the step, and a minibatch too, which is a fixed
set of prompts. So what comes out does not depend on who was done first, and nothing that a graph says of order is given
up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import EdgeKind, Graph, Kind, Op
from flowrl.graph.interactions import interactions
from flowrl.graph.params import GenerateParams
from flowrl.graph.rows import rows_of
from flowrl.graph.types import Granularity
from flowrl.program.program import MOVES, Channel, ChannelKind, Instruction, InstructionKind, Rows, Stream

MOST_TAKES = 8
"""More parts cost more instructions than they save time."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a program may cut."""

    takes: int
    """Parts of a session at most; 1: none."""
    on_devices: bool = True
    """Whether ops on devices run part by part too, or those of the host alone."""


Wired = tuple[tuple[Stream, ...], tuple[Channel, ...]]


@dataclass(frozen=True, slots=True)
class _Session:
    """One call of generate that is handed on in parts."""

    op: str
    parts: tuple[Rows, ...]
    readers: tuple[str, ...]
    """Ops that run once for each part."""
    goes_on: bool
    """Whether what is unfinished goes on in the next step, paused while weights come in."""


def with_sessions(
    graph: Graph, streams: Sequence[Stream], channels: Sequence[Channel], parts: Parts, *, in_turn: bool = True
) -> Wired:
    """The program with its sessions; as it is where no op could use a part. `in_turn`: where several ops of a lane run
    part by part, each part goes through all of them before the next one."""
    found = _sessions(graph, streams, parts) if parts.takes > 1 else []
    if not found:
        return tuple(streams), tuple(channels)
    split = {id: session for session in found for id in (session.op, *session.readers)}
    whole = {i.op: i for stream in streams for i in stream.instructions if i.kind is InstructionKind.RUN}
    pieces = {whole[id].id: _pieces(whole[id], session) for id, session in split.items()}
    apart = [
        replace(stream, instructions=tuple(_stream(stream.instructions, pieces, split, in_turn))) for stream in streams
    ]
    return tuple(apart), tuple(_channels(channels, pieces))


def _sessions(graph: Graph, streams: Sequence[Stream], asked: Parts) -> list[_Session]:
    known = _Known(graph, streams, asked.on_devices)
    found: list[_Session] = []
    taken: set[str] = set()
    for op in graph.ops:
        parts = _parts(known.prompts(op.id), min(asked.takes, MOST_TAKES)) if known.may_open(op) else ()
        readers = known.readers(op, taken, Granularity.SAMPLE) if len(parts) > 1 else ()
        readers = readers or (known.readers(op, taken, Granularity.GROUP) if len(parts) > 1 else ())
        if readers:
            taken |= {op.id, *readers}
            found.append(_Session(op.id, parts, readers, known.goes_on(op)))
    return found


def _parts(prompts: int, takes: int) -> tuple[Rows, ...]:
    """As many equal parts as there may be; the last has whatever is left."""
    count = max(n for n in range(1, takes + 1) if prompts % n == 0)
    size = prompts // count
    return tuple(Rows(start=n * size, stop=None if n + 1 == count else (n + 1) * size) for n in range(count))


class _Known:
    """What decides whether an op takes part in a session."""

    def __init__(self, graph: Graph, streams: Sequence[Stream], reads_on_devices: bool) -> None:
        self.graph, self.reads_on_devices = graph, reads_on_devices
        self.runs: dict[str, list[Instruction]] = defaultdict(list)
        self.lane_of: dict[str, tuple[int, int]] = {}
        for at, stream in enumerate(streams):
            for place, lane in enumerate(stream.lanes):
                self.lane_of |= {i.id: (at, place) for i in lane}
                for i in lane:
                    self.runs[i.op or ""].append(i)
        self.moving = {i.role for stream in streams for i in stream.instructions if i.kind in MOVES}
        self.on_devices = {i.role for stream in streams if stream.slots == 1 for i in stream.instructions}
        self.tied = {id for group in interactions(graph) for id in group}
        self.data = [edge for edge in graph.edges if edge.kind is EdgeKind.DATA]

    def prompts(self, op: str) -> int:
        return rows_of(self.graph).nominal(self.graph.op(op))[0]

    def may_open(self, op: Op) -> bool:
        """A generate call of every step, of a number of rows that is known before it starts."""
        runs = self.runs[op.id]
        plain = len(runs) == 1 and runs[0].every_steps == 1 and self.graph.step.refill is None
        return plain and op.role in self.on_devices and isinstance(op.params, GenerateParams)

    def readers(self, session: Op, taken: set[str], most: Granularity) -> tuple[str, ...]:
        """Ops that can run part by part and read no more than `most` at once, in the order of the graph."""
        below = reachable([session.id], [(edge.source, edge.target) for edge in self.data]) - {session.id}
        found = {session.id}
        grown = True
        while grown:
            fine = {id for id in below - found - taken if self.graph.op(id).granularity.rank <= most.rank}
            more = {id for id in fine if self._reads_parts(id, session, found, below)}
            grown, found = bool(more), found | more
        return tuple(op.id for op in self.graph.ops if op.id in found and op.id != session.id)

    def _reads_parts(self, id: str, session: Op, parts: set[str], below: frozenset[str]) -> bool:
        """Whether it reads parts alone of what the session makes, and stands elsewhere, on devices that its role does
        not leave."""
        op, runs, opened = self.graph.op(id), self.runs[id], self.runs[session.id][0]
        if len(runs) != 1 or id in self.tied or op.role in self.moving:
            return False
        if op.role in self.on_devices and not self.reads_on_devices:
            return False
        if self.graph.role(op.role).kind in (Kind.DATA, Kind.FILTER) or isinstance(op.params, GenerateParams):
            return False
        if rows_of(self.graph).space(op) != frozenset({session.id}):
            return False
        own = runs[0]
        cadence = (own.every_steps, own.start_step, own.epilogue)
        if cadence != (opened.every_steps, opened.start_step, opened.epilogue):
            return False
        elsewhere = self.lane_of[own.id] != self.lane_of[opened.id]
        into = [edge for edge in self.data if edge.target == id]
        made = {edge.source for edge in into if edge.source in below or edge.source == session.id}
        whole = self.prompts(id) == self.prompts(session.id) and not any(edge.tokens for edge in into)
        return elsewhere and whole and bool(made) and made <= parts

    def goes_on(self, op: Op) -> bool:
        """Partial rollouts of a generator that stays and does nothing else."""
        alone = sum(each.role == op.role for each in self.graph.ops) == 1
        receives = any(
            i.role == op.role and i.kind is InstructionKind.RECEIVE_WEIGHTS for own in self.runs.values() for i in own
        )
        return self.graph.schedule.partial_rollout and alone and receives and op.role not in self.moving


def _pieces(run: Instruction, session: _Session) -> tuple[Instruction, ...]:
    """What stands for `run op`: a run for each part, or open, takes and close."""
    count = len(session.parts)
    makes = run.op == session.op
    kind = InstructionKind.TAKE if makes else InstructionKind.RUN
    parts = tuple(
        replace(run, id=f"{kind} {run.op} {n + 1}/{count}", kind=kind, firing=n, firings=count, rows=rows)
        for n, rows in enumerate(session.parts)
    )
    if not makes:
        return parts
    ends = () if session.goes_on else (_other(run, InstructionKind.CLOSE),)
    return (_other(run, InstructionKind.OPEN), *parts, *ends)


def _other(run: Instruction, kind: InstructionKind) -> Instruction:
    return replace(run, id=f"{kind} {run.op}", kind=kind)


def _stream(
    own: Sequence[Instruction],
    pieces: Mapping[str, Sequence[Instruction]],
    split: Mapping[str, _Session],
    in_turn: bool,
) -> Iterator[Instruction]:
    paused = {session.op: session for session in split.values() if session.goes_on}
    roles = {i.role: i for i in own if i.op in paused and i.kind is InstructionKind.RUN}

    def session_of(i: Instruction) -> str:
        session = split.get(i.op or "") if i.id in pieces else None
        return "" if session is None or session.op == i.op else session.op

    for session, group in groupby(_paused(own, roles), key=session_of):
        members = tuple(group)
        if session and in_turn:
            yield from (piece for part in zip(*(pieces[i.id] for i in members), strict=True) for piece in part)
        else:
            yield from (piece for i in members for piece in pieces.get(i.id, (i,)))


def _paused(own: Sequence[Instruction], roles: Mapping[str, Instruction]) -> Iterator[Instruction]:
    """With a pause before the weights of a session that goes on, and its resumption after them."""
    for (role, receives), group in groupby(own, lambda i: (i.role, i.kind is InstructionKind.RECEIVE_WEIGHTS)):
        around = roles.get(role) if receives else None
        yield from [] if around is None else [_other(around, InstructionKind.PAUSE)]
        yield from group
        yield from [] if around is None else [_other(around, InstructionKind.RESUME)]


def _channels(channels: Sequence[Channel], pieces: Mapping[str, Sequence[Instruction]]) -> Iterator[Channel]:
    """Part by part where both ends have parts; else to the first piece, and from the last."""
    for channel in channels:
        source, target = pieces.get(channel.source), pieces.get(channel.target)
        if channel.kind is ChannelKind.INTERACTION:
            yield replace(channel, source=_end(source, 0, channel.source), target=_end(target, 0, channel.target))
        elif source is not None and target is not None and channel.kind is ChannelKind.DATA:
            yield from _part_by_part(channel, _with_rows(source), _with_rows(target))
        else:
            whole = source if source is None or channel.kind is not ChannelKind.DATA else _with_rows(source)
            yield replace(channel, source=_end(whole, -1, channel.source), target=_end(target, 0, channel.target))


def _end(pieces: Sequence[Instruction] | None, place: int, own: str) -> str:
    return own if pieces is None else pieces[place].id


def _with_rows(pieces: Sequence[Instruction]) -> list[Instruction]:
    return [piece for piece in pieces if piece.kind in (InstructionKind.TAKE, InstructionKind.RUN)]


def _part_by_part(
    channel: Channel, sources: Sequence[Instruction], targets: Sequence[Instruction]
) -> Iterator[Channel]:
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        name = f"{channel.id} {number + 1}/{len(sources)}"
        yield replace(channel, id=name, source=source.id, target=target.id)
