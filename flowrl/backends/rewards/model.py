"""The reward of flavour `model`: the scalar head of a sequence at its last token, on FSDP2.

It reads `tokens`, so its tokenizer must be the generator's (another one needs a model behind a text function).
"""

from __future__ import annotations

import torch

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.backends.trainers.fsdp.model_rank import ModelRank
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose

MICRO_BATCH_TOKENS = 16384


class ModelReward:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        if setup.model is not None and setup.model.head != "scalar":
            what = f"a reward model with `head: {setup.model.head}`"
            raise FlowError(diagnose("FR0801", setup.role.span, what=what, known="`head: scalar`"))
        self._setup = setup
        self._rank = ModelRank(setup)
        self._rank.module.requires_grad_(False)

    def call(self, call: Call, batch: Batch) -> Result:
        """score: tokens → rewards float32 [rows]."""
        if call.op.method != "score":
            raise InternalError(f"a reward model has no op {call.op.id}")
        torch.set_num_threads(self._setup.threads)
        rewards = self._rank.last_scores(batch, MICRO_BATCH_TOKENS)
        metrics = {"rewards": (float(rewards.mean()), float(len(rewards)))} if len(rewards) else {}
        return Result(Batch(batch.ids, batch.prompt_ids, {"rewards": rewards}), metrics)

    def load(self) -> None:
        self._rank.load()

    def offload(self) -> None:
        self._rank.offload()

    def close(self) -> None:
        self._rank.close()
