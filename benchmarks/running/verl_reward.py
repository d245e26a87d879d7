"""The reward of flows/running/addition.py in verl's terms."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: object, extra_info: Any = None, **_: Any) -> float:
    wanted = str(ground_truth)
    right = sum(got == want for got, want in zip(solution_str, wanted, strict=False))
    return right / len(wanted) + (1.0 if solution_str.strip() == wanted else 0.0)
