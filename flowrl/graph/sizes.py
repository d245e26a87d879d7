"""Nearest legal sizes: divisors, multiples and shares close to a number. Plain arithmetic for the helps of errors."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from flowrl.graph.graph import Op
from flowrl.graph.params import FilterParams
from flowrl.graph.rows import Rows, share_of

WINDOW = 4096
"""How far from a number a legal one is looked for."""


def nearest_divisors(number: int, near: int) -> tuple[int, ...]:
    """The greatest divisor of `number` below `near` and the least above it, where there is one."""
    divisors = _divisors(number)
    below = [d for d in divisors if d < near]
    above = [d for d in divisors if d > near]
    return (*below[-1:], *above[:1])


def nearest_shares(share: float, count: int) -> tuple[str, ...]:
    """The shares next to `share` that are a whole count, at least one, of `count` rows: as short as they can be
    written."""
    below = int(Fraction(str(share)) * count)
    return tuple(_written(rows, count) for rows in (below, below + 1) if 1 <= rows <= count)


def nearest_legal(is_legal: Callable[[int], bool], near: int) -> tuple[int, ...]:
    """The greatest legal number below `near` and the least above it, as far as `WINDOW` away."""
    below = (n for n in range(near - 1, max(0, near - WINDOW), -1) if is_legal(n))
    above = (n for n in range(near + 1, near + WINDOW) if is_legal(n))
    return tuple(n for n in (next(below, None), next(above, None)) if n is not None)


def is_whole(share: float, count: int) -> bool:
    """Whether a share of so many rows is a whole number of them, and not none."""
    left = share_of(share, count)
    return left.denominator == 1 and left > 0


def dividing(rows: Rows, op: Op, updates: int) -> Callable[[int], bool]:
    """Whether of so many prompts of a step the filters above `op` leave a number that `updates` divides."""
    filters = [f.params for f in rows.filters(op) if isinstance(f.params, FilterParams)]
    groups = [f.keep_top for f in filters if f.keep_top is not None and f.unit == "group"]
    shares = [] if rows.refilled(op) else groups

    def is_legal(count: int) -> bool:
        for share in shares:
            if not is_whole(share, count):
                return False
            count = int(share_of(share, count))
        return count % updates == 0

    return is_legal


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def _written(rows: int, count: int) -> str:
    for digits in range(1, 12):
        text = f"{rows / count:.{digits}f}"
        if share_of(float(text), count) == rows:
            return text.rstrip("0").rstrip(".") if rows == count else text.rstrip("0")
    raise ValueError(f"{rows} of {count} rows cannot be written as a share")
