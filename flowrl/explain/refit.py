"""Refits constants to measured seconds: damped Gauss-Newton (Levenberg 1944, Marquardt 1963) in plain Python.

Constants move by factors, within bounds, and are held to what they were by a prior, so that what the measurements do
not say stays where it was. Takes a function from constants to seconds; knows no plan and no trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from flowrl.machine.profile import Constant

Seconds = Callable[[Mapping[str, float]], Mapping[str, float]]
"""Values of constants → modelled seconds by name."""
ROUNDS = 12
PRIOR_SPREAD = 2.3
"""Standard deviation of the logarithm of a constant around its prior: a factor of ten."""
MEASURED_SPREAD = 0.1
"""Of the logarithm of a measured median around the model."""
WEIGHTY = 0.05
STEP = 0.05
"""Of a logarithm, for a derivative."""
LEAST_EFFECT = 0.01
"""A constant whose doubling changes no seconds by this share is not moved."""


def relevant(constants: Sequence[Constant], seconds: Seconds) -> tuple[Constant, ...]:
    """Those that some of the seconds depend on: where a constant has more of it, they are longer or shorter."""
    start = {each.path: each.prior for each in constants}
    usual = seconds(start)
    found: list[Constant] = []
    for each in constants:
        for value in (min(each.high, 2.0 * each.prior), max(each.low, 0.5 * each.prior)):
            other = seconds({**start, each.path: value})
            if any(abs(other[name] - took) > LEAST_EFFECT * max(took, 1e-12) for name, took in usual.items()):
                found.append(each)
                break
    return tuple(found)


def refit(constants: Sequence[Constant], seconds: Seconds, measured: Mapping[str, float]) -> dict[str, float]:
    """Values within the bounds with the least sum of squared errors of logarithms, prior included. `measured`: seconds
    by name, above 0. Deterministic."""
    logs = [math.log(each.prior) for each in constants]
    bounds = [(math.log(each.low), math.log(each.high)) for each in constants]
    prior = tuple(logs)
    weights = _weights(measured)

    def misses(at: Sequence[float]) -> list[float]:
        modelled = seconds(_values(constants, at))
        told = [
            weights[name] * math.log(max(modelled[name], 1e-12) / max(took, 1e-12)) / MEASURED_SPREAD
            for name, took in measured.items()
        ]
        return told + [(here - there) / PRIOR_SPREAD for here, there in zip(at, prior, strict=True)]

    damping, now = 1e-2, misses(logs)
    for _ in range(ROUNDS):
        slopes = [_slope(misses, logs, place, now) for place in range(len(logs))]
        better = False
        while damping < 1e6 and not better:
            moved = _moved(slopes, now, damping)
            tried = [min(high, max(low, a + b)) for a, b, (low, high) in zip(logs, moved, bounds, strict=True)]
            then = misses(tried)
            better = _square(then) < _square(now) - 1e-9
            damping = damping / 5 if better else damping * 4
            if better:
                logs, now = tried, then
        if not better:
            break
    return _values(constants, logs)


def _weights(measured: Mapping[str, float]) -> dict[str, float]:
    """What takes less than a twentieth of all has less say, the root of its share, but some."""
    whole = sum(measured.values())
    return {name: max(0.1, min(1.0, took / (WEIGHTY * whole)) ** 0.5) for name, took in measured.items()}


def _values(constants: Sequence[Constant], logs: Sequence[float]) -> dict[str, float]:
    return {each.path: math.exp(value) for each, value in zip(constants, logs, strict=True)}


def _slope(
    misses: Callable[[Sequence[float]], list[float]], at: Sequence[float], place: int, now: Sequence[float]
) -> list[float]:
    there = [*at[:place], at[place] + STEP, *at[place + 1 :]]
    return [(then - here) / STEP for then, here in zip(misses(there), now, strict=True)]


def _square(misses: Sequence[float]) -> float:
    return sum(each * each for each in misses)


def _moved(slopes: Sequence[Sequence[float]], now: Sequence[float], damping: float) -> list[float]:
    """(JᵀJ + damping·diag(JᵀJ)) δ = -Jᵀr."""
    count = len(slopes)
    matrix = [
        [sum(a * b for a, b in zip(slopes[i], slopes[j], strict=True)) for j in range(count)] for i in range(count)
    ]
    right = [-sum(a * b for a, b in zip(slope, now, strict=True)) for slope in slopes]
    for i in range(count):
        matrix[i][i] *= 1.0 + damping
    return solved(matrix, right)


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """The solution of a system of linear equations, by elimination with the largest pivot."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    count = len(rows)
    for place in range(count):
        pivot = max(range(place, count), key=lambda row: abs(rows[row][place]))
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for row in range(place + 1, count):
            factor = rows[row][place] / rows[place][place]
            rows[row] = [a - factor * b for a, b in zip(rows[row], rows[place], strict=True)]
    found = [0.0] * count
    for place in reversed(range(count)):
        rest = sum(rows[place][other] * found[other] for other in range(place + 1, count))
        found[place] = (rows[place][count] - rest) / rows[place][place]
    return found
