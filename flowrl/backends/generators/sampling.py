"""One token from one row of logits: inverse-CDF sampling, so that a sample's token depends on its own uniform alone.

Pure functions on tensors. Must not know models, caches or samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy; `top_k` -1 and `top_p` 1 keep every token. top_k cuts first, top_p what is left."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


def pick(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The next token of each row and its log-prob.

    logits [rows, vocab], any float dtype; uniforms float64 [rows] in [0, 1), not read when greedy.
    Gives int64 [rows] and float32 [rows]. The log-prob is of softmax(logits / temperature) over the whole vocabulary
    (temperature 1 when greedy): what a trainer computes again, whatever top_k and top_p took away.
    """
    greedy = sampling.temperature == 0
    scaled = logits.float() if greedy else logits.float() / sampling.temperature
    log_probs = torch.log_softmax(scaled, dim=-1)
    tokens = log_probs.argmax(dim=-1) if greedy else _inverse_cdf(_kept(log_probs, sampling), uniforms)
    return tokens, log_probs.gather(-1, tokens[:, None])[:, 0]


def _kept(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities float64 [rows, vocab], zero where top_k or top_p cut; not normalised."""
    probs = log_probs.double().exp()
    if 0 < sampling.top_k < probs.shape[-1]:
        least = probs.topk(sampling.top_k, dim=-1).values[:, -1:]
        probs = probs.masked_fill(probs < least, 0.0)
    if sampling.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        cut = before >= sampling.top_p * ordered.sum(dim=-1, keepdim=True)
        probs = probs.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), 0.0)
    return probs


def _inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds uniform x total: int64 [rows]."""
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms * total, below)  # rounding may reach the total, beyond the last token
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
