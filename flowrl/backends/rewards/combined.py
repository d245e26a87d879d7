"""The reward of flavour `combine`: the weighted sum of other roles' rewards. Runs in the host pool, keeps nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Call, Result
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import ScoreParams


class CombinedReward:
    """One rank."""

    def call(self, call: Call, batch: Batch) -> Result:
        """score: `rewards` of each part, under the part's name → their sum by the flow's weights, float32, one for
        each row or, of process rewards, for each of its places."""
        params = call.op.params
        if call.op.method != "score" or not isinstance(params, ScoreParams) or "combine" not in params.extra:
            raise InternalError(f"a combined reward has no op {call.op.id}")
        weights = params.extra["combine"]
        lists = [part for part in weights if isinstance(batch.columns[part], Ragged)]
        if lists and len(lists) < len(weights):
            what = "a combination of rewards of a sample with rewards of its turns or tokens"
            raise FlowError(diagnose("FR0801", call.op.span, what=what, known="parts of one unit"))
        rewards = sum(weight * _flat(batch.columns[part]) for part, weight in weights.items())
        flat = np.asarray(rewards, dtype=np.float32)
        column = Ragged(flat, batch.ragged(lists[0]).lengths) if lists else flat
        sums = np.asarray([row.sum() for row in column.rows()]) if isinstance(column, Ragged) else flat
        metrics = {"rewards": (float(sums.mean(dtype=np.float64)), float(len(batch)))} if len(batch) else {}
        return Result(Batch(batch.ids, batch.prompt_ids, {"rewards": column}), metrics)

    def close(self) -> None:
        """Nothing to end."""


def _flat(column: Column) -> npt.NDArray[np.float64]:
    values = column.values if isinstance(column, Ragged) else np.asarray(column)
    return values.astype(np.float64)
