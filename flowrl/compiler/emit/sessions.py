"""Sessions: a generator hands its rows on in parts, so that scoring need not wait for the last of them.

Takes the streams and channels of a program whose ops run whole, and the graph; gives them with `run generate` as open,
takes and close, and with ops that read no more than a part of the rows, elsewhere, as a run for each part. A part is
as many rows as so many prompts have, those that are done next: samples, or whole prompts where nobody reads samples.

What reads more than a group waits for the last part: a whitening over the step, and a minibatch too, which is a fixed
set of prompts. So what comes out does not depend on who was done first, and nothing that a graph says of order is given
up. A flow that lets minibatches be made of whoever is done first (`minibatches: arrival`) has updates that begin with
the first parts: minibatch k of n is the k-th n-th of the samples as they came, or of the prompts where an estimator or
a loss works on groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from flowrl.compiler.emit.known import Known
from flowrl.graph.graph import Graph, Op
from flowrl.graph.types import Granularity
from flowrl.program.program import Channel, ChannelKind, Instruction, InstructionKind, Rows, Stream

MOST_TAKES = 8
"""More parts cost more instructions than they save time."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a program may cut."""

    takes: int
    """Parts of a session at most; 1: none."""
    on_devices: bool = True
    """Whether ops on devices run part by part too, or those of the host alone."""
    updates: bool = False
    """Whether updates begin with the first parts, where they may."""


