"""The scorer `hf`: a whole copy of the model on each rank, in its own dtype, run forward by transformers.

Rows are shared out among ranks, which never speak to each other: cheaper than shards where a copy fits.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from flowrl.backends.contract import RankSetup
from flowrl.backends.models import torch_dtype
from flowrl.backends.trainers.fsdp.scorer import FsdpScorer


class HfScorer(FsdpScorer):
    """One rank: the forward passes are those of the scorer `fsdp`, on a module that is not sharded."""

    def __init__(self, setup: RankSetup) -> None:
        assert setup.model is not None
        # One rank in float32 is what is built plain; the weights then take the model's own dtype.
        plain = replace(setup, rank=0, world_size=1, model=structs.replace(setup.model, dtype="float32"))
        super().__init__(plain)
        self._rank.module.to(torch_dtype(setup.model.dtype))
