"""Losses per token. Pure functions: current log-probs (or values) and columns in, a loss and its metrics out.

All tensors are float32 [rows, tokens] aligned with `tokens`, mask bool; what stands where the mask is false is never
read. How tokens become one number is aggregate.py's business, what is added to a loss (entropy, KL) objective.py's.
Losses on pairs of responses are in pairs.py.
With A the advantages, r = exp(log_probs - old_log_probs), and sg() a value without gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flowrl.algos.corrections import LOG_RATIO_LIMIT
from flowrl.algos.kl import k3
from flowrl.algos.pairs import bradley_terry, dpo
from flowrl.algos.ragged import masked_sum
from flowrl.algos.terms import Columns, Terms
from flowrl.graph.params import UpdateParams

Loss = Callable[[Tensor, Tensor, Columns, UpdateParams], Terms]
"""(log_probs or values, mask, columns, parameters) → terms."""


def ppo(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) (Schulman et al. 2017, equation 7); for A < 0 and `clip_dual` c at most
    -A c (Ye et al. 2020, equation 5). Reads advantages, old_log_probs (absent: r is 1, as on-policy)."""
    log_ratio = _log_ratio(log_probs, mask, columns)
    return _clipped(log_ratio.exp(), log_ratio, _read(columns, "advantages", mask), params)


def gspo(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """PPO's loss with the ratio of the whole sequence, s = exp(mean_t log r_t); each token carries its own part of the
    gradient: sg(s) exp(log_probs - sg(log_probs)) (Zheng et al. 2025, GSPO-token)."""
    log_ratio = _log_ratio(log_probs, mask, columns)
    mean = masked_sum(log_ratio, mask) / mask.sum(dim=-1).clamp(min=1)
    own = torch.where(mask, log_probs, torch.zeros_like(log_probs))
    sequence = (mean.detach()[:, None] + own - own.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return _clipped(sequence.exp(), log_ratio, _read(columns, "advantages", mask), params)


def cispo(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """-sg(clip(r, 1 - low, 1 + high)) A log_probs: the weight is clipped, the gradient is not (MiniMax 2025,
    equation 4)."""
    log_ratio = _log_ratio(log_probs, mask, columns)
    ratio = log_ratio.exp().detach()
    weight = ratio.clamp(1 - params.clip_low, 1 + params.clip_high)
    own = torch.where(mask, log_probs, torch.zeros_like(log_probs))
    loss = -weight * _read(columns, "advantages", mask) * own
    return Terms(loss, {"clip_fraction": (weight != ratio).float(), "kl": _kl_of(log_ratio)})


def reinforce(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """-sg(r) A log_probs (Williams 1992, with the importance ratio of old samples)."""
    log_ratio = _log_ratio(log_probs, mask, columns)
    own = torch.where(mask, log_probs, torch.zeros_like(log_probs))
    loss = -log_ratio.exp().detach() * _read(columns, "advantages", mask) * own
    return Terms(loss, {"kl": _kl_of(log_ratio)})


def topr(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """-w A log_probs with w = 1 where A >= 0, else the sequence's ratio truncated to [0, 1] (Le Roux et al. 2025,
    "Tapered off-policy REINFORCE")."""
    log_ratio = _log_ratio(log_probs, mask, columns)
    advantages = _read(columns, "advantages", mask)
    whole = masked_sum(log_ratio.detach(), mask).clamp(max=0.0).exp()[:, None]
    weight = torch.where(advantages < 0, whole.expand_as(advantages), torch.ones_like(advantages))
    own = torch.where(mask, log_probs, torch.zeros_like(log_probs))
    return Terms(-weight * advantages * own, {"kl": _kl_of(log_ratio)})


def value(values: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """(V - R)² / 2; with `clip_value` c the larger of that and ((V_old + clip(V - V_old, -c, c)) - R)² / 2 (Schulman's
    PPO code, as in Huang et al. 2022, detail 9). Reads returns, and values of before the update."""
    new = torch.where(mask, values, torch.zeros_like(values))
    returns = _read(columns, "returns", mask)
    loss = (new - returns).square()
    if params.clip_value is None:
        return Terms(loss / 2)
    old = _read(columns, "values", mask)
    clipped = (old + (new - old).clamp(-params.clip_value, params.clip_value) - returns).square()
    return Terms(torch.maximum(loss, clipped) / 2, {"clip_fraction": (clipped > loss).float()})


def sft(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """-log_probs."""
    return Terms(-torch.where(mask, log_probs, torch.zeros_like(log_probs)))


def distill(log_probs: Tensor, mask: Tensor, columns: Columns, params: UpdateParams) -> Terms:
    """sum_k p_k (log p_k - log q_k) over the teacher's K likeliest tokens at each place, p of the teacher and q of the
    student: KL(teacher || student) but for what lies beyond the K (Hinton et al. 2015, "Distilling the knowledge in a
    neural network"; on the student's own samples Agarwal et al. 2024, "On-policy distillation", with its forward KL).

    log_probs, of the student at those tokens, and ref_top_log_probs: float32 [rows, tokens, K]. Metric: `top_mass`, the
    teacher's probability of the K together.
    """
    inside = mask[..., None]
    teacher = torch.where(inside, columns["ref_top_log_probs"], torch.zeros_like(log_probs))
    own = torch.where(inside, log_probs, torch.zeros_like(log_probs))
    share = teacher.exp()
    return Terms((share * (teacher - own)).sum(dim=-1), {"top_mass": share.sum(dim=-1)})


LOSSES: dict[str, Loss] = {
    "ppo": ppo,
    "gspo": gspo,
    "cispo": cispo,
    "reinforce": reinforce,
    "topr": topr,
    "value": value,
    "sft": sft,
    "distill": distill,
    "dpo": dpo,
    "bradley_terry": bradley_terry,
}


def _clipped(ratio: Tensor, log_ratio: Tensor, advantages: Tensor, params: UpdateParams) -> Terms:
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - params.clip_low, 1 + params.clip_high)
    loss = torch.maximum(free, clipped)
    metrics = {"clip_fraction": (clipped > free).float(), "kl": _kl_of(log_ratio)}
    if params.clip_dual is not None:
        most = -advantages * params.clip_dual
        metrics["clip_dual_fraction"] = ((advantages < 0) & (loss > most)).float()
        loss = torch.where(advantages < 0, torch.minimum(loss, most), loss)
    return Terms(loss, metrics)


def _log_ratio(log_probs: Tensor, mask: Tensor, columns: Columns) -> Tensor:
    """log r, 0 where the mask is false, within ±LOG_RATIO_LIMIT."""
    old = columns.get("old_log_probs")
    difference = log_probs - (log_probs.detach() if old is None else old)
    return torch.where(mask, difference, torch.zeros_like(difference)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _kl_of(log_ratio: Tensor) -> Tensor:
    """k3 of KL(old || current), what the update has moved so far."""
    return k3(torch.zeros_like(log_ratio), log_ratio.detach())


def _read(columns: Columns, name: str, mask: Tensor) -> Tensor:
    return torch.where(mask, columns[name], torch.zeros_like(columns[name]))
