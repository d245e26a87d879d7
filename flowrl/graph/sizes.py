"""Nearest legal sizes: divisors, multiples and shares close to a number. Plain arithmetic for the helps of errors."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from flowrl.graph.rows import share_of

WINDOW = 4096
"""How far from a number a legal one is looked for."""


def nearest_divisors(number: int, near: int) -> tuple[int, ...]:
    """The greatest divisor of `number` below `near` and the least above it, where there is one."""
    divisors = _divisors(number)
    below = [d for d in divisors if d < near]
    above = [d for d in divisors if d > near]
    return (*below[-1:], *above[:1])


def nearest_multiples(factor: int, near: int) -> tuple[int, ...]:
    """The greatest positive multiple of `factor` below `near` and the least above it."""
    below = near - near % factor
    below = below - factor if below == near else below
    return (*((below,) if below > 0 else ()), near - near % factor + factor)


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


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def _written(rows: int, count: int) -> str:
    for digits in range(1, 12):
        text = f"{rows / count:.{digits}f}"
        if share_of(float(text), count) == rows:
            return text.rstrip("0").rstrip(".") if rows == count else text.rstrip("0")
    raise ValueError(f"{rows} of {count} rows cannot be written as a share")
