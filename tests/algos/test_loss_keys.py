"""Which keys of `update` a loss reads: the signature against what the implementation takes from its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from flowrl.algos.losses import LOSSES
from flowrl.graph import signatures
from flowrl.graph.params import UpdateParams

KEY_OF_FIELD: Mapping[str, str] = {
    "clip_low": "clip_ratio",
    "clip_high": "clip_ratio",
    "clip_dual": "clip_dual",
    "clip_value": "clip_value",
    "beta": "beta",
}
"""Parameters that belong to some losses only, and the key that a flow gives them by."""


class Watched:
    """Parameters that remember which of them were read."""

    def __init__(self, params: UpdateParams) -> None:
        self._params = params
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self._params, name)


def columns() -> dict[str, Tensor]:
    names = ("advantages", "old_log_probs", "values", "returns", "ref_log_probs")
    made = {name: torch.linspace(-1.0, 1.0, 6).reshape(2, 3) for name in names}
    of_pairs = {"pair_sign": torch.tensor([1.0, -1.0]), "pair_group": torch.zeros(2)}
    return made | of_pairs | {"ref_top_log_probs": torch.full((2, 3, 1), -0.5)}


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_signature_names_the_keys_that_the_loss_reads(loss: str) -> None:
    watched = Watched(UpdateParams(loss=loss, clip_dual=3.0, clip_value=0.2, beta=0.1))
    mask = torch.ones(2, 3, dtype=torch.bool)
    current = {"bradley_terry": torch.zeros(2), "distill": torch.zeros(2, 3, 1)}.get(loss, torch.zeros(2, 3))
    LOSSES[loss](current, mask, columns(), watched)  # type: ignore[arg-type]
    read = {KEY_OF_FIELD[name] for name in watched.read if name in KEY_OF_FIELD}
    assert read == set(signatures.LOSSES[loss].keys)


def test_losses_on_pairs_aggregate_no_tokens() -> None:
    pairs = {name for name, loss in signatures.LOSSES.items() if not loss.aggregate}
    assert pairs == {name for name, loss in signatures.LOSSES.items() if loss.whole_groups}
