"""Forward passes: what a model says about the tokens of a micro-batch. Knows no loss, optimizer or file.

The root module is called and nothing below it, so that FSDP2's hooks gather the shards. All results are float32
[rows, tokens], aligned with `tokens`: place t is about choosing token t after those before it, and place 0 holds 0.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from flowrl.algos.log_probs import (
    chosen_log_probs,
    token_log_probs,
    token_log_probs_and_entropy,
    top_log_probs,
)
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch


def log_probs(
    module: Any, micro: MicroBatch, temperature: float, *, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the tokens, and the entropy of the distributions they were drawn from. Both hold zeros before the
    first place of any row's mask: the head is not run on what nobody asks about."""
    logits, first = _logits(module, micro)
    targets = micro.ids[:, first:]
    if not with_entropy:
        return pad(token_log_probs(logits, targets, temperature), (first, 0)), None
    made, entropy = token_log_probs_and_entropy(logits, targets, temperature)
    return pad(made, (first, 0)), pad(entropy, (first, 0))


def of_tokens(module: Any, micro: MicroBatch, temperature: float, tokens: Tensor) -> Tensor:
    """Log-probs of K given tokens at each place: float32 [rows, tokens, K], for tokens int64 of that shape."""
    logits, first = _logits(module, micro)
    return pad(chosen_log_probs(logits, tokens[:, first:], temperature), (0, 0, first, 0))


def likeliest(module: Any, micro: MicroBatch, temperature: float, count: int) -> tuple[Tensor, Tensor]:
    """Log-probs, float32, and ids, int64, of the `count` likeliest tokens at each place: [rows, tokens, count] both."""
    logits, first = _logits(module, micro)
    made, tokens = top_log_probs(logits, count, temperature)
    return pad(made, (0, 0, first, 0)), pad(tokens, (0, 0, first, 0))


def _logits(module: Any, micro: MicroBatch) -> tuple[Tensor, int]:
    """Logits from the first place of any row's mask on, and that place."""
    length = micro.ids.shape[1]
    wanted = micro.mask.any(dim=0).nonzero()
    first = int(wanted[0, 0]) if len(wanted) else length - 1
    keep = torch.arange(first - 1, length - 1, device=micro.ids.device)
    return module(input_ids=micro.ids, logits_to_keep=keep, use_cache=False).logits, first


def values(module: Any, micro: MicroBatch) -> Tensor:
    """The value of the state before each token."""
    return pad(_scores(module, micro)[:, :-1], (1, 0))


def last_scores(module: Any, micro: MicroBatch) -> Tensor:
    """The scalar head at each row's last token: float32 [rows]."""
    return _scores(module, micro).gather(1, micro.lengths[:, None] - 1)[:, 0]


def _scores(module: Any, micro: MicroBatch) -> Tensor:
    with warnings.catch_warnings():
        # FSDP2 warns that writing into the head's output would go wrong; nothing here does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        return module(input_ids=micro.ids, use_cache=False).logits[..., 0].float()
