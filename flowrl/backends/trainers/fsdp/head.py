"""The head of a language model that gives log-probs in place of logits (`cross_entropy: chunked`).

Logits of a few tokens are made at a time, in the forward and again in the backward pass, and never kept: what stays is
the hidden states. In place of logits [..., vocab] the model then puts out [..., 2]: the log-prob of the token asked for
and the entropy, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from flowrl.algos.log_probs import CHUNK_ELEMENTS, gradient, statistics

SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Configurations of models that do more with logits than making them."""


@dataclass(frozen=True, slots=True)
class Asked:
    targets: Tensor
    """int64 [...], the tokens asked for at the places that the head is run on."""
    temperature: float
    with_entropy: bool


class TokenHead(nn.Linear):
    """A head without bias. While something is asked of it, it gives log-probs and entropy in place of logits."""

    asked: Asked | None

    def forward(self, input: Tensor) -> Tensor:
        if self.asked is None:
            return linear(input, self.weight)
        asked = self.asked
        flat, targets = input.reshape(-1, input.shape[-1]), asked.targets.reshape(-1)
        chunk = max(1, CHUNK_ELEMENTS // self.out_features)
        made = _Chunked.apply(flat, self.weight, targets, asked.temperature, chunk, asked.with_entropy)  # type: ignore[no-untyped-call]
        return torch.stack(made, dim=-1).reshape(*input.shape[:-1], 2)


def make_token_head(module: Any) -> str | None:
    """Let the model's head be one; or say why it cannot be."""
    head = module.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        return f"a head that is a {type(head).__name__}{' with a bias' if type(head) is nn.Linear else ''}"
    scaled = scaled_by(module)
    if scaled is not None:
        return f"a model with `{scaled}`"
    head.__class__ = TokenHead
    cast("TokenHead", head).asked = None
    return None


def scaled_by(module: Any) -> str | None:
    """The key of the model's configuration by which it changes logits behind the head; None if it does not."""
    config = module.config.get_text_config()
    return next((key for key in SCALED if getattr(config, key, None) not in (None, 1, 1.0)), None)


@contextmanager
def asking(head: TokenHead, asked: Asked) -> Iterator[None]:
    head.asked = asked
    try:
        yield
    finally:
        head.asked = None


class _Chunked(torch.autograd.Function):
    """hidden [places, width], weight [vocab, width], targets [places] → log-probs, entropy [places] (zeros if it is
    not wanted). With d = dL/dlogits of a few places: dL/dhidden = d W, dL/dW = sum of d^T hidden, in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        parts = [slice(start, start + chunk) for start in range(0, len(hidden), chunk)]
        found = [
            statistics(linear(hidden[part], weight), targets[part, None], temperature, with_entropy) for part in parts
        ]
        log_probs, normalisers, entropy = (
            torch.cat([each[index] for each in found]) if found else hidden.new_zeros(0, dtype=torch.float32)
            for index in range(3)
        )
        ctx.save_for_backward(hidden, weight, targets, normalisers, entropy)
        ctx.temperature, ctx.parts, ctx.with_entropy = temperature, parts, with_entropy
        return log_probs.reshape(-1), entropy if with_entropy else torch.zeros_like(normalisers)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, targets, normalisers, entropy = ctx.saved_tensors
        of_log_probs, of_entropy = grads
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for part in ctx.parts:
            logits = linear(hidden[part], weight)
            own = gradient(
                logits,
                targets[part, None],
                normalisers[part],
                entropy[part] if ctx.with_entropy else None,
                of_log_probs[part, None],
                of_entropy[part] if ctx.with_entropy else None,
                ctx.temperature,
            ).to(weight.dtype)
            if of_hidden is not None:
                of_hidden[part] = own @ weight
            if of_weight is not None:
                of_weight += own.T @ hidden[part]
        return of_hidden, None if of_weight is None else of_weight.to(weight.dtype), None, None, None, None
