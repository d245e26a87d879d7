"""Metrics: (value, weight) pairs → one number. Merging over ranks, over firings, and their names in metrics.jsonl.

Pure; knows names and numbers, no files.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.backends.contract import Metrics

TIMING = ("seconds", "tokens_per_second", "samples_per_second", "ranks_lost")
"""Keys of a line of metrics.jsonl that no two runs share: what a clock says, and what befell a run."""


def merge(many: Iterable[Metrics]) -> dict[str, tuple[float, float]]:
    """Weighted means: for each name (Σ value·weight / Σ weight, Σ weight).

    A single pair is passed on as it is, bit for bit. Where all weights are 0 the plain mean is taken, with weight 0.
    """
    gathered: dict[str, list[tuple[float, float]]] = {}
    for metrics in many:
        for name, pair in metrics.items():
            gathered.setdefault(name, []).append(pair)
    return {name: _mean(pairs) for name, pairs in gathered.items()}


def _mean(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    if len(pairs) == 1:
        return pairs[0]
    weight = sum(w for _, w in pairs)
    if weight == 0:
        return sum(v for v, _ in pairs) / len(pairs), 0.0
    return sum(v * w for v, w in pairs) / weight, weight


def named(metrics: Metrics, role: str, label: str | None) -> dict[str, tuple[float, float]]:
    """Names as the user sees them: `ROLE.name`, with a label `ROLE.name@LABEL`."""
    suffix = "" if label is None else f"@{label}"
    return {f"{role}.{name}{suffix}": pair for name, pair in metrics.items()}


def values(metrics: Metrics) -> dict[str, float]:
    """The numbers without their weights, by name in alphabetical order."""
    return {name: float(value) for name, (value, _) in sorted(metrics.items())}
