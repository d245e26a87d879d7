"""The order of a mix: which source each place draws from, and which of the source's own draws that is. Pure numbers.

An epoch of a mix is the fewest places in which every source is seen whole at its share: max_i ceil(size_i / share_i).
Each epoch draws the same count from a source; which rows these are is the source's own order, which goes on from epoch
to epoch. Memory: nine bytes a place of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import IntArray

SHUFFLE, SEQUENTIAL, INTERLEAVE = "shuffle", "sequential", "interleave"
_SLACK = 1e-9
"""Of a count that floating point has put beside a whole number."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The places of one epoch, in the order of `interleave` or `sequential`."""

    source: npt.NDArray[np.int64]
    """[size]: number of the source that a place draws from."""
    rank: npt.NDArray[np.int64]
    """[size]: how many places before it draw from the same source."""
    counts: tuple[int, ...]
    """Draws of an epoch from each source."""


def counts_of(sizes: Sequence[int], shares: Sequence[float]) -> tuple[int, ...]:
    """Draws of an epoch from each source: its size at least, in the proportion of the shares, by the largest remainder
    (Hamilton's method: each count is within one of share x size of the epoch)."""
    whole = sum(shares)
    size = max(ceil(rows * whole / share - _SLACK) for rows, share in zip(sizes, shares, strict=True))
    exact = [size * share / whole for share in shares]
    counts = [int(each + _SLACK) for each in exact]
    left = sorted(range(len(counts)), key=lambda i: (counts[i] - exact[i], i))
    for i in left[: size - sum(counts)]:
        counts[i] += 1
    return tuple(max(1, count) for count in counts)


def draws(sizes: Sequence[int], shares: Sequence[float], order: str) -> Draws:
    """`sequential`: source after source; else evenly spread, the j-th of n draws at (j + 1/2) / n of the epoch, of
    equal places the source that is named first (`shuffle` permutes these)."""
    counts = counts_of(sizes, shares)
    source = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    rank = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    if order == SEQUENTIAL:
        return Draws(source, rank, counts)
    spread = (rank + 0.5) / np.asarray(counts, dtype=np.float64)[source]
    places = np.argsort(spread, kind="stable")
    return Draws(source[places], rank[places], counts)


def draw(of: Draws, epoch: int, place: int, permuted: IntArray | None) -> tuple[int, int]:
    """Source and number, counted from 0 over all epochs, of the draw at `place` of `epoch`. `permuted`: the epoch's
    shuffle of places, if it is shuffled."""
    at = place if permuted is None else int(permuted[place])
    number = int(of.source[at])
    return number, epoch * of.counts[number] + int(of.rank[at])
