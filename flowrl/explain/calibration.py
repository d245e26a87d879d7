"""What a calibration says. Frozen values; no logic."""

from __future__ import annotations

from typing import Any

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One op, or an instruction without one. Errors are |estimate / median of the held-out half - 1|."""

    stage: str
    name: str
    repeats: int
    before: float
    """Estimated seconds in the run's plan."""
    measured: float
    """Median seconds of the held-out half."""
    p90: float
    """Of all repeats."""
    after: float
    """Estimated with the refitted constants and the suggested assumptions."""
    error_before: float
    error_after: float
    is_assumed: bool = False
    """Whether `after` is a suggested `assume:` and no refitted constant: a function of the user."""
    is_ruled: bool = False
    """Whether its tokens follow a rule and are not known from the run, so that no constant is fitted to it."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A constant of the profile that the trace has moved."""

    path: str
    before: float
    after: float
    at_bound: bool = False


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    rows: tuple[Row, ...]
    moved: tuple[Moved, ...]
    assume: dict[str, dict[str, Any]]
    """A suggestion for `assume:` by op: measured lengths of responses, and seconds of functions."""
    error_before: float
    """Of the held-out seconds of all but `is_ruled`: the sum of |estimate - median| over the sum of medians."""
    error_after: float
    steps: int
