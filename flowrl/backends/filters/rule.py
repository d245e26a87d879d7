"""The backend of filter roles: one column of whole groups → the rows that stay. Runs in the host pool, keeps nothing.

A `rule: function` is a user's function of any columns, which gives a number (or true and false) for each row; it runs
in a process of its own (user_process).

With `action: drop` it gives the rows that stay and no others: the runtime takes the rest off every path of the step.
With `mask` it gives all rows and says which stay: updates leave the others out, everything else has them.
"""

from __future__ import annotations

import numpy as np

from flowrl.algos.filters import RULES, Floats, kept
from flowrl.backends.batch import Batch
from flowrl.backends.contract import LENGTH, Call, RankSetup, Result
from flowrl.backends.functions.function import asked, unfit
from flowrl.backends.user_process.here import Here
from flowrl.backends.user_process.process import UserProcess
from flowrl.backends.user_process.start import started
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import FilterParams

SCORES = "scores"
"""What a function's numbers are called."""


class RuleFilter:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        self._functions: dict[str, UserProcess | Here] = {}
        for op in setup.ops:
            if isinstance(op.params, FilterParams) and op.params.function is not None:
                place = op.spans.get("function", op.span)
                self._functions[op.params.function] = started(setup, op.params.function, place)
            if isinstance(op.params, FilterParams) and op.params.rule not in RULES:
                known = ", ".join(f"`{name}`" for name in sorted(RULES))
                raise FlowError(diagnose("FR0801", op.span, what=f"a filter by `rule: {op.params.rule}`", known=known))

    def call(self, call: Call, batch: Batch) -> Result:
        """select: the column that the rule looks at → `keep`, bool [rows that stay]."""
        params = call.op.params
        if call.op.method != "select" or not isinstance(params, FilterParams):
            raise InternalError(f"a filter has no op {call.op.id}")
        values = _values(batch) if params.function is None else self._scores(call, params, batch)
        stay = kept(values, batch.prompt_ids, params)
        metrics = {"kept": (float(stay.mean()), float(len(stay)))} if len(stay) else {}
        if params.action == "mask":
            return Result(Batch(batch.ids, batch.prompt_ids, {"keep": stay}), metrics)
        left = batch.select(np.flatnonzero(stay))
        return Result(Batch(left.ids, left.prompt_ids, {"keep": np.ones(len(left), dtype=np.bool_)}), metrics)

    def _scores(self, call: Call, params: FilterParams, batch: Batch) -> Floats:
        function = self._functions[params.function or ""]
        column = asked(function, call.op, batch, params.args, [SCORES])[SCORES]
        try:
            scores = np.asarray(column, dtype=np.float64).reshape(len(batch))
            if np.isnan(scores).any():
                raise ValueError("one of them is none")
            return scores
        except (TypeError, ValueError) as error:
            raise unfit(call.op, f"something that is no number for each row: {error}", len(batch)) from error

    def close(self) -> None:
        functions, self._functions = self._functions, {}
        for function in functions.values():
            function.close()


def _values(batch: Batch) -> Floats:
    """The one column, as a number for each row: of `finish_reason` 1 where the response was cut off at its limit."""
    if len(batch.columns) != 1:
        raise InternalError(f"a filter by a rule looks at one column, not at {', '.join(sorted(batch.columns))}")
    ((name, column),) = batch.columns.items()
    values = np.asarray(column, dtype=np.float64)
    return (values == LENGTH).astype(np.float64) if name == "finish_reason" else values
