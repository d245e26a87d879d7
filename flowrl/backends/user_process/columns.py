"""What a function of columns returned → Called. Runs where the function runs, and knows neither numpy nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from flowrl.backends.user_process.messages import Called
from flowrl.backends.user_process.scores import counted, is_list


def columns_of(value: object, rows: int, outputs: Sequence[str]) -> Called:
    """One value for each row and output: a mapping of lists, or the list itself where there is one output. Values are
    numbers, texts, and lists and mappings of these; arrays count as lists."""
    if not isinstance(value, Mapping) and len(outputs) == 1:
        value = {outputs[0]: value}
    if not isinstance(value, Mapping):
        return Called(problem=f"{counted(value)} where columns {', '.join(f'`{name}`' for name in outputs)} belong")
    found = cast("Mapping[str, object]", value)
    columns: dict[str, list[Any]] = {}
    for name in outputs:
        if name not in found:
            return Called(problem=f"no column `{name}`")
        column = found[name]
        if not is_list(column) or len(cast("Sequence[object]", column)) != rows:
            return Called(problem=f"{counted(column)} of `{name}`")
        try:
            columns[name] = msgspec.to_builtins(column, enc_hook=_plain)
        except Exception as error:  # whatever a type of the user raises
            return Called(problem=f"a value of `{name}` that is no number, text, list or mapping ({error})")
        if not isinstance(columns[name], list):
            columns[name] = list(columns[name])
    return Called(columns=columns)


def _plain(value: object) -> object:
    """An array or a number of another library."""
    if hasattr(value, "tolist"):
        return cast("Any", value).tolist()
    raise TypeError(f"a {type(value).__name__}")
