"""The table of benchmarks/flows.py: a line for each case with loss and reward of its steps and its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LEAST = 1e-7
"""A smaller change of a number of order one is rounding."""
CONSTANT = {"online_dpo": "shares of wins", "10-online-dpo-judge": "shares of wins"}
"""Cases whose mean reward cannot change, whatever the policy does, and why."""
Row = Mapping[str, Any]


def lines(rows: Iterable[Row]) -> list[str]:
    head = f"{'case':30} {'steps':>5}  {'loss of each step':42} {'reward of each step':42} outcome"
    return [head, *(_line(row) for row in rows)]


def _line(row: Row) -> str:
    if "losses" not in row:
        return f"{row['case']:30} {'–':>5}  {outcome(row)}"
    losses, rewards = _shown(row["losses"]), _shown(row["rewards"])
    return f"{row['case']:30} {row['steps']:>5}  {losses:42} {rewards:42} {outcome(row)}"


def outcome(row: Row) -> str:
    """In a few words: ran, what did not change, or why it did not run."""
    if "refused" in row:
        return "refused: " + "; ".join(row["refused"])
    if "failed" in row:
        return f"failed: {row['failed']}"
    still = [what for what in ("losses", "rewards") if row[what] and not changes(row[what])]
    name = str(row["case"]).partition(" ")[2]
    said = [
        f"{what} constant" + (f" ({CONSTANT[name]})" if what == "rewards" and name in CONSTANT else "")
        for what in still
    ]
    return ", ".join(said) or "changes"


def ran(row: Row, steps: int) -> bool:
    """Whether it ran all its steps with a loss that changes, and a reward that does if it has one that can."""
    if "losses" not in row or row["steps"] < steps or not changes(row["losses"]):
        return False
    name = str(row["case"]).partition(" ")[2]
    return not row["rewards"] or name in CONSTANT or changes(row["rewards"])


def changes(series: Mapping[str, Sequence[float]]) -> bool:
    return any(max(values) - min(values) > LEAST for values in series.values())


def _shown(series: Mapping[str, Sequence[float]]) -> str:
    """The first series that changes, else the first."""
    if not series:
        return "–"
    name = next((n for n, values in series.items() if max(values) - min(values) > LEAST), next(iter(series)))
    more = f" (+{len(series) - 1})" if len(series) > 1 else ""
    return " ".join(f"{value:.5g}" for value in series[name][:4]) + more
