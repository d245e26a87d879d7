"""Token log-probs and entropy from logits, in float32 and in bounded memory.

The softmax over the vocabulary is taken in float32 for a few tokens at a time, in the forward and again in the
backward pass; only the logits themselves, in the model's dtype, stay between the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2**24
"""Most elements of a float32 [tokens, vocab] intermediate: 64 MiB each."""


def token_log_probs(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_elements: int = CHUNK_ELEMENTS,
    *,
    in_place: bool = False,
) -> Tensor:
    """log softmax(logits / temperature)[targets]: float32 [...], for logits [..., vocab] and targets int64 [...].
    `in_place`: the gradient takes the memory of the logits, which must be of no use to anything else then."""
    return _apply(logits, targets, temperature, chunk_elements, False, in_place)[0]


def token_log_probs_and_entropy(
    logits: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_elements: int = CHUNK_ELEMENTS,
    *,
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """As `token_log_probs`, and the entropy of softmax(logits / temperature) in nats: float32 [...] both."""
    return _apply(logits, targets, temperature, chunk_elements, True, in_place)


def chosen_log_probs(
    logits: Tensor, tokens: Tensor, temperature: float = 1.0, chunk_elements: int = CHUNK_ELEMENTS
) -> Tensor:
    """log softmax(logits / temperature) of K tokens at each place: float32 [..., K], for tokens int64 [..., K]."""
    return _apply(logits, tokens, temperature, chunk_elements, False, False)[0]


@torch.no_grad()
def top_log_probs(
    logits: Tensor, count: int, temperature: float = 1.0, chunk_elements: int = CHUNK_ELEMENTS
) -> tuple[Tensor, Tensor]:
    """The `count` likeliest tokens at each place and their log-probs, likeliest first: float32 and int64 [..., count],
    for logits [..., vocab]. Of equal ones any may be meant. Without gradient."""
    vocab = logits.shape[-1]
    flat = logits.reshape(-1, vocab)
    tokens = torch.empty((len(flat), count), dtype=torch.int64, device=logits.device)
    kind = torch.float64 if logits.dtype is torch.float64 else torch.float32
    log_probs = torch.empty((len(flat), count), dtype=kind, device=logits.device)
    chunk = max(1, chunk_elements // vocab)
    for start in range(0, len(flat), chunk):
        part = slice(start, start + chunk)
        scaled = flat[part].to(kind) / temperature
        values, tokens[part] = scaled.topk(count, dim=-1)
        log_probs[part] = values - torch.logsumexp(scaled, dim=-1, keepdim=True)
    shape = (*logits.shape[:-1], count)
    return log_probs.reshape(shape), tokens.reshape(shape)


def _apply(
    logits: Tensor, targets: Tensor, temperature: float, chunk_elements: int, with_entropy: bool, in_place: bool
) -> tuple[Tensor, Tensor]:
    vocab = logits.shape[-1]
    flat = logits.reshape(-1, vocab)
    chunk = max(1, chunk_elements // vocab)
    asked = targets.reshape(len(flat), -1) if len(flat) else targets.new_zeros((0, 1))
    log_probs, entropy = _LogProbs.apply(flat, asked, temperature, chunk, with_entropy, in_place)  # type: ignore[no-untyped-call]
    return log_probs.reshape(targets.shape), entropy.reshape(targets.shape) if with_entropy else entropy


class _LogProbs(torch.autograd.Function):
    """logits [places, vocab], targets [places, K], one of them or several at a place. With p = softmax(x),
    x = logits / temperature, H = entropy: d log p[target] / dx = onehot(target) - p and dH / dx = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, chunk: int, with_entropy: bool, in_place: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        kind = _wide(logits)
        normalisers = torch.empty(len(logits), dtype=kind, device=logits.device)
        log_probs = torch.empty(targets.shape, dtype=kind, device=logits.device)
        entropy = torch.empty_like(normalisers) if with_entropy else normalisers.new_zeros(0)
        for start in range(0, len(logits), chunk):
            part = slice(start, start + chunk)
            made, normalisers[part], of_part = statistics(logits[part], targets[part], temperature, with_entropy)
            log_probs[part] = made
            if with_entropy:
                entropy[part] = of_part
        ctx.save_for_backward(logits, targets, normalisers, entropy)
        ctx.temperature, ctx.chunk, ctx.in_place = temperature, chunk, in_place
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None, None, None]:
        logits, targets, normalisers, entropy = ctx.saved_tensors
        of_log_probs, of_entropy = grads
        if of_log_probs is None and of_entropy is None:
            return None, None, None, None, None, None
        grad = logits.detach() if ctx.in_place else torch.empty_like(logits)
        for start in range(0, len(logits), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            grad[part] = gradient(
                logits[part],
                targets[part],
                normalisers[part],
                entropy[part] if of_entropy is not None else None,
                None if of_log_probs is None else of_log_probs[part],
                None if of_entropy is None else of_entropy[part],
                ctx.temperature,
            )
        return grad, None, None, None, None, None


def statistics(
    logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """log p of `targets` [places, K], the log normaliser and the entropy of p (empty unless wanted) of a few places,
    p = softmax(logits / temperature), in float32."""
    scaled = logits.to(_wide(logits)) / temperature
    normalisers = torch.logsumexp(scaled, dim=-1)
    log_probs = scaled.gather(-1, targets) - normalisers[:, None]
    if not with_entropy:
        return log_probs, normalisers, normalisers.new_zeros(0)
    probs = (scaled - normalisers[:, None]).exp_()
    return log_probs, normalisers, normalisers - (probs * scaled).sum(dim=-1)


def gradient(
    logits: Tensor,
    targets: Tensor,
    normalisers: Tensor,
    entropy: Tensor | None,
    of_log_probs: Tensor | None,
    of_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """dL/dlogits of a few places, from dL/d log p [places, K] and dL/d entropy [places], in float32."""
    logs = logits.to(normalisers.dtype) / temperature - normalisers[:, None]
    probs = logs.exp()
    own = torch.zeros_like(probs)
    if of_log_probs is not None:
        own -= probs * of_log_probs.sum(dim=-1, keepdim=True)
        own.scatter_add_(-1, targets, of_log_probs)
    if of_entropy is not None and entropy is not None:
        own -= probs * (logs + entropy[:, None]) * of_entropy[:, None]
    return own / temperature


def _wide(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype is torch.float64 else torch.float32
