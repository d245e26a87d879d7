"""Sessions of a program: what the checker asks of them. See InstructionKind in program.py for what each part does.

A session stands in one lane: opened, its rows taken in order and once, closed before its role leaves the devices or
receives weights. One that is paused while its role receives weights goes on from step to step instead: its stream
begins with the pause, and no close ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flowrl.graph.algorithms import reachable
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.types import Granularity
from flowrl.program.program import MOVES, SESSION, Instruction, InstructionKind, Program, works_whenever

_OPEN, _PAUSED = "open", "paused"


def by_prompt(graph: Graph, instructions: Iterable[Instruction], op: str) -> bool:
    """Whether the takes of a session of `op` give whole prompts: some reader of its parts works on groups."""
    data = [(edge.source, edge.target) for edge in graph.edges if edge.kind is EdgeKind.DATA]
    below = reachable([op], data)
    parts = {i.op for i in instructions if i.kind is InstructionKind.RUN and i.firings > 1 and i.op in below}
    return any(graph.op(id).granularity is Granularity.GROUP for id in parts)


def session_problems(program: Program) -> Iterator[str]:
    """A sentence for each session that is not right."""
    for stream in program.streams:
        for role in dict.fromkeys(i.role for i in stream.instructions if i.kind in SESSION):
            yield from _of_role([i for i in stream.instructions if i.role == role])


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
