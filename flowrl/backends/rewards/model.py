"""The reward of flavour `model`: the scalar head of a sequence at its last token, on FSDP2.

It reads text, prompt and response, which its own tokenizer makes tokens of, an end token behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.rewards.settled import ABORT, row_name, settled
from flowrl.backends.trainers.fsdp import weights
from flowrl.backends.trainers.fsdp.model_rank import ModelRank
from flowrl.backends.trainers.fsdp.texts import Texts
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.params import AskParams

MICRO_BATCH_TOKENS = 16384


class ModelReward:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        if setup.model is not None and setup.model.head != "scalar":
            what = f"a reward model with `head: {setup.model.head}`"
            raise FlowError(diagnose("FR0801", setup.role.span, what=what, known="`head: scalar`"))
        if any(isinstance(op.params, AskParams) for op in setup.ops):
            what = f"`{setup.role.name}`: a judge on backend `fsdp`, which writes no text"
            raise FlowError(diagnose("FR0801", setup.role.span, what=what, known="`hf`, `vllm`, or an `endpoint`"))
        self._setup = setup
        self._rank = ModelRank(setup)
        self._texts = Texts(setup)
        self._rank.module.requires_grad_(False)

    def call(self, call: Call, batch: Batch) -> Result:
        """score: prompt, response → rewards float32 [rows]."""
        if call.op.method != "score":
            raise InternalError(f"a reward model has no op {call.op.id}")
        torch.set_num_threads(self._setup.threads)
        rows = self._texts.with_tokens(call, batch)
        rewards = np.asarray(self._rank.last_scores(rows, MICRO_BATCH_TOKENS), dtype=np.float32)
        made = settled(batch, self._finite(batch, rewards), self._setup.role.on_error)
        return made if self._rank.tells else Result(None, {})

    def _finite(self, batch: Batch, rewards: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """NaN where the model gives no finite score. With `on_error: abort` that is told: FR0824."""
        wrong = np.flatnonzero(~np.isfinite(rewards)).tolist()
        role = self._setup.role
        if wrong and role.on_error == ABORT:
            facts = {"function": role.model, "found": f"{rewards[wrong[0]]}", "row": row_name(batch, wrong[0])}
            raise FlowError(diagnose("FR0824", role.span, **facts))
        return np.where(np.isfinite(rewards), rewards, np.float32(np.nan))

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        weights.read(weights.parts(self._rank.module), manifest, buffer)

    def load(self) -> None:
        self._rank.load()

    def offload(self) -> None:
        self._rank.offload()

    def close(self) -> None:
        self._rank.close()
