"""The scorer `fsdp`: log_probs (ref_log_probs, with `top_k` the likeliest tokens too) and values of a model that no
update moves (contract.Scorer)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from flowrl.backends.batch import Batch, Column
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.lora import without_adapters
from flowrl.backends.trainers.fsdp import weights
from flowrl.backends.trainers.fsdp.model_rank import ModelRank
from flowrl.backends.trainers.fsdp.texts import Texts
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Op


class Lender(Protocol):
    """A trainer's rank whose frozen base is a scorer's model."""

    def lent(self) -> ModelRank: ...


class FsdpScorer:
    """One rank. Beside a trainer of adapters it has no copy of its own: it is the trainer's model without them."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        self._lender: Lender | None = setup.beside
        if self._lender is None:
            self._rank = ModelRank(setup)
            self._rank.module.requires_grad_(False)
        else:
            self._rank = self._lender.lent()
        self._texts = Texts(setup)

    def call(self, call: Call, batch: Batch) -> Result:
        """log_probs: tokens, loss_mask → ref_log_probs; with `top_k` K also ref_top_log_probs, float32, and
        ref_top_tokens, int32, [tokens, K] · values: tokens → values. float32, aligned with `tokens`. An op that reads
        prompt and response makes the tokens of them itself."""
        torch.set_num_threads(self._setup.threads)
        rows = self._texts.with_tokens(call, batch)
        with without_adapters(self._rank.module):
            columns = self._columns(call, rows)
        return Result(Batch(batch.ids, batch.prompt_ids, columns) if self._rank.tells else None, {})

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        weights.read(weights.parts(self._rank.module), manifest, buffer)

    def load(self) -> None:
        if self._lender is None:
            self._rank.load()

    def offload(self) -> None:
        if self._lender is None:
            self._rank.offload()

    def close(self) -> None:
        if self._lender is None:
            self._rank.close()

    def _columns(self, call: Call, batch: Batch) -> dict[str, Column]:
        if call.op.method == "log_probs":
            own = self._rank.log_probs(call, batch, with_entropy=False)["log_probs"]
            columns: dict[str, Column] = {"ref_log_probs": own}
            count = top_k(call.op)
            if count is not None:
                made, tokens = self._rank.top_log_probs(call, batch, count)
                columns |= {"ref_top_log_probs": made, "ref_top_tokens": tokens}
            return columns
        if call.op.method == "values":
            return {"values": self._rank.values(call, batch)}
        raise InternalError(f"a scorer has no op {call.op.id}")


def top_k(op: Op) -> int | None:
    """K of the column `ref_top_log_probs`, f32[K]; None where the op does not write it."""
    found = (field.dtype for field in op.outputs if field.name == "ref_top_log_probs")
    return next((int(dtype.partition("[")[2].rstrip("]")) for dtype in found), None)
