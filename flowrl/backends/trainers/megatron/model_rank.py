"""One rank of a model on Megatron Core: what trainers, scorers and reward models share. Knows no loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flowrl.backends.batch import Batch, Ragged
from flowrl.backends.contract import Bytes, Call, RankSetup, TensorSpec
from flowrl.backends.models import torch_dtype
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch, dummy, micro_batches
from flowrl.backends.trainers.fsdp.model_rank import collected, forward_params
from flowrl.backends.trainers.megatron import forward, weights
from flowrl.backends.trainers.megatron.forward import Asked, Made, Stages
from flowrl.backends.trainers.megatron.groups import join, leave
from flowrl.backends.trainers.megatron.model import build, facts_of, full_shapes, read_config
from flowrl.backends.trainers.megatron.optimizer import Optimizer
from flowrl.backends.weights import layout
from flowrl.graph.params import OptimizerParams


class MegatronRank:
    """This rank's part of a model. Every rank of the role makes every call: those of a replica with the same rows."""

    def __init__(self, setup: RankSetup, optimizer: OptimizerParams | None = None) -> None:
        """`optimizer`: of a trainer; without it nothing moves."""
        torch.set_num_threads(setup.threads)
        self.setup, self.config = setup, read_config(setup)
        assert setup.model is not None
        assert setup.model_folder is not None
        self.dtype = torch_dtype(setup.model.dtype)
        self.facts = facts_of(self.config, setup.model.head)
        self.groups = join(setup)
        self.mesh: Any = self.groups.mesh
        with self.groups.here():
            module = build(setup, self.config, self.facts, self.groups, self.dtype)
        module.requires_grad_(optimizer is not None)
        self.optimizer: Optimizer | None = None
        if optimizer is not None:
            self.optimizer = Optimizer(module, optimizer, self.groups, self.dtype, setup.role.span)
            module = self.optimizer.model
        self.stages = Stages(module, self.facts, self.groups)
        self.shards = weights.shards(module, self.facts, self.groups)
        missing = self.fill(weights.FolderSource(setup.model_folder))
        weights.require_whole(missing, setup.model, setup.model_folder)

    def fill(self, source: weights.Source) -> list[str]:
        """Take all weights from `source`, also the optimizer's float32 copies; gives the names that it lacks."""
        missing: list[str] = []
        for shard in self.shards:
            flat = shard.parameter.detach().view(-1)
            missing += weights.fill(shard, flat, 0, source)
            own = None if self.optimizer is None else self.optimizer.own(shard.parameter)
            if own is not None:
                weights.fill(shard, own.master.detach(), own.start, source)
        return missing

    def manifest(self) -> tuple[TensorSpec, ...]:
        return layout(full_shapes(self.config, self.facts).items(), self.dtype)

    def write_weights(self, buffer: Bytes) -> None:
        weights.write(self.shards, self.groups, self.manifest(), buffer)

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes) -> None:
        source = weights.BufferSource(manifest, buffer)
        source.require_only(full_shapes(self.config, self.facts))
        self.fill(source)

    def cut(
        self, batch: Batch, budget_tokens: int, columns: Sequence[str] = (), *, by_prompt: bool = False
    ) -> list[MicroBatch]:
        """The batch's micro-batches. Replicas need not have as many, since they meet when gradients are summed; one
        without any has a dummy, so that all have the same metrics to sum."""
        own = micro_batches(batch, budget_tokens, columns, self.setup.device, by_prompt=by_prompt)
        return own or [dummy(columns, self.setup.device)]

    def log_probs(self, call: Call, batch: Batch, *, with_entropy: bool) -> dict[str, Ragged]:
        """`log_probs` and `entropy` of the tokens under `loss_mask`, 0 elsewhere: float32, aligned with `tokens`; on
        ranks before the last stage nothing."""
        params = forward_params(call)
        asked = Asked("log_probs", params.temperature, with_entropy)
        parts = self._read(batch, params.micro_batch_tokens, asked)
        masked = [(m, tuple(each.masked_fill(~m.mask, 0.0) for each in made)) for m, made in parts]
        names = ("log_probs", "entropy") if with_entropy else ("log_probs",)
        return {name: collected(batch, masked, index) for index, name in enumerate(names)} if self._has_rows else {}

    def top_log_probs(self, call: Call, batch: Batch, count: int) -> tuple[Ragged, Ragged] | None:
        """The `count` likeliest tokens at each place under `loss_mask`, 0 elsewhere: log-probs and tokens."""
        params = forward_params(call)
        parts = self._read(batch, params.micro_batch_tokens, Asked("likeliest", params.temperature, count=count))
        masked = [(m, tuple(each.masked_fill(~m.mask[..., None], 0) for each in made)) for m, made in parts]
        return (collected(batch, masked, 0), collected(batch, masked, 1, np.int32)) if self._has_rows else None

    def values(self, call: Call, batch: Batch) -> Ragged | None:
        """The value of the state before each token, 0 at the first: float32, aligned with `tokens`."""
        parts = self._read(batch, forward_params(call).micro_batch_tokens, Asked("values"))
        return collected(batch, parts, 0) if self._has_rows else None

    def last_scores(self, batch: Batch, budget_tokens: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """The scalar head at each row's last token: float32 [rows]."""
        scores = np.zeros(len(batch), dtype=np.float32)
        for micro, (made,) in self._read(batch, budget_tokens, Asked("last_scores")):
            scores[micro.rows] = made.cpu().numpy()[: len(micro.rows)]
        return scores if self._has_rows else None

    def load(self) -> None:
        """Come back to the device; on a CPU nothing has left it."""
        if self.setup.device == "cpu":
            return
        if self.optimizer is None:
            self.stages.module.to(self.setup.device)
        else:
            self.optimizer.load()

    def offload(self) -> None:
        if self.setup.device == "cpu":
            return
        if self.optimizer is None:
            self.stages.module.to("cpu")
        else:
            self.optimizer.offload()

    def close(self) -> None:
        self.shards.clear()
        self.optimizer = None
        leave(self.groups)

    @property
    def module(self) -> Any:
        """As the schedule runs it."""
        return self.stages.module

    @property
    def _has_rows(self) -> bool:
        return self.groups.is_last

    def _read(self, batch: Batch, budget_tokens: int, asked: Asked) -> list[tuple[MicroBatch, Made]]:
        micros = self.cut(batch, budget_tokens)
        found: list[tuple[MicroBatch, Made]] = []
        forward.run(
            self.stages, micros, lambda _: asked, lambda n, made: found.append((micros[n], made)), backward=False
        )
        return found
