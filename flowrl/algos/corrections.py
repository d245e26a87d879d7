"""Corrections for samples whose log-probs at sampling differ from the trainer's (another engine, older weights).

With rho = exp(old_log_probs - rollout_log_probs), of a token, or multiplied over a turn or a whole sample:

- tis: weight min(rho, cap), not below floor (truncated importance sampling; Yao et al. 2025)
- mis: weight rho where floor <= rho <= cap, 0 elsewhere; the tokens still count in denominators (masked importance
  sampling; Liu et al. 2025, "When speed kills stability")
- reject: tokens with rho outside [floor, cap] leave the mask, hence the denominators too; weight 1 inside

A missing cap is infinite, a missing floor 0. No gradient flows through a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flowrl.algos.ragged import masked_sum, runs
from flowrl.graph.params import CorrectionParams

LOG_RATIO_LIMIT = 20.0
"""Beyond e^±20 a ratio only overflows; every cap in use is far inside."""

Correction = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]
"""(rho, mask, floor, cap) → (weight, mask)."""


@torch.no_grad()
def correct(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, corrections: Sequence[CorrectionParams]
) -> tuple[Tensor, Tensor]:
    """Weights float32 and the mask that is left, bool, both [rows, tokens]; several corrections multiply.

    old_log_probs, rollout_log_probs float32 and mask bool, all [rows, tokens].
    """
    weight = torch.ones_like(old_log_probs)
    left = mask
    for params in corrections:
        rho = ratio(old_log_probs, rollout_log_probs, mask, params.unit)
        floor = 0.0 if params.floor is None else params.floor
        cap = math.inf if params.cap is None else params.cap
        own, left_here = CORRECTIONS[params.name](rho, mask, floor, cap)
        weight, left = weight * own, left & left_here
    return torch.where(left, weight, torch.zeros_like(weight)), left


def ratio(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, unit: str) -> Tensor:
    """rho of each token's unit (token, turn or sample): [rows, tokens]; 1 where the mask is false."""
    logs = torch.where(mask, old_log_probs - rollout_log_probs, torch.zeros_like(old_log_probs))
    if unit == "sample":
        logs = masked_sum(logs, mask)[:, None].expand_as(logs)
    elif unit == "turn":
        numbers, count = runs(mask)
        sums = logs.new_zeros(count + 1).index_add(0, numbers.reshape(-1), logs.reshape(-1))
        logs = sums[numbers]
    elif unit != "token":
        raise ValueError(f"correction by {unit}")
    return torch.where(mask, logs.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp(), torch.ones_like(logs))


def tis(rho: Tensor, mask: Tensor, floor: float, cap: float) -> tuple[Tensor, Tensor]:
    """Truncate."""
    return rho.clamp(floor, cap), mask


def mis(rho: Tensor, mask: Tensor, floor: float, cap: float) -> tuple[Tensor, Tensor]:
    """Mask the weight."""
    inside = (rho >= floor) & (rho <= cap)
    return torch.where(inside, rho, torch.zeros_like(rho)), mask


def reject(rho: Tensor, mask: Tensor, floor: float, cap: float) -> tuple[Tensor, Tensor]:
    """Take out of the batch."""
    return torch.ones_like(rho), mask & (rho >= floor) & (rho <= cap)


CORRECTIONS: dict[str, Correction] = {"tis": tis, "mis": mis, "reject": reject}
