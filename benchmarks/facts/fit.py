"""Fits the free constants of a profile to measured step times, and again with each family left out.

Gauss-Newton on log(predicted / measured) in the scaled constants, with finite differences, Huber weights (so that a few
odd records do not lead) and a prior around the profile's own prior values (so that what the data does not show stays
where physics put it). A fit without one family starts from the fit on all and uses its derivatives, which hardly move
between the two; its predictions are made anew. Between the first and the last prediction, which are simulated, step
times come from the critical circles that are known (predict.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from flowrl.machine.profile import Constant, Profile, free_constants, value_of, with_constants

Array = NDArray[np.float64]

HUBER = 0.25
"""Log errors beyond it count linearly."""
PRIOR_SHARE = 0.35
"""Standard deviation of a constant's prior, as a share of its allowed range (on its scale)."""
NOISE = 0.2
"""Standard deviation of a log error that is as good as it gets: weighs data against priors."""
DIFFERENCE = 0.03
LARGEST_STEP = 0.25
ROUNDS = 3
FINE = 0.02


@dataclass(frozen=True)
class Point:
    """A measured step time, and what predicts it."""

    family: str
    names: frozenset[str]
    """Device, backends and, of a mixture of experts, `moe`: which constants can matter."""
    measured: float
    weight: float
    quick: Callable[[Profile], float]
    exact: Callable[[Profile], float]


@dataclass(frozen=True)
class Fit:
    profile: Profile
    predicted: tuple[float, ...]
    """By point, under `profile`."""
    left_out: tuple[float, ...]
    """By point, under the constants that were fitted without its family."""
    constants: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]]
    """Lowest and highest value of each constant over the fits with a family left out."""


class Scale:
    """The constants as numbers between 0 and 1: by their logarithm, or as they are where 0 is allowed."""

    def __init__(self, constants: Sequence[Constant]) -> None:
        self.constants = tuple(constants)

    def of(self, values: Sequence[float]) -> Array:
        return np.array([self._scaled(c, v) for c, v in zip(self.constants, values, strict=True)])

    def values(self, scaled: Array) -> dict[str, float]:
        return {c.path: self._value(c, float(s)) for c, s in zip(self.constants, scaled, strict=True)}

    @staticmethod
    def _scaled(constant: Constant, value: float) -> float:
        value = min(max(value, constant.low), constant.high)
        if constant.low > 0:
            return log(value / constant.low) / log(constant.high / constant.low)
        return (value - constant.low) / (constant.high - constant.low)

    @staticmethod
    def _value(constant: Constant, scaled: float) -> float:
        if constant.low > 0:
            return float(constant.low * (constant.high / constant.low) ** scaled)
        return constant.low + scaled * (constant.high - constant.low)


def fit(profile: Profile, points: Sequence[Point], rounds: int = ROUNDS) -> Fit:
    """Fit on all points and without each family."""
    constants = [c for c in free_constants(profile) if c.high > c.low]
    scale = Scale(constants)
    prior = scale.of([c.prior for c in constants])
    start = scale.of([value_of(profile, c.path) for c in constants])
    problem = _Problem(profile, scale, prior, tuple(points))
    found = problem.solve(start, rounds)
    best = with_constants(profile, scale.values(found))
    predicted = tuple(point.exact(best) for point in points)
    errors, slopes = problem.errors(found), problem.slopes(found)
    left_out, spread = list(predicted), [found]
    for family in dict.fromkeys(point.family for point in points):
        kept = np.array([point.family != family for point in points])
        if not kept.any():
            continue
        without = problem.step(found, errors, slopes, kept, times=3)
        spread.append(without)
        other = with_constants(profile, scale.values(without))
        for index, point in enumerate(points):
            if point.family == family:
                left_out[index] = point.quick(other)
    tried = [scale.values(each) for each in spread]
    return Fit(
        profile=best,
        predicted=predicted,
        left_out=tuple(left_out),
        constants=scale.values(found),
        spread={c.path: (min(t[c.path] for t in tried), max(t[c.path] for t in tried)) for c in constants},
    )


