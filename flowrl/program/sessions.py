"""Sessions of a program: what the checker asks of them. See InstructionKind in program.py for what each part does.

A session stands in one lane: opened, its rows taken in order and once, closed before its role leaves the devices or
receives weights. One that is paused while its role receives weights goes on from step to step instead: its stream
begins with the pause, and no close ends it. An update whose minibatches are made of what arrives has received every
part that its prompts are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.params import UpdateParams
from flowrl.graph.signatures import LOSSES
from flowrl.graph.types import Granularity
from flowrl.program.program import (
    MOVES,
    SESSION,
    ChannelKind,
    Instruction,
    InstructionKind,
    Program,
    works_whenever,
)

_OPEN, _PAUSED = "open", "paused"


def by_prompt(graph: Graph, instructions: Iterable[Instruction], op: str) -> bool:
    """Whether the takes of a session of `op` give whole prompts: some reader of its parts works on groups, or the
    loss of an update whose minibatches are made of what arrives."""
    data = [(edge.source, edge.target) for edge in graph.edges if edge.kind is EdgeKind.DATA]
    below = reachable([op], data)
    parts = [i for i in instructions if i.kind is InstructionKind.RUN and i.firings > 1 and i.op in below]
    return any(_by_group(graph.op(i.op or ""), i) for i in parts)


def _by_group(op: Op, part: Instruction) -> bool:
    if isinstance(op.params, UpdateParams):
        return part.rows.arrived and LOSSES[op.params.loss].whole_groups
    return op.granularity is Granularity.GROUP


def sessions_that_go_on(program: Program) -> tuple[str, ...]:
    """Ops whose sessions are paused while their role receives weights, and go on from step to step."""
    return tuple(i.op for i in program.instructions if i.kind is InstructionKind.PAUSE and i.op is not None)


def session_problems(program: Program) -> Iterator[str]:
    """A sentence for each session that is not right."""
    for stream in program.streams:
        for role in dict.fromkeys(i.role for i in stream.instructions if i.kind in SESSION):
            yield from _of_role([i for i in stream.instructions if i.role == role])
    yield from _arrivals(program)


def _arrivals(program: Program) -> Iterator[str]:
    by_id = {i.id: i for i in program.instructions}
    into: dict[str, list[Instruction]] = {i.id: [] for i in program.instructions if i.rows.arrived}
    for channel in program.channels:
        if channel.target in into and channel.kind is ChannelKind.DATA:
            into[channel.target].append(by_id[channel.source])
    for id, sources in into.items():
        parts = [i for i in sources if i.kind is InstructionKind.TAKE or (i.firings > 1 and not i.rows.arrived)]
        if not parts:
            yield f"`{id}` trains on what arrives, and no part of a session reaches it"
        for op in dict.fromkeys(i.op for i in parts):
            yield from _covered(by_id[id], [i for i in parts if i.op == op])


def _covered(update: Instruction, parts: Sequence[Instruction]) -> Iterator[str]:
    """Parts that reach it hold all of its prompts."""
    reached = min(i.rows.start for i in parts)
    for i in sorted(parts, key=lambda i: i.rows.start):
        if i.rows.start == reached and i.rows.stop is not None:
            reached = i.rows.stop
        elif i.rows.start == reached:
            return
    if update.rows.start < min(i.rows.start for i in parts) or (update.rows.stop or reached) > reached:
        yield f"`{update.id}` trains on prompts of parts of `{parts[0].op}` that do not reach it"


def _of_role(own: Sequence[Instruction]) -> Iterator[str]:
    parts = [i for i in own if i.kind in SESSION]
    goes_on = parts[0].kind is InstructionKind.PAUSE
    state, reached, taken = _OPEN if goes_on else "", 0, 0
    for i in own:
        if i.kind is InstructionKind.OPEN:
            if state == _PAUSED or (state and not goes_on):
                yield f"`{i.id}` opens a session beside one that is {state}"
            state, reached, taken = _OPEN, 0, 0
            yield from _cadence(i, [each for each in parts if each.op == i.op])
        elif i.kind is InstructionKind.TAKE:
            yield from _take(i, state, reached, taken)
            reached, taken = i.rows.stop or 0, taken + 1
        elif i.kind is InstructionKind.PAUSE:
            yield from [] if state == _OPEN else [f"`{i.id}` pauses what is not open"]
            state = _PAUSED
        elif i.kind is InstructionKind.RESUME:
            yield from [] if state == _PAUSED else [f"`{i.id}` resumes what is not paused"]
            state = _OPEN
        elif i.kind is InstructionKind.CLOSE:
            yield from _close(i, own, state, taken)
            state = ""
        elif state and _disturbs(i, state):
            yield f"`{i.id}` works while the session of its role is {state}"
    if bool(state) is not goes_on:
        yield f"the session of `{parts[0].op}` is not closed" if state else f"`{parts[0].id}` pauses what is not open"


def _take(i: Instruction, state: str, reached: int, taken: int) -> Iterator[str]:
    if state != _OPEN:
        yield f"`{i.id}` takes rows of a session that is not open"
    elif i.firing != taken or i.rows.start != reached:
        yield f"`{i.id}` takes rows from {i.rows.start}, {reached} are next"
    elif (i.rows.stop is None) is not (i.firing + 1 == i.firings):
        yield f"`{i.id}` does not leave the rest to the last"


def _close(i: Instruction, own: Sequence[Instruction], state: str, taken: int) -> Iterator[str]:
    takes = [each.firings for each in own if each.kind is InstructionKind.TAKE and each.op == i.op]
    if state != _OPEN:
        yield f"`{i.id}` closes what is not open"
    elif taken != max(takes, default=0) or not taken:
        yield f"`{i.id}` closes a session of which rows have not been taken"


def _disturbs(i: Instruction, state: str) -> bool:
    """Whether another instruction of the role may not stand here: new weights and checkpoints only while it is paused,
    moves and other ops not at all."""
    harmless = (InstructionKind.RECEIVE_WEIGHTS, InstructionKind.SEND_WEIGHTS, InstructionKind.SAVE)
    return i.kind in (*MOVES, InstructionKind.RUN) or not (state == _PAUSED and i.kind in harmless)


def _cadence(opened: Instruction, parts: Sequence[Instruction]) -> Iterator[str]:
    apart = (i for i in parts if not works_whenever(i, opened) or not works_whenever(opened, i))
    yield from (f"`{i.id}` and `{opened.id}` work in different steps" for i in apart)
