"""The trainer `fsdp`: log_probs, values and update of a model over the ranks of a role (contract.Trainer)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from flowrl.backends.batch import Batch, Column
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.backends.trainers.fsdp import adapters as sent
from flowrl.backends.trainers.fsdp import checkpoint
from flowrl.backends.trainers.fsdp.denoiser_rank import DenoiserRank
from flowrl.backends.trainers.fsdp.model_rank import ModelRank, difference_metrics, token_mean
from flowrl.backends.trainers.fsdp.optimizer import learning_rate, make_optimizer
from flowrl.backends.trainers.fsdp.texts import Texts
from flowrl.backends.trainers.fsdp.update import update
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import OptimizerParams, UpdateParams


class FsdpTrainer:
    """One rank."""

    def __init__(self, setup: RankSetup) -> None:
        self._setup = setup
        is_denoiser = setup.model is not None and setup.model.head == "denoiser"
        self._rank = DenoiserRank(setup) if is_denoiser else ModelRank(setup)
        self._optimizer_params = setup.role.optimizer or OptimizerParams()
        self._optimizer = make_optimizer(self._optimizer_params, self._rank.trained(), setup.role.span)
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
            columns: dict[str, Column] = {"values": self._rank.values(call, batch)}
            return Result(Batch(batch.ids, batch.prompt_ids, columns) if self._rank.tells else None, {})
        if call.op.method == "update" and isinstance(call.op.params, UpdateParams):
            return self._update(call, call.op.params, batch)
        raise InternalError(f"a trainer has no op {call.op.id}")

    def manifest(self, *, adapters: bool = False) -> Sequence[TensorSpec]:
        """`adapters`: of the adapters alone; else of the whole model, with adapters merged into it if it has any."""
        return sent.manifest(self._rank.module, self._rank.dtype, alone=adapters)

    def write_weights(self, buffer: Bytes, *, adapters: bool = False) -> None:
        specs = self.manifest(adapters=adapters)
        sent.write(self._rank.module, specs, buffer, self._rank.dtype, alone=adapters)

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        """Take weights in; the optimizer's moments stay as they are."""
        sent.read(self._rank.module, manifest, buffer)

    def lent(self) -> ModelRank:
        """The model for a scorer that is its base, with adapters left out."""
        return self._rank

    def save(self, folder: Path) -> None:
        checkpoint.save(folder, self._rank, self._optimizer)

    def restore(self, folder: Path) -> None:
        checkpoint.restore(folder, self._rank, self._optimizer)

    def load(self) -> None:
        self._rank.load()
        self._move_moments(self._setup.device)

    def offload(self) -> None:
        self._rank.offload()
        self._move_moments("cpu")

    def close(self) -> None:
        self._optimizer.state.clear()
        self._rank.close()

    def _log_probs(self, call: Call, batch: Batch) -> Result:
        wanted = {field.name for field in call.op.outputs} or {"old_log_probs", "entropy"}
        made = self._rank.log_probs(call, batch, with_entropy="entropy" in wanted)
        columns: dict[str, Column] = {"old_log_probs": made["log_probs"]}
        metrics = dict(difference_metrics(self._rank, made["log_probs"], batch))
        if "entropy" in made:
            columns["entropy"] = made["entropy"]
            metrics["entropy"] = token_mean(made["entropy"], batch.ragged("loss_mask"))
        told = Batch(batch.ids, batch.prompt_ids, columns) if self._rank.tells else None
        return Result(told, metrics)

    def _update(self, call: Call, params: UpdateParams, batch: Batch) -> Result:
        if isinstance(self._rank, DenoiserRank):
            batch = self._rank.chosen(call, params, batch)
        rate = learning_rate(self._optimizer_params, call.step, self._setup.steps)
        return Result(None, update(self._rank, self._optimizer, rate, call, params, batch))

    def _move_moments(self, device: str) -> None:
        for state in self._optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    state[name] = value.to(device)
