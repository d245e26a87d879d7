"""`flowrl:lagrange`: two advantages weighed by a Lagrange multiplier that follows the mean cost (ADR 0011)."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

import numpy as np

from flowrl.backends.batch import Batch, Column, Ragged
from flowrl.backends.contract import Metrics

Columns = Mapping[str, Column]


class Lagrange:
    """With the multiplier m, which lives from step to step:

        ln m += lr · m · (mean of costs - cost_limit), at most `most`; then
        advantages = (reward advantages + m · safety advantages) / (1 + m)

    (Dai et al. 2023, "Safe RLHF", arXiv:2310.12773, section 3.3 and appendix B; the defaults are those of its code.)
    """

    def __init__(self) -> None:
        self._multiplier: float | None = None

    def __call__(
        self, batch: Batch, cost_limit: float, start: float = 1.0, lr: float = 0.1, most: float = 5.0
    ) -> tuple[Columns, Metrics]:
        """reward_advantages, safety_advantages (ragged), costs (one a row) → advantages, float32."""
        costs = np.asarray(batch.array("costs"), dtype=np.float64)
        m = start if self._multiplier is None else self._multiplier
        if len(costs):
            m = min(m * exp(lr * m * (float(costs.mean()) - cost_limit)), most)
        self._multiplier = m
        rewards, safety = batch.ragged("reward_advantages"), batch.ragged("safety_advantages")
        weighed = (rewards.values.astype(np.float64) + m * safety.values.astype(np.float64)) / (1.0 + m)
        rows = float(len(costs))
        metrics = {"multiplier": (m, 1.0)} | ({"costs": (float(costs.mean()), rows)} if rows else {})
        return {"advantages": Ragged(weighed.astype(np.float32), rewards.lengths)}, metrics

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {} if self._multiplier is None else {"multiplier": self._multiplier}

    def restore(self, state: Mapping[str, float]) -> None:
        self._multiplier = state.get("multiplier")
