"""The trainer `megatron`: log_probs, values and update of a model over tp, pp and dp ranks (contract.Trainer)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from flowrl.backends.batch import Batch, Column
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.trainers.fsdp.model_rank import difference_metrics, token_mean
from flowrl.backends.trainers.fsdp.optimizer import learning_rate
from flowrl.backends.trainers.fsdp.texts import Texts
from flowrl.backends.trainers.megatron import checkpoint
from flowrl.backends.trainers.megatron.library import require
from flowrl.backends.trainers.megatron.model_rank import MegatronRank
from flowrl.backends.trainers.megatron.update import update
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import OptimizerParams, UpdateParams


class MegatronTrainer:
    """One rank. Of a replica's ranks one gives rows: the first of its last stage."""

    def __init__(self, setup: RankSetup) -> None:
        require(setup.role.span)
        self._setup = setup
        self._optimizer_params = setup.role.optimizer or OptimizerParams()
        self._rank = MegatronRank(setup, self._optimizer_params)
        self._texts = Texts(setup)

    def call(self, call: Call, batch: Batch) -> Result:
        """log_probs: tokens, loss_mask → old_log_probs, entropy · values: tokens → values · update: what its loss reads
        → metrics. Token columns are float32 and aligned with `tokens`. An op that reads prompt and response makes the
        tokens of them itself."""
        torch.set_num_threads(self._setup.threads)
        batch = self._texts.with_tokens(call, batch)
        if call.op.method == "log_probs":
            return self._log_probs(call, batch)
        if call.op.method == "values":
            values = self._rank.values(call, batch)
            return self._result(batch, {} if values is None else {"values": values})
        if call.op.method == "update" and isinstance(call.op.params, UpdateParams):
            rate = learning_rate(self._optimizer_params, call.step, self._setup.steps)
            return Result(None, update(self._rank, rate, call, call.op.params, batch))
        raise InternalError(f"a trainer has no op {call.op.id}")

    def manifest(self) -> Sequence[TensorSpec]:
        return self._rank.manifest()

    def write_weights(self, buffer: Bytes) -> None:
        self._rank.write_weights(buffer)

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """Take weights in; the optimizer's moments stay as they are."""
        self._rank.read_weights(manifest, buffer)

    def save(self, folder: Path) -> None:
        checkpoint.save(folder, self._rank)

    def restore(self, folder: Path) -> None:
        checkpoint.restore(folder, self._rank)

    def load(self) -> None:
        self._rank.load()

    def offload(self) -> None:
        self._rank.offload()

    def close(self) -> None:
        self._rank.close()

    def _log_probs(self, call: Call, batch: Batch) -> Result:
        wanted = {field.name for field in call.op.outputs} or {"old_log_probs", "entropy"}
        made = self._rank.log_probs(call, batch, with_entropy="entropy" in wanted)
        if not made:
            return Result(None, {})
        columns: dict[str, Column] = {"old_log_probs": made["log_probs"]}
        metrics = dict(difference_metrics(self._rank, made["log_probs"], batch))
        if "entropy" in made:
            columns["entropy"] = made["entropy"]
            metrics["entropy"] = token_mean(made["entropy"], batch.ragged("loss_mask"))
        return self._result(batch, columns, metrics)

    def _result(
        self, batch: Batch, columns: dict[str, Column], metrics: dict[str, tuple[float, float]] | None = None
    ) -> Result:
        if not self._rank.groups.speaks:
            return Result(None, {})
        return Result(Batch(batch.ids, batch.prompt_ids, columns), metrics or {})
