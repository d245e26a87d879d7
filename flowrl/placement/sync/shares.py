"""How much of a model the ranks of a cut hold, without going over ranks: the least, the most, and all of them together.

Ranks that hold the same shards are counted once (`held` of overlap.py goes over each). Takes classes of tensors and a
cut; gives elements. Knows no links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import lcm

from flowrl.placement.sync.cuts import Cut, axis_of, block_place, edges
from flowrl.placement.sync.overlap import held
from flowrl.placement.sync.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Shares:
    """Elements that ranks hold."""

    least: int
    most: int
    together: int


@lru_cache(maxsize=4096)
def shares_of(tensors: tuple[Tensors, ...], cut: Cut) -> Shares:
    """Of all ranks of a cut."""
    if cut.style == "rows" and cut.ep > 1:
        each = held(tensors, cut)
        return Shares(min(each), max(each), sum(each))
    kinds = [*(_sharded(tensors, cut) if cut.style in ("rows", "flat") else _blocks(tensors, cut))]
    sizes = [size for size, _ in kinds]
    return Shares(min(sizes), max(sizes), sum(size * ranks for size, ranks in kinds))


def _blocks(tensors: tuple[Tensors, ...], cut: Cut) -> Iterator[tuple[int, int]]:
    """Of Megatron and engines: what a rank holds repeats over the ranks of a stage."""
    here = cut.tp * cut.rest
    period = min(here, lcm(cut.tp, cut.expert_tp * cut.ep))
    for stage in range(cut.pp):
        for local in range(period):
            held_here = sum(_of_block(each, cut, stage, local) for each in tensors)
            yield held_here, len(range(local, here, period))


def _of_block(tensors: Tensors, cut: Cut, stage: int, local: int) -> int:
    place = block_place(cut, tensors.rule, stage, local)
    if place is None:
        return 0
    size = tensors.copies
    for side, at in zip(edges(cut, tensors), place, strict=True):
        size *= side[at + 1] - side[at]
    return size


def _sharded(tensors: tuple[Tensors, ...], cut: Cut) -> Iterator[tuple[int, int]]:
    """Of FSDP and ZeRO: along the ranks that share a copy, a class is cut into equal parts, a smaller and empty ones,
    so that few ranks differ from their neighbours."""
    tp = 1 if cut.style == "flat" else cut.tp
    copies, more = divmod(cut.ranks // tp, cut.shard)
    for rank in range(tp):
        sizes = [_of_rank(each, cut, rank) for each in tensors]
        marks = {0, cut.shard}
        for size, _ in sizes:
            whole = size // max(1, -(-size // cut.shard))
            marks |= {mark for mark in (whole, whole + 1) if mark < cut.shard}
        for first, end in pairwise(sorted(marks)):
            ranks = (end - first) * copies + max(0, min(end, more) - first)
            if ranks:
                yield sum(_chunk(size, cut.shard, first) * times for size, times in sizes), ranks


def _of_rank(tensors: Tensors, cut: Cut, tp: int) -> tuple[int, int]:
    """What is cut again over the ranks that share a copy, of what a tp rank has, and how often there is such a thing:
    of a class its rows, or of ZeRO the elements of a matrix."""
    times = tensors.copies * len(tensors.layers) * tensors.experts
    if cut.style == "flat":
        return tensors.rows * tensors.columns, times
    match axis_of(cut, tensors.rule):
        case "column":
            return _chunk(tensors.rows, cut.tp, tp), times * tensors.columns
        case "row":
            return tensors.rows, times * _chunk(tensors.columns, cut.tp, tp)
        case _:
            return tensors.rows, times * tensors.columns


def _chunk(size: int, parts: int, at: int) -> int:
    """Of torch.chunk's parts the one at a place: equal parts rounded up, the last ones smaller or empty."""
    each = -(-size // parts)
    return min(size, each * (at + 1)) - min(size, each * at)
