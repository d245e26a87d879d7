"""The first rows of the data files that are there: whether they have the columns that the flow names, and their types.

A run would meet the same faults after its models are loaded. Reads at most ROWS lines of a file; calls no user
function. A file that is not there yet is no fault of a plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, cast

from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.lower.user_functions import is_function
from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Graph
from flowrl.graph.params import DataParams

ROWS = 64
LINE_BYTES = 1 << 20
"""A longer line is not looked at, nor what follows it."""

_TABLES = (".parquet", ".arrow")
"""Files that need a library to be read; the run looks at them."""

Row = Mapping[str, Any]


def data_faults(stage: Stage, graph: Graph) -> tuple[Diagnostic, ...]:
    """FR0811 (a line that is no JSON object), FR0812 (a column that is not there), FR0813 (no rows), FR0805 and FR0817
    (a prompt or response of a wrong type): one for each data set, the first found."""
    found: dict[str, Diagnostic] = {}
    for op in graph.ops:
        if isinstance(op.params, DataParams):
            for name, params in _sets(op.method, op.params):
                fault = None if name in found else _fault(stage, name, params)
                if fault is not None:
                    found[name] = fault
    return tuple(found.values())


def _sets(name: str, params: DataParams) -> Iterator[tuple[str, DataParams]]:
    """The data set, or those that a mix draws from."""
    if not params.sources:
        yield name, params
    for other, source in params.sources.items():
        yield from _sets(other, source)


def _fault(stage: Stage, name: str, params: DataParams) -> Diagnostic | None:
    path = Path(stage.folder) / params.source
    if not params.source or is_function(params.source) or path.suffix in _TABLES or not isfile(path):
        return None
    rows = 0
    for number, line in _lines(path):
        if not line.strip():
            continue
        row = _object(line)
        if isinstance(row, str):
            return diagnose("FR0811", _span(stage, name, "source"), source=params.source, line=number, reason=row)
        rows += 1
        wrong = _column_fault(stage, name, params, row, rows) or _type_fault(stage, name, params, row, rows)
        if wrong is not None:
            return wrong
    if rows == 0 and path.stat().st_size < LINE_BYTES:
        return diagnose("FR0813", _span(stage, name, "source"), data=f"data.{name}", source=params.source)
    return None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            for number in range(1, ROWS + 1):
                line = file.readline(LINE_BYTES)
                if not line or len(line) == LINE_BYTES:
                    return
                yield number, line
    except OSError:
        return


def _object(line: bytes) -> Row | str:
    """The row of a line, or what is wrong with it."""
    try:
        value: object = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is not UTF-8"
    except RecursionError:
        return "it is nested too deep"
    except ValueError as error:
        return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    return cast("Row", value) if isinstance(value, dict) else f"a {type(value).__name__}, not an object"


def _wanted(params: DataParams) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Each column that the flow names, and the key that names it."""
    for key in ("prompt", "response", "chosen", "rejected", "images"):
        column = getattr(params, key)
        if column is not None:
            yield (key,), column
    yield from ((("keep", place), column) for place, column in enumerate(params.keep))


def _column_fault(stage: Stage, name: str, params: DataParams, row: Row, number: int) -> Diagnostic | None:
    missing = next(((key, column) for key, column in _wanted(params) if column not in row), None)
    if missing is None:
        return None
    key, column = missing
    columns = ", ".join(f"`{each}`" for each in row) or "none"
    facts: dict[str, Any] = {"row": number, "source": params.source, "column": column, "data": f"data.{name}"}
    return diagnose("FR0812", _span(stage, name, *key), columns=columns, **facts)


def _type_fault(stage: Stage, name: str, params: DataParams, row: Row, number: int) -> Diagnostic | None:
    prompt = row[params.prompt]
    if not isinstance(prompt, str) and not _is_messages(prompt):
        return diagnose(
            "FR0805", _span(stage, name, "prompt"), prompt=number, found=f"of type `{type(prompt).__name__}`"
        )
    for key in ("response", "chosen", "rejected"):
        column = getattr(params, key)
        if column is not None and not isinstance(row[column], str):
            found = type(row[column]).__name__
            return diagnose("FR0817", _span(stage, name, key), prompt=number, found=found)
    return None


def _is_messages(prompt: object) -> bool:
    if not isinstance(prompt, list) or not prompt:
        return False
    items = cast("Sequence[object]", prompt)
    return all(isinstance(item, dict) and {"role", "content"} <= set(cast("Row", item)) for item in items)


def _span(stage: Stage, name: str, *key: str | int) -> Span | None:
    return stage.written("data", name, *key) or stage.key_span("data", name)
