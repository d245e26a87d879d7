"""The backend of function roles: a function on lists of columns → columns. Runs in the host pool, without torch.

A user's function is called with one list for each slot and with the role's `args`, in a process of its own
(user_process). It keeps nothing from call to call that a run counts on. Functions that ship with FlowRL run here and
may keep state, which goes into checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.functions.lagrange import Lagrange
from flowrl.backends.user_code import BUILTIN_PREFIX, UserCodeError
from flowrl.backends.user_process.here import Here
from flowrl.backends.user_process.process import UserProcess, printed_note
from flowrl.backends.user_process.start import packed, started
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Op
from flowrl.graph.params import CallParams
from flowrl.graph.types import Field, Unit, element

OWN: Mapping[str, Callable[[], Lagrange]] = {"lagrange": Lagrange}
"""Functions that ship with FlowRL, by name."""
_STATE = "state.json"
_NUMPY = {
    "bool": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64", "f16": "float16",
    "bf16": "float32", "f32": "float32", "f64": "float64",
}  # fmt: skip


class FunctionRank:
    """One rank; it keeps the process of each of its functions."""

    def __init__(self, setup: RankSetup) -> None:
        self._functions: dict[str, UserProcess | Here] = {}
        self._own: dict[str, Lagrange] = {}
        try:
            for op in setup.ops:
                if isinstance(op.params, CallParams):
                    self._start(setup, op, op.params.function)
        except BaseException:
            self.close()
            raise

    def call(self, call: Call, batch: Batch) -> Result:
        """call: any columns → the op's outputs."""
        op = call.op
        if not isinstance(op.params, CallParams):
            raise InternalError(f"a function has no op {op.id}")
        name = op.params.function
        if name in self._own:
            columns, metrics = self._own[name](batch, **op.params.args)
            return Result(Batch(batch.ids, batch.prompt_ids, dict(columns)), metrics)
        returned = asked(self._functions[name], op, batch, op.params.args, [field.name for field in op.outputs])
        columns = {field.name: _column(op, batch, field, returned[field.name]) for field in op.outputs}
        return Result(Batch(batch.ids, batch.prompt_ids, columns), {})

    def save(self, folder: Path) -> None:
        state = {name: own.state() for name, own in sorted(self._own.items())}
        (folder / _STATE).write_text(json.dumps(state))

    def restore(self, folder: Path) -> None:
        state = json.loads((folder / _STATE).read_text())
        for name, own in self._own.items():
            own.restore(state[name])

    def close(self) -> None:
        functions, self._functions = self._functions, {}
        for function in functions.values():
            function.close()

    def _start(self, setup: RankSetup, op: Op, name: str) -> None:
        if name.startswith(BUILTIN_PREFIX):
            self._own[name] = OWN[name.removeprefix(BUILTIN_PREFIX)]()
        elif name not in self._functions:
            self._functions[name] = started(setup, name, op.spans.get("function", op.span))


def asked(
    function: UserProcess | Here, op: Op, batch: Batch, args: Mapping[str, object], outputs: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns that a function of the op returns. Raises FlowError FR0857."""
    try:
        called = function.columns(len(batch), packed(batch), args, outputs)
    except UserCodeError as error:
        raise _failed(op, error.told, printed_note(error.printed)) from error
    if called.problem is not None:
        raise unfit(op, called.problem, len(batch))
    return called.columns


def _failed(op: Op, told: str, notes: Iterable[str]) -> FlowError:
    span = op.spans.get("function", op.span)
    return FlowError(diagnose("FR0857", span, notes=list(notes), function=_name(op), error=told, op=op.id))


def unfit(op: Op, problem: str, rows: int) -> FlowError:
    """FR0858: what a function of the op returned is not what it should."""
    span = op.spans.get("function", op.span)
    return FlowError(diagnose("FR0858", span, function=_name(op), problem=problem, rows=rows, op=op.id))


def _name(op: Op) -> str:
    return f"{getattr(op.params, 'function', op.id)}"


def _column(op: Op, batch: Batch, field: Field, values: list[Any]) -> Column:
    """The values as a column of the output's unit and type. Raises FlowError FR0858 where they are none."""
    kind = _NUMPY.get(element(field.dtype))
    if kind is None:
        return tuple(values)
    try:
        if field.unit is Unit.TOKEN:
            return _tokens(op, batch, field, values, kind)
        if field.unit is Unit.TURN:
            return Ragged.of([np.asarray(row, dtype=kind) for row in values], kind)
        return np.asarray(values, dtype=kind)
    except (TypeError, ValueError) as error:
        problem = f"values of `{field.name}` that are no {field.dtype}: {error}"
        raise unfit(op, problem, len(batch)) from error


def _tokens(op: Op, batch: Batch, field: Field, values: list[Any], kind: str) -> Ragged:
    """Token fields share one length a row with those that the function read."""
    rows = [np.asarray(row, dtype=kind) for row in values]
    known = next((column.lengths for column in batch.columns.values() if isinstance(column, Ragged)), None)
    for number, row in enumerate(rows if known is not None else ()):
        if known is not None and len(row) != known[number]:
            problem = f"{len(row)} values of `{field.name}` for the {known[number]} tokens of row {number}"
            raise unfit(op, problem, len(batch))
    return Ragged.of(rows, kind)
