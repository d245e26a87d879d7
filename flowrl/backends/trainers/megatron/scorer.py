"""The scorer `megatron`: log_probs (ref_log_probs, with `top_k` the likeliest tokens too) and values of a model that no
update moves (contract.Scorer)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flowrl.backends.batch import Batch, Column
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.trainers.fsdp.scorer import top_k
from flowrl.backends.trainers.fsdp.texts import Texts
from flowrl.backends.trainers.megatron.library import require
from flowrl.backends.trainers.megatron.model_rank import MegatronRank
from flowrl.diag.diagnostic import InternalError


class MegatronScorer:
    """One rank. Of a replica's ranks one gives rows: the first of its last stage."""

    def __init__(self, setup: RankSetup) -> None:
        require(setup.role.span)
        self._setup = setup
        self._rank = MegatronRank(setup)
        self._texts = Texts(setup)

    def call(self, call: Call, batch: Batch) -> Result:
        """log_probs: tokens, loss_mask → ref_log_probs; with `top_k` K also ref_top_log_probs, float32, and
        ref_top_tokens, int32, [tokens, K] · values: tokens → values. float32, aligned with `tokens`. An op that reads
        prompt and response makes the tokens of them itself."""
        torch.set_num_threads(self._setup.threads)
        columns = self._columns(call, self._texts.with_tokens(call, batch))
        if not self._rank.groups.speaks:
            return Result(None, {})
        return Result(Batch(batch.ids, batch.prompt_ids, columns), {})

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        self._rank.read_weights(manifest, buffer)

    def load(self) -> None:
        self._rank.load()

    def offload(self) -> None:
        self._rank.offload()

    def close(self) -> None:
        self._rank.close()

    def _columns(self, call: Call, batch: Batch) -> dict[str, Column]:
        if call.op.method == "values":
            values = self._rank.values(call, batch)
            return {} if values is None else {"values": values}
        if call.op.method != "log_probs":
            raise InternalError(f"a scorer has no op {call.op.id}")
        columns: dict[str, Column] = {}
        own = self._rank.log_probs(call, batch, with_entropy=False)
        if own:
            columns["ref_log_probs"] = own["log_probs"]
        count = top_k(call.op)
        likeliest = None if count is None else self._rank.top_log_probs(call, batch, count)
        if likeliest is not None:
            columns["ref_top_log_probs"], columns["ref_top_tokens"] = likeliest
        return columns
