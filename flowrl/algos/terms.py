"""What a loss function gives: the loss and its metrics, before they become one number. Knows no loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

Columns = Mapping[str, Tensor]
"""Columns of a loss by the name of its slot, float32: [rows, tokens], [rows] for those of a sample, [rows, tokens, K]
for those of the K likeliest tokens."""


@dataclass(frozen=True, slots=True)
class Terms:
    loss: Tensor
    """float32 [rows, tokens]; of a loss on pairs [rows]."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Each of the loss's shape, without gradient; to be averaged over what the loss counts."""
