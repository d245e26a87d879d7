"""The backend of filter roles: one column of whole groups → the rows that stay. Runs in the host pool, keeps nothing.

What it gives has the rows that stay and no others: the runtime takes the rest off every path of the step.
"""

from __future__ import annotations

import numpy as np

from flowrl.algos.filters import RULES, Floats, kept
from flowrl.backends.batch import Batch
from flowrl.backends.contract import LENGTH, Call, RankSetup, Result
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import FilterParams


class RuleFilter:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        for op in setup.ops:
            if isinstance(op.params, FilterParams) and op.params.rule not in RULES:
                known = ", ".join(f"`{name}`" for name in sorted(RULES))
                raise FlowError(diagnose("FR0801", op.span, what=f"a filter by `rule: {op.params.rule}`", known=known))

    def call(self, call: Call, batch: Batch) -> Result:
        """select: the column that the rule looks at → `keep`, bool [rows that stay]."""
        params = call.op.params
        if call.op.method != "select" or not isinstance(params, FilterParams):
            raise InternalError(f"a filter has no op {call.op.id}")
        stay = kept(_values(batch), batch.prompt_ids, params)
        metrics = {"kept": (float(stay.mean()), float(len(stay)))} if len(stay) else {}
        left = batch.select(np.flatnonzero(stay))
        return Result(Batch(left.ids, left.prompt_ids, {"keep": np.ones(len(left), dtype=np.bool_)}), metrics)

    def close(self) -> None:
        """Nothing to end."""


def _values(batch: Batch) -> Floats:
    """The one column, as a number for each row: of `finish_reason` 1 where the response was cut off at its limit."""
    if len(batch.columns) != 1:
        raise InternalError(f"a filter by a rule looks at one column, not at {', '.join(sorted(batch.columns))}")
    ((name, column),) = batch.columns.items()
    values = np.asarray(column, dtype=np.float64)
    return (values == LENGTH).astype(np.float64) if name == "finish_reason" else values