class _Problem:
    def __init__(self, profile: Profile, scale: Scale, prior: Array, points: tuple[Point, ...]) -> None:
        self.profile, self.scale, self.prior, self.points = profile, scale, prior, points
        self.weights = np.array([point.weight for point in points])

    def errors(self, scaled: Array) -> Array:
        """log(predicted / measured) of each point."""
        profile = with_constants(self.profile, self.scale.values(scaled))
        made = [point.quick(profile) for point in self.points]
        return np.array([log(max(p, 1e-9) / point.measured) for p, point in zip(made, self.points, strict=True)])

    def slopes(self, scaled: Array) -> Array:
        """Derivatives of the errors by the scaled constants."""
        here, columns = self.errors(scaled), list[Array]()
        for index, constant in enumerate(self.scale.constants):
            way = DIFFERENCE if scaled[index] + DIFFERENCE <= 1 else -DIFFERENCE
            moved = scaled.copy()
            moved[index] += way
            profile = with_constants(self.profile, self.scale.values(moved))
            columns.append(
                np.array([self._slope(constant, p, profile, h) / way for p, h in zip(self.points, here, strict=True)])
            )
        return np.stack(columns, axis=1)

    @staticmethod
    def _slope(constant: Constant, point: Point, profile: Profile, here: float) -> float:
        """A constant of one device or backend says nothing of the others."""
        part, name = constant.path.split(".")[:2]
        if (part in ("device", "backend") and name.partition("@")[0] not in ("gpu", *point.names)) or (
            part == "moe" and part not in point.names
        ):
            return 0.0
        return log(max(point.quick(profile), 1e-9) / point.measured) - here

    def cost(self, scaled: Array, errors: Array, kept: Array) -> float:
        size = np.abs(errors)
        robust = np.where(size <= HUBER, size**2, HUBER * (2 * size - HUBER)) / NOISE**2
        return float((robust * self.weights)[kept].sum() + (((scaled - self.prior) / PRIOR_SHARE) ** 2).sum())

    def step(self, scaled: Array, errors: Array, slopes: Array, kept: Array, times: int = 1) -> Array:
        """Gauss-Newton steps within the bounds, with the derivatives of `scaled`."""
        here, now = scaled.copy(), errors.copy()
        for _ in range(times):
            weights = self.weights * np.where(np.abs(now) <= HUBER, 1.0, HUBER / np.maximum(np.abs(now), 1e-9))
            weights = np.where(kept, weights, 0.0) / NOISE**2
            left = slopes.T @ (weights[:, None] * slopes) + np.eye(len(here)) / PRIOR_SHARE**2
            right = -slopes.T @ (weights * now) - (here - self.prior) / PRIOR_SHARE**2
            moved = np.clip(here + np.clip(_bounded(left, right, here), -LARGEST_STEP, LARGEST_STEP), 0.0, 1.0)
            now, here = now + slopes @ (moved - here), moved
        return here

    def solve(self, start: Array, rounds: int) -> Array:
        """The fit on all points: steps that are halved until they gain."""
        everyone = np.ones(len(self.points), dtype=bool)
        here = start
        for _ in range(rounds):
            errors = self.errors(here)
            cost = self.cost(here, errors, everyone)
            whole = self.step(here, errors, self.slopes(here), everyone) - here
            share, gained = 1.0, False
            while share > 0.1 and not gained:
                tried = here + share * whole
                gained = self.cost(tried, self.errors(tried), everyone) < cost
                share /= 2
            if not gained:
                break
            moved, here = float(np.abs(tried - here).max()), tried
            if moved < FINE:
                break
        return here


def _bounded(left: Array, right: Array, here: Array) -> Array:
    """The solution of left · x = right, with constants that it pushes out of bounds held where they are."""
    free = np.ones(len(here), dtype=bool)
    for _ in range(len(here)):
        found = np.zeros(len(here))
        if free.any():
            found[free] = np.linalg.solve(left[np.ix_(free, free)], right[free])
        out = free & (((here <= 0) & (found < 0)) | ((here >= 1) & (found > 0)))
        if not out.any():
            return found
        free &= ~out
    return np.zeros(len(here))
