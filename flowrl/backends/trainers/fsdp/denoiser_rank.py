"""One rank of a denoiser: what a language model's rank does, of denoising steps in place of tokens.

A micro-batch's rows are single steps, each a row of one token, so that a budget of tokens bounds what a forward pass
holds: losses and estimators do not change. Losses that need a sample's steps together are refused before a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flowrl.algos.denoising import step_entropy, step_log_probs, step_mean
from flowrl.backends.batch import Batch, IntArray, Ragged
from flowrl.backends.contract import Call
from flowrl.backends.denoisers import Text, tokens_of, velocity
from flowrl.backends.seeds import uniform_rows
from flowrl.backends.trainers.fsdp.group import most
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch
from flowrl.backends.trainers.fsdp.model_rank import ModelRank, forward_params
from flowrl.graph.params import UpdateParams


@dataclass(frozen=True, slots=True)
class Steps:
    """Of a micro-batch: where each step began and ended, [steps, channels, height, width], at which noise levels and
    with which noise, [steps]."""

    before: Tensor
    after: Tensor
    sigma: Tensor
    next_sigma: Tensor
    noise: Tensor
    text: Text


@dataclass(frozen=True, slots=True)
class DenoiserBatch(MicroBatch):
    steps: Steps | None = None


class DenoiserRank(ModelRank):
    """`sigmas`, `step_noise` and `loss_mask` lie along `latents`; place t of a row is the state after t steps."""

    def cut(
        self, batch: Batch, budget_tokens: int, columns: Sequence[str] = (), *, by_prompt: bool = False
    ) -> list[MicroBatch]:
        """Steps under `loss_mask`, as many at a time as fit; then dummies until every rank has as many. A dummy is the
        step from noise to noise, and counts nowhere."""
        rows, places = np.nonzero(_matrix(batch.ragged("loss_mask")))
        latents = batch.ragged("latents").values
        tokens = tokens_of(latents.shape) + np.asarray(batch.columns["text_states"]).shape[1]
        size = max(1, budget_tokens // tokens)
        own = [
            self._steps(batch, rows[start : start + size], places[start : start + size], columns)
            for start in range(0, len(rows), size)
        ]
        missing = most(len(own), self.mesh) - len(own)
        return [*own, *[self._dummy(batch, columns)] * missing]

    def log_probs(self, call: Call, batch: Batch, *, with_entropy: bool) -> dict[str, Ragged]:
        """As ModelRank; the entropy is that of one number of the step's normal."""
        params, lengths = forward_params(call), batch.ragged("latents").lengths
        names = ("log_probs", "entropy") if with_entropy else ("log_probs",)
        found = {name: np.zeros(_matrix(batch.ragged("loss_mask")).shape, dtype=np.float32) for name in names}
        with self.reading():
            for micro in self.cut(batch, params.micro_batch_tokens):
                made = self.token_log_probs(micro, params.temperature, with_entropy=with_entropy)
                for name, values in zip(names, made, strict=False):
                    assert values is not None
                    found[name][micro.rows, micro.ids[: len(micro.rows), 0].cpu().numpy()] = (
                        values[: len(micro.rows), 0].cpu().numpy()
                    )
        return {name: Ragged(values.reshape(-1), lengths) for name, values in found.items()}

    def token_log_probs(
        self, micro: MicroBatch, temperature: float, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """float32 [steps, 1]."""
        assert isinstance(micro, DenoiserBatch)
        assert micro.steps is not None
        steps = micro.steps
        made = velocity(self.module, steps.before, steps.sigma, steps.text)
        mean = step_mean(steps.before, made, steps.sigma, steps.next_sigma, steps.noise)
        own = step_log_probs(steps.after, mean, steps.noise)[:, None]
        return own, step_entropy(steps.noise)[:, None] if with_entropy else None

    def chosen(self, call: Call, params: UpdateParams, batch: Batch) -> Batch:
        """With `action_share` of each sample's steps left in `loss_mask`, drawn by the sample's own numbers, others in
        each step of the run (Xue et al. 2025, `timestep_fraction` of their code)."""
        if params.action_share is None:
            return batch
        mask = _matrix(batch.ragged("loss_mask"))
        numbers = uniform_rows(call.seed, f"{call.op.id}.actions{call.step}", batch.ids, mask.shape[1])
        order = np.where(mask, numbers, np.inf).argsort(axis=1).argsort(axis=1)
        count = np.maximum(1, np.rint(params.action_share * mask.sum(axis=1)))[:, None]
        left = Ragged((mask & (order < count)).reshape(-1), batch.ragged("loss_mask").lengths)
        return replace(batch, columns={**batch.columns, "loss_mask": left})

    def _steps(self, batch: Batch, rows: IntArray, places: IntArray, columns: Sequence[str]) -> DenoiserBatch:
        states, device = _matrix(batch.ragged("latents")), self.setup.device

        def at(name: str, shift: int = 0) -> Tensor:
            picked = _matrix(batch.ragged(name))[rows, places + shift]
            return torch.from_numpy(np.asarray(picked, dtype=np.float32)).to(device)

        before, after = (torch.from_numpy(states[rows, places + shift]).to(device).float() for shift in (-1, 0))
        said = (np.asarray(batch.columns[name])[rows] for name in ("text_states", "text_pooled"))
        states_of, pooled = (torch.from_numpy(each).to(device).to(self.dtype) for each in said)
        steps = Steps(before, after, at("sigmas", -1), at("sigmas"), at("step_noise"), Text(states_of, pooled))
        ones = torch.ones((len(rows), 1), dtype=torch.bool, device=device)
        return DenoiserBatch(
            rows=rows,
            ids=torch.from_numpy(places.astype(np.int64))[:, None].to(device),
            mask=ones,
            lengths=ones[:, 0].long(),
            columns={name: at(name)[:, None] for name in columns},
            steps=steps,
        )

    def _dummy(self, batch: Batch, columns: Sequence[str]) -> DenoiserBatch:
        shape, device = batch.ragged("latents").values.shape[1:], self.setup.device
        said = (np.asarray(batch.columns[name]).shape[1:] for name in ("text_states", "text_pooled"))
        text = Text(*(torch.zeros((1, *each), device=device, dtype=self.dtype) for each in said))
        state, one = torch.zeros((1, *shape), device=device), torch.ones(1, device=device)
        zeros = torch.zeros((1, 1), device=device)
        return DenoiserBatch(
            rows=np.zeros(0, dtype=np.int64),
            ids=zeros.long(),
            mask=zeros.bool(),
            lengths=one.long(),
            columns=dict.fromkeys(columns, zeros),
            steps=Steps(state, state, one, one, one, text),
        )


def _matrix(column: Ragged) -> np.ndarray:
    """[rows, places, …]: all rows have equally many."""
    lengths = column.lengths
    places = int(lengths[0]) if len(lengths) else 0
    return column.values.reshape(len(lengths), places, *column.values.shape[1:])
