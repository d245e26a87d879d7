"""How long responses are: distributions with a mean and a most, tabled as the share that is longer than some tokens.

Takes what a flow, the printed rule or an earlier run says of lengths; gives tables whose integral is the mean. Knows no
hardware.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

CELLS = 64
P99 = 2.3263478740408408
"""The 99th percentile of a standard normal distribution."""


@dataclass(frozen=True, slots=True)
class LengthTable:
    """A distribution of lengths up to `most` tokens, in cells of `width` tokens."""

    width: float
    alive: tuple[float, ...]
    """Share of responses longer than the middle of each cell."""
    mean: float
    square: float
    """Mean of the square."""

    def __hash__(self) -> int:
        return hash((self.width, self.mean, self.square))

    @property
    def most(self) -> float:
        return self.width * len(self.alive)

    @property
    def weighted(self) -> float:
        """Mean length of the response that a token is in, E[L²]/E[L]: what attention costs a token goes with it."""
        return self.square / max(self.mean, 1e-9)

    def padded(self, parts: int) -> float:
        """Mean over `parts` equal parts of the sorted responses of the longest in each."""
        return _padded(self, min(parts, CELLS))

    def longest_of(self, count: float) -> float:
        """Expected longest of `count` responses: the integral of 1 - (1 - s)^count."""
        return _longest_of(self, max(1.0, count))


@lru_cache(maxsize=1024)
def _padded(table: LengthTable, parts: int) -> float:
    total, cell = 0.0, len(table.alive) - 1
    for part in range(parts):
        while cell > 0 and table.alive[cell] <= part / parts + 1e-9:
            cell -= 1
        total += (cell + 1) * table.width
    return max(table.mean, total / parts)


@lru_cache(maxsize=1024)
def _longest_of(table: LengthTable, count: float) -> float:
    return table.width * sum([1.0 - (1.0 - share) ** count for share in table.alive])


@lru_cache(maxsize=1024)
def constant(tokens: float) -> LengthTable:
    """Every response has so many tokens."""
    return LengthTable(tokens / CELLS, (1.0,) * CELLS, tokens, tokens * tokens)


@lru_cache(maxsize=1024)
def lognormal(mean: float, most: float, spread: float) -> LengthTable:
    """Lognormal lengths, cut off at `most`, whose mean after the cut is `mean`. `spread` is the standard deviation of
    the logarithm. A mean at the most is constant."""
    if mean >= 0.995 * most or spread <= 0.0:
        return constant(min(mean, most))
    low, high = math.log(mean) - spread * spread / 2, math.log(most) + 8 * spread
    for _ in range(50):
        middle = (low + high) / 2
        if _cut_mean(middle, most, spread) < mean:
            low = middle
        else:
            high = middle
    center = (low + high) / 2
    return _table(lambda t: _longer(t, center, spread), min(most, math.exp(center + 4.5 * spread)))


def mean_and_p99(mean: float, p99: float, most: float) -> LengthTable:
    """Lognormal with that mean and 99th percentile, cut off at `most`. Before the cut p99/mean is exp(2.33 s - s²/2),
    which no spread takes beyond 15."""
    if p99 <= mean:
        return constant(min(mean, most))
    ratio = min(math.log(p99 / mean), P99 * P99 / 2)
    spread = P99 - math.sqrt(P99 * P99 - 2.0 * ratio)
    return lognormal(mean, most, spread) if p99 < most else lognormal(mean, most, max(spread, 0.1))


@lru_cache(maxsize=64)
def empirical(lengths: tuple[float, ...]) -> LengthTable:
    """Of responses that were measured. Raises ValueError for none."""
    if not lengths:
        raise ValueError("no lengths")
    ordered = sorted(float(each) for each in lengths)
    count, most = len(ordered), max(ordered[-1], 1.0)
    width = most / CELLS
    alive: list[float] = []
    done = 0
    for cell in range(CELLS):
        while done < count and ordered[done] <= (cell + 0.5) * width:
            done += 1
        alive.append((count - done) / count)
    mean = sum(ordered) / count
    return LengthTable(width, tuple(alive), mean, sum(each * each for each in ordered) / count)


def _table(longer: Callable[[float], float], most: float) -> LengthTable:
    width = most / CELLS
    alive = tuple(longer((cell + 0.5) * width) for cell in range(CELLS))
    mean = width * sum(alive)
    square = 2.0 * width * sum((cell + 0.5) * width * share for cell, share in enumerate(alive))
    return LengthTable(width, alive, mean, square)


def _longer(tokens: float, center: float, spread: float) -> float:
    """Share of a lognormal above `tokens`."""
    if tokens <= 0.0:
        return 1.0
    return 0.5 * math.erfc((math.log(tokens) - center) / (spread * math.sqrt(2.0)))


def _cut_mean(center: float, most: float, spread: float) -> float:
    """E[min(L, most)] of a lognormal: exp(c + s²/2)·Φ((ln M - c - s²)/s) + M·P(L > M)."""
    above = _longer(most, center, spread)
    below = 0.5 * math.erfc(-(math.log(most) - center - spread * spread) / (spread * math.sqrt(2.0)))
    return math.exp(center + spread * spread / 2) * below + most * above
