"""What a reward function returned → Scored. Runs where the function runs, and knows neither numpy nor torch."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence, Sized
from typing import Any, cast

from flowrl.backends.user_process.messages import Scored

SHOWN = 60
"""Most characters of a value that is shown."""
LARGEST = 3.4028234663852886e38
"""Rewards are float32."""


def scores_of(value: object, rows: int) -> Scored:
    """One finite number for each row: a list, or a mapping with such a list under `rewards`."""
    scores = cast("Mapping[str, object]", value).get("rewards") if isinstance(value, Mapping) else value
    if not is_list(scores) or len(cast("Sized", scores)) != rows:
        return Scored(miscounted=counted(scores))
    found = array("d")
    odd: tuple[int, str] | None = None
    for row, score in enumerate(cast("Sequence[object]", scores)):
        number = _number(score)
        if number is None and odd is None:
            odd = (row, _named(score))
        found.append(math.nan if number is None else number)
    return Scored(scores=found.tobytes(), odd=odd)


def process_scores_of(value: object, rows: int) -> Scored:
    """A list of finite numbers for each row. A row with anything else is one NaN."""
    lists = cast("Mapping[str, object]", value).get("rewards") if isinstance(value, Mapping) else value
    if not is_list(lists) or len(cast("Sized", lists)) != rows:
        return Scored(miscounted=counted(lists))
    found, lengths = array("d"), array("q")
    odd: tuple[int, str] | None = None
    for row, scores in enumerate(cast("Sequence[object]", lists)):
        numbers = [_number(score) for score in cast("Sequence[object]", scores)] if is_list(scores) else [None]
        if None in numbers:
            odd = odd or (row, _named(scores))
            numbers = [math.nan]
        found.extend(cast("list[float]", numbers))
        lengths.append(len(numbers))
    return Scored(scores=found.tobytes(), lengths=lengths.tobytes(), odd=odd)


def counted(scores: object) -> str:
    """How many values there are, or what is there in their place."""
    if not is_list(scores):
        return _named(scores)
    count = len(cast("Sized", scores))
    return f"{count} value{'' if count == 1 else 's'}"


def is_list(value: object) -> bool:
    """Whether it is a list, or an array that can be one."""
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and hasattr(value, "__len__"))


def _number(score: object) -> float | None:
    """A finite number, also as a numpy or torch scalar; None for anything else."""
    if isinstance(score, str | bytes) or score is None:
        return None
    try:
        number = float(cast("Any", score))
    except Exception:  # whatever the user's own type raises
        return None
    return number if abs(number) <= LARGEST else None


def _named(value: object) -> str:
    if isinstance(value, dict | set):
        return f"a {type(value).__name__}"
    try:
        return repr(value)[:SHOWN]
    except Exception:  # a type whose repr fails
        return f"a {type(value).__name__}"
