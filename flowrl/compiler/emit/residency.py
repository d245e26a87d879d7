"""Load and offload around the roles of a pool that leave its devices while others work.

Between two steps such a role is off the devices; a run of its neighbouring instructions is enclosed in one load and one
offload. An engine that can be woken in two parts and receives weights in its visit wakes its weights, receives, and
wakes its cache only then: a pool never holds a cache beside weights that are still coming in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from math import gcd

from flowrl.plan.plan import Memory, Pool
from flowrl.program.program import Instruction, InstructionKind


def staged_roles(memory: Sequence[Memory]) -> frozenset[str]:
    """Engines that wake in two parts: those whose ledger counts the cache apart (`wake_cache A => B`)."""
    apart = (entry.phase.partition(" => ")[2] for entry in memory if entry.phase.startswith("wake_cache "))
    return frozenset(apart)


def with_residency(
    instructions: Sequence[Instruction], pool: Pool, staged: Collection[str] = ()
) -> tuple[Instruction, ...]:
    """The pool's stream with load and offload put in; engines that are `staged` wake in two parts where they receive
    weights. A role alone on its pool never leaves it."""
    offloaded = {placed.role for placed in pool.roles if placed.offloaded}
    visits = [(role, tuple(own)) for role, own in groupby(instructions, key=lambda i: i.role)]
    if len({role for role, _ in visits}) == 1:
        return tuple(instructions)
    totals = Counter(role for role, _ in visits)
    seen: Counter[str] = Counter()
    found: list[Instruction] = []
    for role, own in visits:
        seen[role] += 1
        if role not in offloaded:
            found.extend(own)
            continue
        name = role if totals[role] == 1 else f"{role} {seen[role]}/{totals[role]}"
        found.extend(_visit(name, own, wakes_apart=role in staged))
    return tuple(found)


def _visit(name: str, own: Sequence[Instruction], *, wakes_apart: bool) -> Iterator[Instruction]:
    """Each move at its earliest legal place: weights when the role before has left, the cache when all new weights are
    in, off after the last instruction."""
    received = [place for place, i in enumerate(own) if i.kind is InstructionKind.RECEIVE_WEIGHTS]
    if not wakes_apart or not received:
        yield _move(InstructionKind.LOAD, name, own)
        yield from own
    else:
        yield _move(InstructionKind.WAKE_WEIGHTS, name, own)
        yield from own[: received[-1] + 1]
        yield _move(InstructionKind.WAKE_CACHE, name, own)
        yield from own[received[-1] + 1 :]
    yield _move(InstructionKind.OFFLOAD, name, own)


def _move(kind: InstructionKind, name: str, around: Sequence[Instruction]) -> Instruction:
    """Works in every step in which one of the instructions it encloses does."""
    return Instruction(
        id=f"{kind} {name}",
        kind=kind,
        pool=around[0].pool,
        role=around[0].role,
        every_steps=gcd(*(1 if i.kind is InstructionKind.SAVE else i.every_steps for i in around)),
        start_step=min(i.start_step for i in around),
        epilogue=any(i.epilogue for i in around),
    )
