"""Log-probs and entropy where each tp rank has the logits of its own tokens (algos/log_probs.py where one has all).

The softmax is taken in float32 for a few places at a time. Two collectives a call, whatever the number of places: the
largest logit, then the sums; none in the backward pass, since each rank knows its own logits and the normaliser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flowrl.algos.log_probs import CHUNK_ELEMENTS


@dataclass(frozen=True, slots=True)
class Cut:
    """The tokens [first, first + width) of the vocabulary, which this rank has."""

    first: int
    width: int
    group: Any
    chunk_elements: int = CHUNK_ELEMENTS

    def chunks(self, places: int) -> Iterator[slice]:
        step = max(1, self.chunk_elements // max(1, self.width))
        return (slice(start, start + step) for start in range(0, places, step))


def log_probs(
    logits: Tensor, tokens: Tensor, cut: Cut, temperature: float = 1.0, *, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / temperature)[tokens], and the entropy in nats: float32 of the shape of `tokens`, int64 [...]
    or, K at each place and without entropy, [..., K]. `logits` [..., width or more] are this rank's; what is beyond
    `width` pads. The gradient of both reaches this rank's logits."""
    flat = _flat(logits, cut)
    asked = tokens.reshape(len(flat), -1)
    made, entropy = _LogProbs.apply(flat, asked, cut, temperature, with_entropy)  # type: ignore[no-untyped-call]
    return made.reshape(tokens.shape), entropy.reshape(tokens.shape) if with_entropy else None


@torch.no_grad()
def likeliest(logits: Tensor, count: int, cut: Cut, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs, float32, and ids, int64, of the `count` likeliest tokens of the whole vocabulary, likeliest first:
    [..., count] both."""
    flat = _flat(logits, cut)
    normalisers = _sums(flat, flat.new_zeros((len(flat), 0), dtype=torch.int64), cut, temperature, False)[0]
    values = flat.new_full((len(flat), count), float("-inf"), dtype=torch.float32)
    tokens = torch.zeros_like(values, dtype=torch.int64)
    for part in cut.chunks(len(flat)):
        own, places = (flat[part].float() / temperature).topk(min(count, cut.width), dim=-1)
        values[part, : own.shape[1]], tokens[part, : own.shape[1]] = own, places + cut.first
    every_value, every_token = (_gathered(each, cut.group) for each in (values, tokens))
    best, places = every_value.topk(count, dim=-1)
    shape = (*logits.shape[:-1], count)
    return (best - normalisers[:, None]).reshape(shape), every_token.gather(-1, places).reshape(shape)


class _LogProbs(torch.autograd.Function):
    """With p = softmax(x), x = logits / temperature, H = entropy: d log p[target] / dx = onehot(target) - p and
    dH / dx = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, cut: Cut, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        normalisers, chosen, entropy = _sums(logits, tokens, cut, temperature, with_entropy)
        ctx.save_for_backward(logits, tokens, normalisers, entropy)
        ctx.cut, ctx.temperature = cut, temperature
        return chosen - normalisers[:, None], entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        logits, tokens, normalisers, entropy = ctx.saved_tensors
        of_log_probs, of_entropy = grads
        grad = torch.zeros_like(logits)
        for part in ctx.cut.chunks(len(logits)):
            logs = logits[part].to(normalisers.dtype) / ctx.temperature - normalisers[part, None]
            probs = logs.exp()
            own = torch.zeros_like(probs)
            if of_log_probs is not None:
                own -= probs * of_log_probs[part].sum(dim=-1, keepdim=True)
                places, inside = _places(tokens[part], ctx.cut)
                if ctx.cut.width:
                    own.scatter_add_(-1, places, of_log_probs[part] * inside)
            if of_entropy is not None:
                own -= probs * (logs + entropy[part, None]) * of_entropy[part, None]
            grad[part] = own / ctx.temperature
        return grad, None, None, None, None


def _sums(
    logits: Tensor, tokens: Tensor, cut: Cut, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of all ranks: the logarithm of the softmax's denominator [places], the scaled logits of `tokens` [places, K], and
    the entropy [places] (nothing without it)."""
    kind = torch.float64 if logits.dtype is torch.float64 else torch.float32
    largest = torch.full((len(logits),), float("-inf"), dtype=kind, device=logits.device)
    for part in cut.chunks(len(logits)) if cut.width else ():
        largest[part] = (logits[part].to(kind) / temperature).amax(dim=-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=cut.group)
    # Columns: the denominator, the sum of x e^x, the chosen logits.
    sums = torch.zeros((len(logits), 2 + tokens.shape[1]), dtype=kind, device=logits.device)
    for part in cut.chunks(len(logits)) if cut.width else ():
        scaled = logits[part].to(kind) / temperature
        weights = (scaled - largest[part, None]).exp()
        sums[part, 0] = weights.sum(dim=-1)
        if with_entropy:
            sums[part, 1] = (weights * scaled).sum(dim=-1)
        places, inside = _places(tokens[part], cut)
        sums[part, 2:] = scaled.gather(-1, places).masked_fill(~inside, 0.0)
    dist.all_reduce(sums, group=cut.group)
    normalisers = largest + sums[:, 0].log()
    entropy = normalisers - sums[:, 1] / sums[:, 0] if with_entropy else sums.new_zeros(0)
    return normalisers, sums[:, 2:], entropy


def _flat(logits: Tensor, cut: Cut) -> Tensor:
    """[places, width]; a rank may have no token at all."""
    return logits[..., : cut.width].reshape(logits.shape[:-1].numel(), cut.width)


def _places(tokens: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """Where tokens stand among this rank's, and whether they do."""
    places = tokens - cut.first
    inside = (places >= 0) & (places < cut.width)
    return places.masked_fill(~inside, 0), inside


def _gathered(values: Tensor, group: Any) -> Tensor:
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group=group)
    return torch.cat(parts, dim=-1)
