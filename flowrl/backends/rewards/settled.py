"""What all rewards of the host share: rows without a reward fall to the role's `on_error`. `abort` ends the run,
`default` scores 0, `drop` takes the whole group away.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowrl.backends.batch import SAMPLE_ID_BITS, Batch
from flowrl.backends.contract import Metrics, Result

ABORT, DEFAULT = "abort", "default"


def settled(batch: Batch, rewards: npt.NDArray[np.float32], on_error: str, more: Metrics | None = None) -> Result:
    """Rewards of the rows that stay, NaN where a row has none: with `drop` a group stays if each of its rows has one.
    `more` are other metrics of the call."""
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
    kept = Batch(batch.ids[stay], batch.prompt_ids[stay], {"rewards": rewards[stay]})
    return Result(kept, metrics | dict(more or {}))


def row_name(batch: Batch, row: int) -> str:
    """How a row is told of."""
    return f"sample {batch.ids[row] - (batch.prompt_ids[row] << SAMPLE_ID_BITS)} of prompt {batch.prompt_ids[row]}"
