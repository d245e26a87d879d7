"""The reward of flavour `combine`: the weighted sum of other roles' rewards. Runs in the host pool, keeps nothing."""

from __future__ import annotations

import numpy as np

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, Result
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import ScoreParams


class CombinedReward:
    """One rank."""

    def call(self, call: Call, batch: Batch) -> Result:
        """score: `rewards` of each part, under the part's name → their sum by the flow's weights, float32 [rows]."""
        params = call.op.params
        if call.op.method != "score" or not isinstance(params, ScoreParams) or "combine" not in params.extra:
            raise InternalError(f"a combined reward has no op {call.op.id}")
        rewards = np.zeros(len(batch), dtype=np.float64)
        for part, weight in params.extra["combine"].items():
            rewards += weight * batch.array(part).astype(np.float64)
        metrics = {"rewards": (float(rewards.mean()), float(len(rewards)))} if len(rewards) else {}
        return Result(Batch(batch.ids, batch.prompt_ids, {"rewards": rewards.astype(np.float32)}), metrics)

    def close(self) -> None:
        """Nothing to end."""
