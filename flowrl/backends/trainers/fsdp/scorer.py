"""The scorer `fsdp`: log_probs (ref_log_probs) and values of a model that no update moves (contract.Scorer)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flowrl.backends.batch import Batch, Column
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.trainers.fsdp import weights
from flowrl.backends.trainers.fsdp.model_rank import ModelRank
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose


class FsdpScorer:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._rank = ModelRank(setup)
        self._rank.module.requires_grad_(False)

    def call(self, call: Call, batch: Batch) -> Result:
        """log_probs: tokens, loss_mask → ref_log_probs · values: tokens → values; float32, aligned with `tokens`."""
        torch.set_num_threads(self._setup.threads)
        odd = {field.name for field in call.op.outputs} - {"ref_log_probs", "values"}
        if odd:
            what = f"`{', '.join(sorted(odd))}` of scorer `{self._setup.role.name}`"
            raise FlowError(diagnose("FR0801", call.op.span, what=what, known="`ref_log_probs`, `values`"))
        return Result(Batch(batch.ids, batch.prompt_ids, self._columns(call, batch)), {})

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        weights.read(self._rank.module, manifest, buffer)

    def load(self) -> None:
        self._rank.load()

    def offload(self) -> None:
        self._rank.offload()

    def close(self) -> None:
        self._rank.close()

    def _columns(self, call: Call, batch: Batch) -> dict[str, Column]:
        if call.op.method == "log_probs":
            return {"ref_log_probs": self._rank.log_probs(call, batch, with_entropy=False)["log_probs"]}
        if call.op.method == "values":
            return {"values": self._rank.values(call, batch)}
        raise InternalError(f"a scorer has no op {call.op.id}")
