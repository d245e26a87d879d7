"""The ledger at every instant: each state that a pool's stream passes through is one that a phase of the plan counts.

Takes a program with the graph, pools and memory of its plan; gives, for each instruction, the phase that covers it.
What no phase covers is our fault, never the user's. Knows which roles a phase has on the devices (the files phases.py
and sync.py of placement/memory say it in bytes), no bytes of any role and no durations.

A step leaves the roles of a pool where it found them, so one step of each kind stands for all: the first, each that
some validation or warm-up works in, and the epilogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import lcm

from flowrl.compiler.emit.instructions import role_of_end
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Edge, EdgeKind, Graph
from flowrl.machine.sync import DIRECT
from flowrl.plan.plan import Memory, Pool
from flowrl.program.program import MOVES, Instruction, InstructionKind, Program, Stream, is_idle


class Held(IntEnum):
    """How much of a role is on its devices; each holds no more than the next."""

    AWAY = 0
    """What an engine leaves behind, of others nothing."""
    WEIGHTS = 1
    """An engine without its cache."""
    WHOLE = 2


@dataclass(frozen=True, slots=True)
class Instant:
    """While an instruction works, in one kind of step."""

    instruction: str
    held: Mapping[str, Held]
    """Of each role of the pool."""
    phase: str
    """The first phase of the ledger that counts all of it."""
    peak_bytes: int
    """Of the phase, on the device that it fills most."""
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase of the ledger: whom it has on the devices, and what it counts of an instruction's own work."""

    name: str
    held: Mapping[str, Held]
    work: str | None = None

    def covers(self, held: Mapping[str, Held], work: str | None) -> bool:
        return work in (None, self.work) and all(self.held[role] >= level for role, level in held.items())


def check_ledger(
    program: Program, graph: Graph, pools: Sequence[Pool], memory: Sequence[Memory], *, fits: bool = True
) -> tuple[Instant, ...]:
    """Raise InternalError unless a phase of `memory` covers the program at every instant and, if the plan `fits`, none
    of them is over its limit. Gives what covers what."""
    found: dict[tuple[str, str], Instant] = {}
    problems: list[str] = []
    for pool in pools:
        stream = next((s for s in program.streams if s.pool == pool.name), None)
        if stream is None or not pool.devices:
            continue
        own = [entry for entry in memory if entry.pool == pool.name]
        for each in _walk(stream, pool, _phases(graph, pool, own), own):
            if isinstance(each, str):
                problems.append(f"pool {pool.name}: {each}")
                continue
            found[each.instruction, each.phase] = each
            if fits and each.peak_bytes > each.limit_bytes:
                problems.append(
                    f"pool {pool.name}: `{each.instruction}` works in phase `{each.phase}`, "
                    f"{each.peak_bytes:,} of {each.limit_bytes:,} bytes"
                )
    if problems:
        lines = "\n".join(f"  {problem}" for problem in dict.fromkeys(problems))
        raise InternalError(f"the program is not within its ledger:\n{lines}")
    return tuple(found.values())


def _walk(stream: Stream, pool: Pool, phases: Sequence[_Phase], memory: Sequence[Memory]) -> Iterator[Instant | str]:
    """Instants of the stream, in each kind of step; a sentence for what is wrong."""
    peaks = _fullest(memory)
    for step, steps in _kinds_of_step(stream):
        held = border = _at_border(stream, pool)
        for instruction in stream.instructions:
            if is_idle(instruction, step, steps):
                continue
            during, after = _moved(instruction, held)
            phase = _covering(instruction, during, phases)
            if phase is None:
                yield f"no phase of the ledger counts `{instruction.id}` with {_said(during)} on the devices"
            else:
                peak, limit = peaks[phase.name]
                yield Instant(instruction.id, during, phase.name, peak, limit)
            held = after
        if held != border:
            yield f"a step begins with {_said(border)} on the devices and ends with {_said(held)}"


def _at_border(stream: Stream, pool: Pool) -> dict[str, Held]:
    """Between two steps: what moves is away, all else has been there since the start."""
    moved = {i.role for i in stream.instructions if i.kind in MOVES}
    return {entry.role: Held.AWAY if entry.role in moved else Held.WHOLE for entry in pool.roles}


def _moved(instruction: Instruction, held: Mapping[str, Held]) -> tuple[dict[str, Held], dict[str, Held]]:
    """While it works and after it. What comes is there from its start, what goes until its end."""
    came = {
        InstructionKind.LOAD: Held.WHOLE,
        InstructionKind.WAKE_WEIGHTS: Held.WEIGHTS,
        InstructionKind.WAKE_CACHE: Held.WHOLE,
    }.get(instruction.kind, Held.AWAY)
    during = {**held, instruction.role: max(held[instruction.role], came)}
    left = Held.AWAY if instruction.kind is InstructionKind.OFFLOAD else during[instruction.role]
    return during, {**during, instruction.role: left}


