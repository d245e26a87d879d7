"""The reward backend `function`: a user's function on lists of columns. Runs in the host pool, without torch.

The function is called with one list for each slot it reads and with the role's `args`; it returns one finite number for
each row, or a mapping with such a list under `rewards`. What goes wrong is told by function, row and the exception's
last line; `on_error` says what then: `abort` ends the run, `default` scores 0, `drop` takes the whole group away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch, Column, Ragged
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.user_code import UserCodeError, call_function, load_function
from flowrl.diag.diagnostic import Diagnostic, FlowError, InternalError, diagnose
from flowrl.diag.span import Span
from flowrl.graph.graph import Op
from flowrl.graph.params import ScoreParams

ABORT, DEFAULT = "abort", "default"


class FunctionReward:
    """One rank; it keeps nothing but the loaded functions."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        for op in setup.ops:  # a function that is not there shall be told before the first step
            if isinstance(op.params, ScoreParams) and op.params.function is not None:
                load_function(op.params.function, setup.folder, _place(op))

    def call(self, call: Call, batch: Batch) -> Result:
        """score: any columns → `rewards` float32 [rows]."""
        params = call.op.params
        if call.op.method != "score" or not isinstance(params, ScoreParams) or params.function is None:
            raise InternalError(f"a reward function has no op {call.op.id}")
        span = _place(call.op)
        scorer = _Scorer(params, load_function(params.function, self._setup.folder, span), span)
        rewards, fault = scorer.score(batch)
        if fault is not None and self._setup.role.on_error == ABORT:
            raise FlowError(fault)
        return _result(batch, rewards, self._setup.role.on_error)

    def close(self) -> None:
        """Nothing to end."""


def _place(op: Op) -> Span | None:
    """Where the flow names the function; else the op."""
    return op.spans.get("function", op.span)


class _Scorer:
    """One call of the function on one batch."""

    def __init__(self, params: ScoreParams, function: Callable[..., Any], span: Span | None) -> None:
        self._params = params
        self._function = function
        self._span = span
        self._name = f"{params.function}"

    def score(self, batch: Batch) -> tuple[npt.NDArray[np.float32], Diagnostic | None]:
        """Rewards, NaN where there is none, and what went wrong first."""
        if not len(batch):
            return np.zeros(0, dtype=np.float32), None
        try:
            return self._check(batch, self._run(batch))
        except UserCodeError as error:
            if error.timed_out:
                return _none(batch), self._timed_out(batch)
            return self._row_by_row(batch, error)

    def _run(self, batch: Batch) -> object:
        slots = {name: _list(column) for name, column in batch.columns.items()}
        return call_function(self._function, self._params.timeout_seconds, **slots, **self._params.args)

    def _row_by_row(self, batch: Batch, error: UserCodeError) -> tuple[npt.NDArray[np.float32], Diagnostic]:
        """The function raised on all rows together: find the rows that it raises on alone."""
        rewards = _none(batch)
        fault: Diagnostic | None = None
        for row in range(len(batch)):
            one = batch.select([row])
            try:
                rewards[row : row + 1], wrong = self._check(one, self._run(one))
            except UserCodeError as alone:
                wrong = self._raised(alone, _row(batch, row))
            fault = fault or wrong
        together = f"{len(batch)} rows together, and on none of them alone"
        return (rewards, fault) if fault else (_none(batch), self._raised(error, together))

    def _check(self, batch: Batch, value: object) -> tuple[npt.NDArray[np.float32], Diagnostic | None]:
        scores = cast("Mapping[str, object]", value).get("rewards") if isinstance(value, Mapping) else value
        if not _is_list(scores) or len(cast("Sized", scores)) != len(batch):
            return _none(batch), self._wrong_count(batch, scores)
        rewards = _none(batch)
        fault: Diagnostic | None = None
        for row, score in enumerate(cast("Sequence[object]", scores)):
            number = _number(score)
            if number is None:
                fault = fault or self._no_number(score, _row(batch, row))
            else:
                rewards[row] = number
        return rewards, fault

    def _raised(self, error: UserCodeError, row: str) -> Diagnostic:
        return diagnose("FR0822", self._span, function=self._name, error=error.told, row=row)

    def _timed_out(self, batch: Batch) -> Diagnostic:
        seconds = f"{self._params.timeout_seconds:g}"
        return diagnose("FR0825", self._span, function=self._name, rows=len(batch), seconds=seconds)

    def _wrong_count(self, batch: Batch, scores: object) -> Diagnostic:
        count = len(cast("Sized", scores)) if _is_list(scores) else None
        found = _named(scores) if count is None else f"{count} value{'' if count == 1 else 's'}"
        return diagnose("FR0823", self._span, function=self._name, found=found, rows=len(batch))

    def _no_number(self, score: object, row: str) -> Diagnostic:
        return diagnose("FR0824", self._span, function=self._name, found=_named(score), row=row)


def _result(batch: Batch, rewards: npt.NDArray[np.float32], on_error: str) -> Result:
    """Rewards of the rows that stay: with `drop` a group stays if each of its rows has one."""
    missing = np.isnan(rewards)
    stay = np.ones(len(batch), dtype=np.bool_)
    if on_error == DEFAULT:
        rewards = np.where(missing, np.float32(0), rewards)
    else:
        stay = ~np.isin(batch.prompt_ids, batch.prompt_ids[missing])
    rows = float(stay.sum())
    metrics = {"rewards": (float(rewards[stay].mean()), rows)} if rows else {}
    if on_error != ABORT:
        metrics["failed"] = (float(missing.mean()) if len(batch) else 0.0, float(len(batch)))
    return Result(Batch(batch.ids[stay], batch.prompt_ids[stay], {"rewards": rewards[stay]}), metrics)


def _list(column: Column) -> list[object]:
    """What the function gets: Python values, one a row; a token field gives a list of lists."""
    if isinstance(column, Ragged):
        return [row.tolist() for row in column.rows()]
    return list(column) if isinstance(column, tuple) else cast("list[object]", column.tolist())


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | np.ndarray) or (hasattr(value, "tolist") and hasattr(value, "__len__"))


def _number(score: object) -> float | None:
    """A finite number, also as a numpy or torch scalar; None for anything else."""
    if isinstance(score, str | bytes) or score is None:
        return None
    try:
        number = float(cast("Any", score))
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def _named(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, dict | set) else repr(value)[:60]


def _none(batch: Batch) -> npt.NDArray[np.float32]:
    return np.full(len(batch), np.nan, dtype=np.float32)


def _row(batch: Batch, row: int) -> str:
    return f"sample {batch.ids[row] - (batch.prompt_ids[row] << SAMPLE_ID_BITS)} of prompt {batch.prompt_ids[row]}"
