"""The data backend: rows of a jsonl file or of a user's function, in an endless order. Runs in the host pool.

Position p of the order is the p % size-th place of epoch p // size; `shuffle` permutes each epoch anew, by the run's
seed. The position is the prompt's id, so ids never repeat in a run and a resumed run goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from flowrl.backends.batch import Batch, Column, IntArray
from flowrl.backends.contract import RankSetup
from flowrl.backends.seeds import permutation
from flowrl.backends.user_code import UserCodeError, call_function, load_function
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Op
from flowrl.graph.params import DataParams

Row = Mapping[str, object]


class Data:
    """One data set, read whole when it is made."""

    def __init__(self, setup: RankSetup) -> None:
        if len(setup.ops) != 1 or not isinstance(setup.ops[0].params, DataParams):
            raise InternalError(f"data role `{setup.role.name}` has {len(setup.ops)} ops instead of one data op")
        self._op: Op = setup.ops[0]
        self._params: DataParams = setup.ops[0].params
        self._seed = setup.seed
        if self._params.on_long == "drop" and self._params.max_prompt_tokens is not None:
            raise FlowError(diagnose("FR0816", _place(self._op, "on_long"), data=self._op.id))
        self._rows = read_rows(self._op, self._params, setup.folder)
        self._orders: dict[int, IntArray] = {}

    @property
    def size(self) -> int:
        """Rows of one epoch."""
        return len(self._rows)

    def rows(self, start: int, count: int | None) -> Batch:
        """Prompt rows with ids start, …, start + count - 1; None: the `size` rows from `start`.

        Columns: prompt_id int64 [rows]; prompt, response (if the flow names one) and each kept column as tuples.
        """
        ids = np.arange(start, start + (self.size if count is None else count), dtype=np.int64)
        picked = [self._rows[self._place(int(position))] for position in ids]
        columns: dict[str, Column] = {"prompt_id": ids, "prompt": tuple(row[self._params.prompt] for row in picked)}
        if self._params.response is not None:
            columns["response"] = tuple(row[self._params.response] for row in picked)
        columns |= {name: tuple(row[name] for row in picked) for name in self._params.keep}
        return Batch(ids, ids, columns)

    def close(self) -> None:
        """Nothing to end."""

    def _place(self, position: int) -> int:
        epoch, place = divmod(position, self.size)
        if self._params.order == "sequential":
            return place
        if epoch not in self._orders:
            # A step touches two epochs at most where they meet; older ones never come back.
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = permutation(self._seed, self._op.id, epoch, self.size)
        return int(self._orders[epoch][place])


def read_rows(op: Op, params: DataParams, folder: Path) -> Sequence[Row]:
    """All rows of the source of a data op, in its order, each with the columns that the flow names.

    Raises FlowError: FR0810 no file, FR0811 a line that is no JSON object, FR0812 a missing column, FR0813 no rows,
    FR0814 and FR0815 a function that fails or returns something else.
    """
    if params.order not in ("shuffle", "sequential"):
        what = f"`order: {params.order}` of data `{op.id}`"
        raise FlowError(diagnose("FR0801", _place(op, "order"), what=what, known="`shuffle`, `sequential`"))
    is_function = params.source.rpartition(":")[0].endswith(".py")
    span = _place(op, "source")
    rows = _call(params, folder, span) if is_function else _read(op.id, params.source, folder, span)
    if not rows:
        raise FlowError(diagnose("FR0813", span, data=op.id, source=params.source))
    wanted = {"prompt": (params.prompt,), "response": () if params.response is None else (params.response,)}
    for key, names in (*wanted.items(), ("keep", params.keep)):
        _check_columns(op, params, rows, key, names)
    return rows


def _check_columns(op: Op, params: DataParams, rows: Sequence[Row], key: str, names: Sequence[str]) -> None:
    for number, row in enumerate(rows, start=1):
        missing = next((column for column in names if column not in row), None)
        if missing is not None:
            columns = ", ".join(f"`{column}`" for column in row) or "none"
            facts = {"row": number, "source": params.source, "column": missing, "columns": columns, "data": op.id}
            raise FlowError(diagnose("FR0812", _place(op, key), **facts))


def _place(op: Op, key: str) -> Span | None:
    """Where the flow has the key; where it is not written, the data set."""
    return op.spans.get(key, op.span)


def _read(name: str, source: str, folder: Path, span: Span | None) -> Sequence[Row]:
    path = folder / source
    if not path.is_file():
        raise FlowError(diagnose("FR0810", span, data=name, source=source, path=path))
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            rows.append(_object(line, number, source, span))
    return rows


def _object(line: str, number: int, source: str, span: Span | None) -> Row:
    try:
        value: object = json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        raise FlowError(diagnose("FR0811", span, source=source, line=number, reason=reason)) from error
    if not isinstance(value, dict):
        reason = f"a {type(value).__name__}, not an object"
        raise FlowError(diagnose("FR0811", span, source=source, line=number, reason=reason))
    return cast("Row", value)


def _call(params: DataParams, folder: Path, span: Span | None) -> Sequence[Row]:
    function = load_function(params.source, folder, span)
    file, _, attribute = params.source.rpartition(":")
    try:
        value: object = call_function(function, None, **params.args)
    except UserCodeError as error:
        module = Path(file).stem
        fault = diagnose("FR0814", span, source=params.source, error=error.told, module=module, function=attribute)
        raise FlowError(fault) from error
    if not isinstance(value, list | tuple):
        raise FlowError(diagnose("FR0815", span, source=params.source, found=_typed(value)))
    rows = cast("Sequence[object]", value)
    odd = next((row for row in rows if not isinstance(row, Mapping)), None)
    if odd is not None:
        raise FlowError(diagnose("FR0815", span, source=params.source, found=f"a list with {_typed(odd)}"))
    return cast("Sequence[Row]", rows)


def _typed(value: object) -> str:
    return "None" if value is None else f"a value of type `{type(value).__name__}`"
