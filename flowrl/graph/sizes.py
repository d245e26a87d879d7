"""Nearest legal sizes: divisors, multiples and shares close to a number. Plain arithmetic for the helps of errors."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

from flowrl.graph.rows import share_of


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


def whole_for_share(share: float, updates: int, samples: int = 1) -> int:
    """The least number of prompts, with `samples` rows each, whose `share` is a whole number of rows that `updates`
    divides; all other such numbers are its multiples."""
    exact = Fraction(str(share)) * samples
    factor = updates * exact.denominator
    return factor // gcd(factor, exact.numerator)


def _divisors(number: int) -> list[int]:
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def _written(rows: int, count: int) -> str:
    for digits in range(1, 12):
        text = f"{rows / count:.{digits}f}"
        if share_of(float(text), count) == rows:
            return text.rstrip("0").rstrip(".") if rows == count else text.rstrip("0")
    raise ValueError(f"{rows} of {count} rows cannot be written as a share")
