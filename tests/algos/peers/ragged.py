"""Random ragged batches in the form that peers take: float64, and masks as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flowrl.algos.aggregate import denominator, numerator
from flowrl.algos.losses import LOSSES
from flowrl.graph.params import UpdateParams
from tests.algos.batches import Padded, padded

alike = settings(max_examples=20, deadline=None)
batches = padded(groups=3, samples=4, tokens=9)
any_batch = given(batches)
seeds = st.integers(0, 2**31)


@dataclass(frozen=True)
class Update:
    """The columns of an update. `advantages` is one number a row where `whole` is true, as of outcome rewards."""

    batch: Padded
    old: Tensor
    new: Tensor
    rollout: Tensor
    reference: Tensor
    advantages: Tensor
    returns: Tensor
    values: Tensor

    @property
    def mask(self) -> Tensor:
        return self.batch.mask

    @property
    def columns(self) -> dict[str, Tensor]:
        return {
            "old_log_probs": self.old,
            "rollout_log_probs": self.rollout,
            "ref_log_probs": self.reference,
            "advantages": self.advantages,
            "returns": self.returns,
            "values": self.values,
        }

    def leaf(self) -> Tensor:
        """Log-probs of now, a leaf of its own at each call; ratios are on both sides of every clip."""
        return self.new.clone().requires_grad_()

    def loss(self, leaf: Tensor, params: UpdateParams, how: str, fixed_tokens: int = 1) -> Tensor:
        loss = LOSSES[params.loss](leaf, self.mask, self.columns, params).loss
        return numerator(loss, self.mask, how) / denominator(self.mask, how, fixed_tokens)


def update_of(batch: Padded, whole: bool = False) -> Update:
    old = batch.log_probs().double()
    advantages = batch.normal().double()
    return Update(
        batch=batch,
        old=old,
        new=old + batch.normal(0.4).double(),
        rollout=old + batch.normal(0.4).double(),
        reference=old + batch.normal(0.4).double(),
        advantages=advantages[:, :1].expand_as(advantages) if whole else advantages,
        returns=batch.normal().double(),
        values=batch.normal().double(),
    )


def on_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """Rewards [rows] as peers hold them: [rows, tokens], on the last token of each row's own."""
    last = mask.shape[1] - 1 - mask.flip(-1).int().argmax(-1)
    return torch.zeros(mask.shape, dtype=torch.float64).scatter(1, last[:, None], rewards.double()[:, None])
