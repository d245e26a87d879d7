"""Figures that a measurement gives, and the few statistics behind them. Knows no machine and no profile.

A figure is the median of its repeats; its spread is the distance of the quartiles over the median, so that one slow
repeat on a busy machine moves neither much.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_REPEATS = 3
LONGEST = 4.0
"""In units of the seconds asked for: work so slow that three repeats take longer is repeated less."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of repeats of the same work."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Relative: quartile distance over the median."""
        if len(self.seconds) < LEAST_REPEATS:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / max(self.median, 1e-12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`path` is that of a profile (`device.cpu.train`); None for a figure that is only told."""

    path: str | None
    value: float
    text: str
    """What was measured, with its unit, for people."""
    spread: float = 0.0
    """Relative: of the repeats, or of what a fit leaves."""
    repeats: int = 1


def timed(work: Callable[[], object], wait: Callable[[], None], seconds: float, most: int = 50) -> Times:
    """Repeat `work` for about `seconds`, at least three times unless they would take four times as long, after one
    repeat that warms up. `wait`: until the device is done."""
    work()
    wait()
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < most:
        spent = time.perf_counter() - began
        if found and spent > seconds * (LONGEST if len(found) < LEAST_REPEATS else 1.0):
            break
        start = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - start)
    return Times(tuple(found))


def fit(
    rows: Sequence[Sequence[float]], seconds: Sequence[float], known: Sequence[float] | None = None
) -> tuple[list[float], float]:
    """Coefficients ≥ 0 of `known + rows @ coefficients ≈ seconds` with the least sum of squared relative errors, and
    the root of their mean square. Coefficients that would be negative are set to 0, the others fitted anew."""
    rest = 1.0 - np.asarray(known if known is not None else [0.0], dtype=np.float64) / np.asarray(seconds)
    matrix = np.asarray(rows, dtype=np.float64) / np.asarray(seconds, dtype=np.float64)[:, None]
    kept = list(range(matrix.shape[1]))
    while kept:
        found, *_ = np.linalg.lstsq(matrix[:, kept], rest * np.ones(len(matrix)), rcond=None)
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found)))
    whole = [0.0] * matrix.shape[1]
    for place, value in zip(kept, found if kept else [], strict=True):
        whole[place] = float(value)
    left = matrix @ np.asarray(whole) - rest
    return whole, float(np.sqrt(np.mean(left * left)))