def most_parts(graph: Graph) -> Parts:
    """All that the flow allows."""
    return Parts(graph.schedule.takes, updates=graph.schedule.minibatches == "arrival")


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
    early: tuple[str, ...] = ()
    """Updates that begin before the last part."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """What stands for instructions of the whole program."""

    pieces: Mapping[str, tuple[Instruction, ...]]
    """By id: a run for each part, or open, takes and close."""
    early: Mapping[str, tuple[int, Instruction]]
    """By id: firings of early updates, and the place of the last part that each of them needs."""
    session_of: Mapping[str, str]
    """Instruction to the op of the session whose parts it reads."""


def with_sessions(
    graph: Graph, streams: Sequence[Stream], channels: Sequence[Channel], parts: Parts, *, in_turn: bool = True
) -> Wired:
    """The program with its sessions; as it is where no op could use a part. `in_turn`: where several ops of a lane run
    part by part, each part goes through all of them before the next one."""
    found = _sessions(graph, streams, parts) if parts.takes > 1 or graph.schedule.partial_rollout else []
    if not found:
        return tuple(streams), tuple(channels)
    cut = _cut(streams, found)
    paused = frozenset(session.op for session in found if session.goes_on)
    apart = [
        replace(stream, instructions=tuple(_stream(stream.instructions, cut, paused, in_turn))) for stream in streams
    ]
    return tuple(apart), tuple(_channels(channels, cut))


def late_updates(graph: Graph, streams: Sequence[Stream], parts: Parts) -> dict[str, str]:
    """Why updates wait for the last part, by op: of those that train on what a session of the whole program would
    make, where minibatches are made of whoever is done first."""
    known, found = Known(graph, streams, parts.on_devices), dict[str, str]()
    for op in graph.ops:
        rows = _parts(known.prompts(op.id), min(parts.takes, MOST_TAKES)) if known.may_open(op) else ()
        cut = known.readers(op, set(), Granularity.GROUP) if len(rows) > 1 else ()
        for update in known.updates(op) if len(rows) > 1 else ():
            why = known.waits(update, op, rows, cut)
            found |= {} if why is None else {update.id: why}
    return found


def _sessions(graph: Graph, streams: Sequence[Stream], asked: Parts) -> list[_Session]:
    known = Known(graph, streams, asked.on_devices)
    found: list[_Session] = []
    taken: set[str] = set()
    for op in graph.ops:
        parts = _parts(known.prompts(op.id), min(asked.takes, MOST_TAKES)) if known.may_open(op) else ()
        session = _session(known, op, parts, taken, asked.updates) if parts else None
        if session is not None:
            taken |= {op.id, *session.readers}
            found.append(session)
    return found


def _session(known: Known, op: Op, parts: tuple[Rows, ...], taken: set[str], updates: bool) -> _Session | None:
    """Of samples, if somebody reads samples; of whole prompts, if somebody reads groups. With `updates` the first of
    both in which an update begins early, if there is one. One that goes on is a session whoever reads it."""
    goes_on = known.goes_on(op)
    if len(parts) == 1:
        return _Session(op.id, parts, (), goes_on) if goes_on else None
    each_way = [known.readers(op, taken, most) for most in (Granularity.SAMPLE, Granularity.GROUP)]
    for readers in each_way if updates else ():
        early = tuple(each.id for each in known.updates(op) if known.waits(each, op, parts, readers) is None)
        if early:
            return _Session(op.id, parts, readers, goes_on, early)
    readers = next(filter(None, each_way), ())
    return _Session(op.id, parts, readers, goes_on) if readers or goes_on else None


def _cut(streams: Sequence[Stream], sessions: Sequence[_Session]) -> _Cut:
    split = {id: session for session in sessions for id in (session.op, *session.readers)}
    trains = {id: session for session in sessions for id in session.early}
    pieces: dict[str, tuple[Instruction, ...]] = {}
    early: dict[str, tuple[int, Instruction]] = {}
    session_of: dict[str, str] = {}
    for i in (i for stream in streams for i in stream.instructions if i.kind is InstructionKind.RUN):
        session = split.get(i.op or "") or trains.get(i.op or "")
        if session is None:
            continue
        if i.op in trains:
            again = any(other.op == i.op and other.rows.start == i.rows.start for _, other in early.values())
            early[i.id] = _early(i, session.parts, again=again)
        else:
            pieces[i.id] = _pieces(i, session)
        session_of |= {} if i.op == session.op else {i.id: session.op}
    return _Cut(pieces, early, session_of)


def _early(firing: Instruction, parts: Sequence[Rows], *, again: bool) -> tuple[int, Instruction]:
    """A firing that trains on prompts as they came, and the part that has the last of them. `again`: of a pass after
    the first, which begins when that is over."""
    needed = [place for place, rows in enumerate(parts) if _overlap(rows, firing.rows)]
    made = replace(firing, rows=replace(firing.rows, arrived=True))
    return (len(parts) - 1 if again else needed[-1]), made


def _overlap(one: Rows, other: Rows) -> bool:
    first, second = sorted((one, other), key=lambda rows: rows.start)
    return first.stop is None or second.start < first.stop


def _parts(prompts: int, takes: int) -> tuple[Rows, ...]:
    """As many equal parts as there may be; the last has whatever is left."""
    count = max(n for n in range(1, takes + 1) if prompts % n == 0)
    size = prompts // count
    return tuple(Rows(start=n * size, stop=None if n + 1 == count else (n + 1) * size) for n in range(count))


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


def _stream(own: Sequence[Instruction], cut: _Cut, paused: Collection[str], in_turn: bool) -> Iterator[Instruction]:
    roles = {i.role: i for i in own if i.op in paused and i.kind is InstructionKind.RUN}
    for session, group in groupby(_paused(own, roles), key=lambda i: cut.session_of.get(i.id, "")):
        placed = [each for i in group for each in _placed(i, cut)]
        yield from (piece for _, piece in (sorted(placed, key=lambda each: each[0]) if session and in_turn else placed))


def _placed(i: Instruction, cut: _Cut) -> Iterator[tuple[int, Instruction]]:
    """What stands for an instruction, each with the place of its part."""
    if i.id in cut.early:
        yield cut.early[i.id]
    else:
        yield from enumerate(cut.pieces.get(i.id, (i,)))


def _paused(own: Sequence[Instruction], roles: Mapping[str, Instruction]) -> Iterator[Instruction]:
    """With a pause before the weights of a session that goes on, and its resumption after them."""
    for (role, receives), group in groupby(own, lambda i: (i.role, i.kind is InstructionKind.RECEIVE_WEIGHTS)):
        around = roles.get(role) if receives else None
        yield from [] if around is None else [_other(around, InstructionKind.PAUSE)]
        yield from group
        yield from [] if around is None else [_other(around, InstructionKind.RESUME)]


def _channels(channels: Sequence[Channel], cut: _Cut) -> Iterator[Channel]:
    """Part by part where both ends have parts; from the parts that an early update needs; else to the first piece, and
    from the last."""
    for channel in channels:
        source, target = cut.pieces.get(channel.source), cut.pieces.get(channel.target)
        if channel.kind is ChannelKind.INTERACTION:
            yield replace(channel, source=_end(source, 0, channel.source), target=_end(target, 0, channel.target))
        elif source is not None and target is not None and channel.kind is ChannelKind.DATA:
            yield from _part_by_part(channel, _with_rows(source), _with_rows(target))
        elif source is not None and channel.target in cut.early and channel.kind is ChannelKind.DATA:
            yield from _from_parts(channel, _with_rows(source), cut.early[channel.target][1])
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


def _from_parts(channel: Channel, sources: Sequence[Instruction], update: Instruction) -> Iterator[Channel]:
    needed = [source for source in sources if _overlap(source.rows, update.rows)]
    for number, source in enumerate(needed):
        name = channel.id if len(needed) == 1 else f"{channel.id} {number + 1}/{len(needed)}"
        yield replace(channel, id=name, source=source.id)
