"""The same function in this process: FlowRL's own, and a user's while a debugger is attached. No limit but the time,
and a function that is given up goes on in its thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowrl.backends.user_code import call_function, load_function
from flowrl.backends.user_process.columns import columns_of
from flowrl.backends.user_process.messages import Called, Packed, Scored
from flowrl.backends.user_process.scores import process_scores_of, scores_of
from flowrl.diag.span import Span


class Here:
    """As UserProcess."""

    restarts = 0

    def __init__(self, name: str, folder: Path, span: Span | None) -> None:
        self._function = load_function(name, folder, span)

    def call(
        self,
        timeout_seconds: float | None,
        rows: int,
        columns: Mapping[str, Packed],
        args: Mapping[str, object],
        *,
        ragged: bool = False,
    ) -> Scored:
        lists = {name: column.rows() for name, column in columns.items()}
        value = call_function(self._function, timeout_seconds, **lists, **args)
        return (process_scores_of if ragged else scores_of)(value, rows)

    def columns(
        self, rows: int, columns: Mapping[str, Packed], args: Mapping[str, object], outputs: Sequence[str]
    ) -> Called:
        lists = {name: column.rows() for name, column in columns.items()}
        return columns_of(call_function(self._function, None, **lists, **args), rows, outputs)

    def close(self) -> None:
        """Nothing to end."""
