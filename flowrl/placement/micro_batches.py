"""Sizes of micro-batches that a role may have in place of the one its ops say: where the flow leaves it open.

A size changes no loss, for its denominators are those of a whole minibatch, but roundings: a ratio of two passes over
the same tokens is 1 only if both were cut alike (FR0610). So all ops of a role have one size, and a role of which the
flow writes one keeps all. Takes a workload; gives tokens. Knows no memory and no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from flowrl.graph.graph import Op, Role
from flowrl.graph.params import ForwardParams, ScoreParams, UpdateParams
from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.workload import Workload
from flowrl.plan.plan import Layout

SHRUNK = (2, 4)
"""Parts of the written size that are tried."""
GROWN = (2, 4)
"""Multiples of it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """In tokens, the nearest to the written size first; each cuts some op otherwise than those before it."""

    shrunk: tuple[int, ...] = ()
    grown: tuple[int, ...] = ()
    tokens: float = 0.0
    """That a rank works on in one firing, in the op with the fewest."""


def sizes_of(work: Workload, role: Role, ops: Sequence[Op], layout: Layout) -> Sizes:
    """Other sizes than the written one; none where the flow says one, or nothing is cut into micro-batches."""
    cut = cut_ops(role, ops)
    written = open_size(work, role, cut)
    if written is None:
        return Sizes()
    rows = [_rows(work, op, layout) for op in cut]

    def apart(sizes: Iterable[int]) -> Iterator[int]:
        before = [_held(written, each) for each in rows]
        for size in sizes:
            now = [_held(size, each) for each in rows]
            if now != before:
                yield size
            before = now

    shrunk, grown = (written // part for part in SHRUNK), (written * times for times in GROWN)
    fewest = min(work.rows(op).count * work.lengths(op).mean for op in cut) / layout.dp
    return Sizes(tuple(apart(shrunk)), tuple(apart(grown)), fewest)


def cut_ops(role: Role, ops: Sequence[Op]) -> list[Op]:
    """The ops of a role that work on micro-batches: an engine batches by itself."""
    if role.backend in ENGINES or role.model is None:
        return []
    return [op for op in ops if isinstance(op.params, UpdateParams | ForwardParams | ScoreParams)]


def open_size(work: Workload, role: Role, cut: Sequence[Op]) -> int | None:
    """The size that all of them have by default; None where the flow, a preset or a flag says one."""
    sizes = {getattr(op.params, "micro_batch_tokens", None) for op in cut if work.passes(op) is None}
    if len(sizes) != 1 or any(_is_written(work, role, op) for op in cut):
        return None
    return next(iter(sizes))


def _is_written(work: Workload, role: Role, op: Op) -> bool:
    places = (("roles", role.name, op.method, "micro_batch_tokens"), ("roles", role.name, "micro_batch_tokens"))
    return any(work.request.origin(*place) != "default" for place in places)


def _rows(work: Workload, op: Op, layout: Layout) -> tuple[int, int]:
    """Tokens of the longest row on a device, and of all rows of a rank."""
    longest = ceil(work.lengths(op).most / layout.cp)
    return longest, ceil(work.rows(op).count / layout.dp) * longest


def _held(size: int, rows: tuple[int, int]) -> int:
    """Tokens of a micro-batch on a device: one longest row at least, all rows at most (memory/role.py)."""
    longest, whole = rows
    return max(longest, min(size, whole))
