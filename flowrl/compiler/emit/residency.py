"""Load and offload around the roles of a pool that leave its devices while others work.

Between two steps such a role is off the devices; a run of its neighbouring instructions is enclosed in one load and one
offload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from math import gcd

from flowrl.plan.plan import Pool
from flowrl.program.program import Instruction, InstructionKind


def with_residency(instructions: Sequence[Instruction], pool: Pool) -> tuple[Instruction, ...]:
    """The pool's stream with load and offload put in. A role alone on its pool never leaves it."""
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
        suffix = "" if totals[role] == 1 else f" {seen[role]}/{totals[role]}"
        found.append(_move(InstructionKind.LOAD, role + suffix, own))
        found.extend(own)
        found.append(_move(InstructionKind.OFFLOAD, role + suffix, own))
    return tuple(found)


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
