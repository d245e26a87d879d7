"""Forward passes: what a model says about the tokens of a micro-batch. Knows no loss, optimizer or file.

The root module is called and nothing below it, so that FSDP2's hooks gather the shards. All results are float32
[rows, tokens], aligned with `tokens`: place t is about choosing token t after those before it, and place 0 holds 0.
Whether rows are padded or packed shows in no result.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
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
from flowrl.backends.sight import run
from flowrl.backends.trainers.fsdp.head import Asked, asking
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch
from flowrl.backends.trainers.fsdp.packing import ends_of


@dataclass(frozen=True, slots=True)
class Places:
    """Tokens that the head is run for, and where what it says of them belongs."""

    keep: Tensor
    """int64 [n]: places of the sequence from which they are predicted."""
    targets: Tensor
    """int64 [rows, n], or [n] of rows that are packed."""
    first: int
    """The place of the first of them in each row; of packed rows they are those of `mask`."""
    mask: Tensor | None

    def spread(self, made: Tensor, shape: torch.Size) -> Tensor:
        """`made` [rows, n, …] or [n, …] as [rows, tokens, …], 0 at places that were not asked for."""
        if self.mask is None:
            return pad(made, (*(0, 0) * (made.dim() - 2), self.first, 0))
        whole = made.new_zeros((*shape, *made.shape[1:]))
        return whole.index_put((self.mask,), made)


def log_probs(
    module: Any, micro: MicroBatch, temperature: float, *, with_entropy: bool = False, cross_entropy: str = "whole"
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the tokens, and the entropy of the distributions they were drawn from. Both hold zeros before the
    first place of any row's mask: the head is not run on what nobody asks about. `cross_entropy`: as the key of an
    engine, `whole`, `in_place` or `chunked`."""
    places, shape = _places(micro), micro.ids.shape
    if cross_entropy == "chunked":
        with asking(module.get_output_embeddings(), Asked(places.targets, temperature, with_entropy)):
            both = _run(module, micro, places).reshape(*places.targets.shape, 2)
        made = both.unbind(-1)
        return places.spread(made[0], shape), places.spread(made[1], shape) if with_entropy else None
    logits, in_place = _run(module, micro, places), cross_entropy == "in_place"
    if not with_entropy:
        own = token_log_probs(logits, places.targets, temperature, in_place=in_place)
        return places.spread(own, shape), None
    own, entropy = token_log_probs_and_entropy(logits, places.targets, temperature, in_place=in_place)
    return places.spread(own, shape), places.spread(entropy, shape)


def of_tokens(module: Any, micro: MicroBatch, temperature: float, tokens: Tensor) -> Tensor:
    """Log-probs of K given tokens at each place: float32 [rows, tokens, K], for tokens int64 of that shape."""
    places = _places(micro)
    asked = tokens[:, places.first :] if places.mask is None else tokens[places.mask]
    return places.spread(chosen_log_probs(_run(module, micro, places), asked, temperature), micro.ids.shape)


def likeliest(module: Any, micro: MicroBatch, temperature: float, count: int) -> tuple[Tensor, Tensor]:
    """Log-probs, float32, and ids, int64, of the `count` likeliest tokens at each place: [rows, tokens, count] both."""
    places = _places(micro)
    made, tokens = top_log_probs(_run(module, micro, places), count, temperature)
    return places.spread(made, micro.ids.shape), places.spread(tokens, micro.ids.shape)


def values(module: Any, micro: MicroBatch) -> Tensor:
    """The value of the state before each token."""
    return pad(_scores(module, micro)[:, :-1], (1, 0))


def last_scores(module: Any, micro: MicroBatch) -> Tensor:
    """The scalar head at each row's last token: float32 [rows]."""
    return _scores(module, micro).gather(1, micro.lengths[:, None] - 1)[:, 0]


def _places(micro: MicroBatch) -> Places:
    """From the first place of any row's mask on; of packed rows those under it, the last token if there is none."""
    length = micro.ids.shape[1]
    if not micro.packed:
        wanted = micro.mask.any(dim=0).nonzero()
        first = int(wanted[0, 0]) if len(wanted) else length - 1
        keep = torch.arange(first - 1, length - 1, device=micro.ids.device)
        return Places(keep, micro.ids[:, first:], first, None)
    mask = micro.mask
    if not bool(mask.any()):
        mask = mask.clone()
        mask[-1, int(micro.lengths[-1]) - 1] = True
    keep = mask[micro.own].nonzero()[:, 0] - 1
    return Places(keep, micro.ids[mask], 0, mask)


def _run(module: Any, micro: MicroBatch, places: Places) -> Tensor:
    """What the head puts out: [rows, n, …], or [n, …] of rows that are packed."""
    asked = {"logits_to_keep": places.keep, "use_cache": False}
    if not micro.packed:
        return run(module, micro.sight, {"input_ids": micro.ids, **asked}).logits
    sight = None if micro.sight is None else micro.sight.packed(micro.own)
    return run(module, sight, {**_packed(micro), **asked}).logits[0]


def _scores(module: Any, micro: MicroBatch) -> Tensor:
    with warnings.catch_warnings():
        # FSDP2 warns that writing into the head's output would go wrong; nothing here does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        if not micro.packed:
            return module(input_ids=micro.ids, use_cache=False).logits[..., 0].float()
        made = module(**_packed(micro), use_cache=False).logits[0, :, 0].float()
    return made.new_zeros(micro.ids.shape).index_put((micro.own,), made)


def _packed(micro: MicroBatch) -> dict[str, Any]:
    """The rows as one sequence: tokens, positions from 0 in each row, and where rows begin."""
    own, ends = micro.own, ends_of(micro.lengths)
    positions = torch.arange(micro.ids.shape[1], device=micro.ids.device).expand_as(micro.ids)
    longest = int(micro.lengths.max())
    return {
        "input_ids": micro.ids[own][None],
        **({"position_ids": positions[own][None]} if micro.sight is None else {}),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }
