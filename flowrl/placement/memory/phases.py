"""The phases of a pool: which roles are at work in each, and what all hold then. See pool.py for their names.

Takes the roles of a pool as Sides, in ledger lines or in bytes; gives what a device holds in every phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from flowrl.graph.graph import EdgeKind, Graph
from flowrl.placement.memory.sides import Side, T
from flowrl.placement.memory.sync import sync_phases

Stages = Mapping[str, int]
"""The pipeline stage of each role on a device."""


def phases(
    graph: Graph, sides: Sequence[Side[T]], stages: Stages, always: T, zero: T
) -> Iterator[tuple[str, T, int | None]]:
    """Name, what is held, and the limit where it is not the device's own. `always` is held in every phase, `zero` is
    nothing."""
    left = {side.name: side.left(stages[side.name]) for side in sides}

    def beside(*active: str) -> T:
        """What the others leave, and what is always there."""
        found = zero
        for name, each in left.items():
            if name not in active:
                found = found + each
        return found + always

    def grown(active: Side[T]) -> T:
        found = zero
        for each in sides if active.wakes else ():
            found = found + each.grown(stages[each.name])
        return found

    by_name = {side.name: side for side in sides}
    rest = {side.name: grown(side) + beside(side.name) for side in sides}
    for side in sides:
        load, start = side.load(stages[side.name]), side.start()
        if load is not None:
            yield f"load {side.name}", load + rest[side.name], None
        if start is not None:
            yield f"start {side.name}", start[0], start[1]
    for op in graph.ops:
        side = by_name.get(op.role)
        if side is not None:
            yield op.id, side.at_work(op, stages[side.name]) + rest[side.name], None
    for edge in graph.edges:
        if edge.kind is not EdgeKind.WEIGHTS:
            continue
        ends = [by_name.get(end.split(".")[0]) for end in (edge.source, edge.target)]
        source, target = (end if end is not None and end.has_model else None for end in ends)
        others = beside(*(end.name for end in (source, target) if end is not None))
        for phase, receives, lines in sync_phases(edge, source, target, stages, zero):
            more = grown(target) if target is not None and receives else zero
            yield phase, lines + more + others, None


@lru_cache(maxsize=4096)
def stage_groups(pps: tuple[int, ...], devices: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Runs of devices that have the same stage of every role: first, end, and the stages. Ranks of a role run tp
    fastest, then cp, dp and pp (Megatron Core's default order), so stages are contiguous blocks."""
    starts = sorted({-(-stage * devices // pp) for pp in pps for stage in range(pp)}) or [0]
    ends = [*starts[1:], devices]
    return tuple(
        (first, end, tuple(first * pp // devices for pp in pps)) for first, end in zip(starts, ends, strict=True)
    )
