"""One rank of a sharded model: what trainers, scorers and reward models share. Knows no loss and no optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from flowrl.backends.batch import Batch, Ragged, images_of
from flowrl.backends.contract import Call, Metrics, RankSetup
from flowrl.backends.images import Vision
from flowrl.backends.models import torch_dtype
from flowrl.backends.sight import look
from flowrl.backends.trainers.fsdp import forward
from flowrl.backends.trainers.fsdp.group import largest, most
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch, dummy, micro_batches
from flowrl.backends.trainers.fsdp.model import build
from flowrl.diag.diagnostic import InternalError
from flowrl.graph.params import ForwardParams

DIFFERENCE_MEAN, DIFFERENCE_MAX = "rollout_log_prob_diff_mean", "rollout_log_prob_diff_max"
"""Metrics: mean and largest |trainer's log-prob - generator's| of the sampled tokens, under the weights they were
sampled with."""


class Sharing(Protocol):
    """What an update and its metrics ask of a rank beside its model: how its rows are cut, whom it shares them with."""

    setup: RankSetup
    mesh: DeviceMesh | None

    def cut(
        self, batch: Batch, budget_tokens: int, columns: Sequence[str] = (), *, by_prompt: bool = False
    ) -> list[MicroBatch]: ...


class ModelRank:
    """A module of this rank's shards. Every rank of the role makes every call, with its own rows or with none."""

    def __init__(self, setup: RankSetup) -> None:
        torch.set_num_threads(setup.threads)
        self.setup = setup
        self.module, self.mesh = build(setup)
        assert setup.model is not None
        self.dtype = torch_dtype(setup.model.dtype)
        self._vision: Vision | None = None

    def cut(
        self, batch: Batch, budget_tokens: int, columns: Sequence[str] = (), *, by_prompt: bool = False
    ) -> list[MicroBatch]:
        """The batch's micro-batches, then dummies until every rank has as many: a forward pass of a sharded model is a
        collective, so ranks agree on their number before the first. `by_prompt`: rows of a prompt stay together."""
        own = micro_batches(
            batch, budget_tokens, columns, self.setup.device, by_prompt=by_prompt, packed=self.setup.role.engine.packing
        )
        missing = most(len(own), self.mesh) - len(own)
        cut = own + [dummy(columns, self.setup.device)] * missing
        images = images_of(batch)
        return cut if images is None else [self._seeing(micro, images) for micro in cut]

    def _seeing(self, micro: MicroBatch, images: Sequence[Sequence[bytes]]) -> MicroBatch:
        """With what its rows see; a dummy has no row of the batch."""
        if self._vision is None:
            assert self.setup.model_folder is not None
            self._vision = Vision(self.setup.model_folder, self.setup.role.span)
        shown = [self._vision.pixels(images[row]) for row in micro.rows] or [[]] * len(micro.ids)
        return replace(micro, sight=look(self.module, self._vision, micro.ids, micro.own, shown))

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Forward passes without a backward one. FSDP2 leaves the root's parameters gathered after a forward pass, for
        the backward one to come; none comes here, and the gathered copy would outlive an update of the shards."""
        with torch.no_grad():
            yield
        if isinstance(self.module, FSDPModule):
            self.module.reshard()

    def log_probs(self, call: Call, batch: Batch, *, with_entropy: bool) -> dict[str, Ragged]:
        """`log_probs` and `entropy` of the tokens under `loss_mask`, 0 elsewhere: float32, aligned with `tokens`."""
        params = forward_params(call)
        parts: list[tuple[MicroBatch, tuple[Tensor, ...]]] = []
        with self.reading():
            for micro in self.cut(batch, params.micro_batch_tokens):
                made = self.token_log_probs(micro, params.temperature, with_entropy=with_entropy)
                parts.append((micro, tuple(m.masked_fill(~micro.mask, 0.0) for m in made if m is not None)))
        names = ("log_probs", "entropy") if with_entropy else ("log_probs",)
        return {name: collected(batch, parts, index) for index, name in enumerate(names)}

    def token_log_probs(
        self, micro: MicroBatch, temperature: float, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As forward.log_probs, with logits made as the role's engine says."""
        way = self.setup.role.engine.cross_entropy
        return forward.log_probs(self.module, micro, temperature, with_entropy=with_entropy, cross_entropy=way)

    def top_log_probs(self, call: Call, batch: Batch, count: int) -> tuple[Ragged, Ragged]:
        """The `count` likeliest tokens at each place under `loss_mask`, 0 elsewhere, as [tokens, count]: their
        log-probs float32, and the tokens int32."""
        params = forward_params(call)
        parts: list[tuple[MicroBatch, tuple[Tensor, ...]]] = []
        with self.reading():
            for micro in self.cut(batch, params.micro_batch_tokens):
                made = forward.likeliest(self.module, micro, params.temperature, count)
                parts.append((micro, tuple(m.masked_fill(~micro.mask[..., None], 0) for m in made)))
        return collected(batch, parts, 0), collected(batch, parts, 1, np.int32)

    def values(self, call: Call, batch: Batch) -> Ragged:
        """The value of the state before each token, 0 at the first: float32, aligned with `tokens`."""
        budget = forward_params(call).micro_batch_tokens
        with self.reading():
            parts = [(micro, (forward.values(self.module, micro),)) for micro in self.cut(batch, budget)]
        return collected(batch, parts, 0)

    def last_scores(self, batch: Batch, budget_tokens: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The scalar head at each row's last token: float32 [rows]."""
        scores = np.zeros(len(batch), dtype=np.float32)
        with self.reading():
            for micro in self.cut(batch, budget_tokens):
                made = forward.last_scores(self.module, micro).cpu().numpy()
                scores[micro.rows] = made[: len(micro.rows)]
        return scores

    @property
    def copies(self) -> int:
        """Ranks over which FSDP2 averages gradients."""
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def tells(self) -> bool:
        """Whether rows and their results are told by this rank: all ranks of a `tp` have the same."""
        return self.setup.rank % self.setup.layout.tp == 0

    def trained(self) -> list[torch.nn.Parameter]:
        """What an optimizer moves: all parameters, or the adapters of a LoRA model."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def load(self) -> None:
        self._to(self.setup.device)

    def offload(self) -> None:
        self._to("cpu")

    def reduces(self, last: bool) -> None:
        """Before each backward pass of an update: with ZeRO stage 1 gradients stay whole until the `last` one."""
        if self.setup.role.engine.zero_stage == 1 and isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)

    def close(self) -> None:
        """Leave the process group once nothing of this process needs it any more."""
        self.module = torch.nn.Module()
        if self.mesh is not None and self.mesh.size() > 1 and dist.is_initialized():
            dist.destroy_process_group()
        self.mesh = None

    def _to(self, device: str) -> None:
        stays = self.setup.role.engine.parameter_offload
        if not stays and next(self.module.parameters()).device != torch.device(device):
            self.module.to(device)


def token_mean(column: Ragged, mask: Ragged) -> tuple[float, float]:
    """A metric: the mean over the tokens under the mask, and their count."""
    count = int(mask.values.sum())
    return (float(column.values[mask.values.astype(np.bool_)].mean()) if count else 0.0, float(count))


def difference_metrics(rank: Sharing, computed: Ragged, batch: Batch) -> Metrics:
    """How far `rollout_log_probs`, if the op was given them, are from what the trainer computes for the same tokens.
    A collective where they are given: the largest difference is that of all ranks."""
    if "rollout_log_probs" not in batch.columns:
        return {}
    mask = batch.ragged("loss_mask").values.astype(np.bool_)
    rollout = np.asarray(batch.ragged("rollout_log_probs").values, dtype=np.float64)
    far = np.abs(np.asarray(computed.values, dtype=np.float64) - rollout)[mask]
    count = float(mask.sum())
    farthest = largest(float(far.max()) if count else 0.0, rank.mesh)
    return {DIFFERENCE_MEAN: (float(far.mean()) if count else 0.0, count), DIFFERENCE_MAX: (farthest, 1.0)}


def forward_params(call: Call) -> ForwardParams:
    if not isinstance(call.op.params, ForwardParams):
        raise InternalError(f"`{call.op.id}` has no parameters of a forward pass")
    return call.op.params


def collected(
    batch: Batch, parts: Sequence[tuple[MicroBatch, tuple[Tensor, ...]]], index: int, dtype: Any = np.float32
) -> Ragged:
    """The `index`-th result of all micro-batches, unpadded, in the batch's order."""
    lengths = batch.ragged("tokens").lengths
    rows: list[Any] = [None] * len(lengths)
    for micro, made in parts:
        padded = made[index].cpu().numpy()
        for place, row in enumerate(micro.rows):
            rows[row] = padded[place, : lengths[row]]
    return Ragged.of(rows, dtype)
