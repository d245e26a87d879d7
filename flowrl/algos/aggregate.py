"""From a loss per token to one number, as a numerator and a denominator.

They are apart because the denominator belongs to the whole minibatch: it is summed over micro-batches and ranks before
the first backward pass, so that the loss does not depend on how the minibatch was cut. For rows i with tokens t where
the mask is true, n_i tokens in row i and R rows that have a token:

- token_mean: sum_i sum_t loss / sum_i n_i (DAPO, Yu et al. 2025)
- sequence_mean: sum_i (sum_t loss / n_i) / R (GRPO, Shao et al. 2024)
- sequence_sum_fixed: sum_i sum_t loss / (R x fixed_tokens) (Dr. GRPO, Liu et al. 2025)
"""

from __future__ import annotations

import torch
from torch import Tensor

from flowrl.algos.ragged import masked_sum

TOKEN_MEAN = "token_mean"
SEQUENCE_MEAN = "sequence_mean"
SEQUENCE_SUM_FIXED = "sequence_sum_fixed"
AGGREGATES = (TOKEN_MEAN, SEQUENCE_MEAN, SEQUENCE_SUM_FIXED)


def numerator(loss: Tensor, mask: Tensor, how: str) -> Tensor:
    """A scalar to be summed over micro-batches and ranks. loss float [rows, tokens], mask bool of the same shape."""
    sums = masked_sum(loss, mask)
    if how == SEQUENCE_MEAN:
        sums = sums / mask.sum(dim=-1).clamp(min=1)
    return sums.sum()


def denominator(mask: Tensor, how: str, fixed_tokens: int | None = None) -> Tensor:
    """A float64 scalar to be summed likewise. `fixed_tokens` is read by sequence_sum_fixed alone."""
    if how == TOKEN_MEAN:
        return mask.sum().double()
    rows = mask.any(dim=-1).sum().double()
    if how == SEQUENCE_MEAN:
        return rows
    if how != SEQUENCE_SUM_FIXED or fixed_tokens is None:
        raise ValueError(f"aggregate {how} with fixed_tokens {fixed_tokens}")
    return rows * torch.tensor(float(fixed_tokens), dtype=torch.float64)