def _covering(instruction: Instruction, held: Mapping[str, Held], phases: Sequence[_Phase]) -> _Phase | None:
    """The first phase that counts the state, those of the instruction's own role before others."""
    work = _work(instruction)
    own = [phase for phase in phases if held[instruction.role] and phase.held[instruction.role]]
    return next((phase for phase in [*own, *phases] if phase.covers(held, work)), None)


def _work(instruction: Instruction) -> str | None:
    """What the instruction needs beside what its role holds; moves and checkpoints nothing."""
    match instruction.kind:
        case InstructionKind.RUN | InstructionKind.OPEN | InstructionKind.TAKE:
            return instruction.op
        case InstructionKind.SEND_WEIGHTS | InstructionKind.RECEIVE_WEIGHTS:
            return f"{instruction.kind} {instruction.edge}"
        case _:
            return None


def _phases(graph: Graph, pool: Pool, memory: Sequence[Memory]) -> list[_Phase]:
    """The phases that the ledger has of a pool, in its order. Starting an engine is counted against a limit of its own
    and covers nothing."""
    there = {entry.phase for entry in memory}
    return [phase for phase in _possible(graph, pool, there) if phase.name in there]


def _possible(graph: Graph, pool: Pool, there: set[str]) -> Iterator[_Phase]:
    stays = {entry.role: Held.AWAY if entry.offloaded else Held.WHOLE for entry in pool.roles}
    for role in stays:
        yield _Phase(f"load {role}", {**stays, role: Held.WHOLE})
    for op in graph.ops:
        if op.role in stays:
            yield _Phase(op.id, {**stays, op.role: Held.WHOLE}, op.id)
    for edge in graph.edges:
        if edge.kind is EdgeKind.WEIGHTS:
            yield from _hand_over(edge, stays, there)


def _hand_over(edge: Edge, stays: Mapping[str, Held], there: set[str]) -> Iterator[_Phase]:
    source, target = role_of_end(edge.source), role_of_end(edge.target)
    name = f"{source} => {target}"
    if source in stays:
        yield _Phase(f"send_weights {name}", {**stays, source: Held.WHOLE}, f"send_weights {edge.id}")
    if target not in stays:
        return
    meets = {source: Held.WHOLE} if source in stays and edge.transport in DIRECT else {}
    first = Held.WEIGHTS if f"wake_cache {name}" in there else Held.WHOLE
    receiving = {**stays, **meets, target: max(first, stays[target])}
    yield _Phase(f"wake_weights {name}", receiving)
    yield _Phase(f"receive_weights {name}", receiving, f"receive_weights {edge.id}")
    yield _Phase(f"wake_cache {name}", {**stays, target: Held.WHOLE})


def _fullest(memory: Sequence[Memory]) -> dict[str, tuple[int, int]]:
    """Peak and limit of each phase, on the devices that it leaves least room on."""
    found: dict[str, tuple[int, int]] = {}
    for entry in memory:
        peak, limit = found.get(entry.phase, (0, entry.limit_bytes))
        if entry.limit_bytes - entry.peak_bytes <= limit - peak:
            found[entry.phase] = (entry.peak_bytes, entry.limit_bytes)
    return found


def _kinds_of_step(stream: Stream) -> Iterator[tuple[int, int]]:
    """A step of each kind, and the steps of a run that has it: step 1 + L for every least common multiple L of some of
    the periods, after every warm-up; there works exactly what has a period that divides L. Then the epilogue. (A
    checkpoint's step may be any; what carries it works in all.)"""
    periods = sorted({i.every_steps for i in stream.instructions if i.kind is not InstructionKind.SAVE})
    multiples = {1}
    for period in periods:
        multiples |= {lcm(period, other) for other in multiples}
    starts = sorted({0} | {i.start_step for i in stream.instructions})
    steps = {1} | {1 + each * -(-start // each) for start in starts for each in multiples}
    steps |= {1 + each * -(-(start + 1) // each) for start in starts for each in multiples}
    most = max(steps) + 1
    yield from ((step, step) for step in sorted(steps))
    yield from ((step, most) for step in sorted(steps))
    yield most + 1, most


def _said(held: Mapping[str, Held]) -> str:
    """`actor_infer (weights), critic (whole)`."""
    there = [f"{role} ({level.name.lower()})" for role, level in held.items() if level]
    return ", ".join(there) or "nobody"
