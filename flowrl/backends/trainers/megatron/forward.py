"""Passes of micro-batches through the stages of a model, forward or forward and backward, by Megatron Core's schedule.

What is asked of a micro-batch (Asked) is made on the last stage from the hidden states there: float32 [rows, tokens],
aligned with its tokens, place t about choosing token t; see fsdp/forward.py, whose results these are. Knows no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from flowrl.algos.log_probs import chosen_log_probs, token_log_probs, token_log_probs_and_entropy, top_log_probs
from flowrl.backends.trainers.fsdp.micro_batches import MicroBatch
from flowrl.backends.trainers.megatron import vocab
from flowrl.backends.trainers.megatron.groups import Groups
from flowrl.backends.trainers.megatron.library import core
from flowrl.backends.trainers.megatron.model import unwrapped
from flowrl.backends.trainers.megatron.names import Facts


@dataclass(frozen=True, slots=True)
class Asked:
    """`log_probs` of the tokens (and the entropy), or of K `tokens` at each place; the `count` `likeliest` tokens;
    `values` of the states before each token; `last_scores`, one number a row."""

    kind: Literal["log_probs", "likeliest", "values", "last_scores"]
    temperature: float = 1.0
    with_entropy: bool = False
    tokens: Tensor | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class Stages:
    """The model as a schedule runs it."""

    module: Any
    facts: Facts
    groups: Groups


Made = tuple[Tensor, ...]
Ask = Callable[[MicroBatch], Asked]
Then = Callable[[int, Made], Any]
"""What is done on the last stage with what micro-batch number so has given; in a backward pass it gives the loss."""


def run(stages: Stages, micros: Sequence[MicroBatch], ask: Ask, then: Then, *, backward: bool) -> None:
    """Run all micro-batches through all stages: 1F1B with pp over 1. Gradients add up in the parameters' buffers."""
    if not micros:
        return
    batches = enumerate(micros)

    def step(data: Any, module: Any) -> tuple[Any, Any]:
        number, micro = next(data)
        ids = _padded(stages, micro.ids)
        processor = partial(_process, stages, micro, ask(micro)) if stages.groups.is_last else None
        output = module(ids, None, None, output_processor=processor)
        return output, partial(_finish, then, number)

    with stages.groups.here(), torch.set_grad_enabled(backward):
        core().get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=batches,
            model=[stages.module],
            num_microbatches=len(micros),
            seq_length=max(micro.ids.shape[1] for micro in micros),
            micro_batch_size=max(len(micro.ids) for micro in micros),
            forward_only=not backward,
            collect_non_loss_data=not backward,
        )


def _finish(then: Then, number: int, made: Made, *, non_loss_data: bool = False) -> Any:
    found = then(number, made)
    # Loss, tokens, what is kept: the loss is a share of the whole minibatch's already, so tokens are not counted.
    return None if non_loss_data else (found, torch.ones((), dtype=torch.int), None)


def _padded(stages: Stages, ids: Tensor) -> Tensor:
    """With tp over tokens, as many of them as tp divides: attention is causal, so what is behind does nothing."""
    is_cut = unwrapped(stages.module).config.sequence_parallel
    return pad(ids, (0, -ids.shape[1] % stages.groups.tp)) if is_cut else ids


def _process(
    stages: Stages,
    micro: MicroBatch,
    asked: Asked,
    *,
    hidden_states: Tensor,
    output_layer: Any,
    output_weight: Any,
    **_: Any,
) -> Made:
    module = unwrapped(stages.module)
    if module.config.sequence_parallel:
        whole = core().gather_from_sequence_parallel_region
        hidden_states = whole(hidden_states, tensor_parallel_output_grad=not stages.facts.scalar)
    length = micro.ids.shape[1]
    if asked.kind in ("values", "last_scores"):
        scores = module.score(hidden_states[:length])[..., 0].transpose(0, 1).float()
        if asked.kind == "values":
            return (pad(scores[:, :-1], (1, 0)),)
        return (scores.gather(1, micro.lengths[:, None] - 1)[:, 0],)
    first = _first(micro)
    logits = output_layer(hidden_states[first - 1 : length - 1], weight=output_weight)[0].transpose(0, 1)
    return tuple(pad(made, (*(0, 0) * (made.dim() - 2), first, 0)) for made in _of_logits(stages, micro, asked, logits))


def _first(micro: MicroBatch) -> int:
    """The first place of any row's mask: the head is not run on what nobody asks about."""
    wanted = micro.mask.any(dim=0).nonzero()
    return int(wanted[0, 0]) if len(wanted) else micro.ids.shape[1] - 1


def _of_logits(stages: Stages, micro: MicroBatch, asked: Asked, logits: Tensor) -> Made:
    first, heat = _first(micro), asked.temperature
    targets = (micro.ids if asked.tokens is None else asked.tokens)[:, first:]
    if stages.groups.tp > 1:
        cut = _cut(stages)
        if asked.kind == "likeliest":
            return vocab.likeliest(logits, asked.count, cut, heat)
        made, entropy = vocab.log_probs(logits, targets, cut, heat, with_entropy=asked.with_entropy)
        return (made,) if entropy is None else (made, entropy)
    if asked.kind == "likeliest":
        return top_log_probs(logits, asked.count, heat)
    if asked.tokens is not None:
        return (chosen_log_probs(logits, targets, heat),)
    if asked.with_entropy:
        return token_log_probs_and_entropy(logits, targets, heat)
    return (token_log_probs(logits, targets, heat),)


def _cut(stages: Stages) -> vocab.Cut:
    facts, groups = stages.facts, stages.groups
    rows = facts.padded_vocab(groups.tp) // groups.tp
    first = groups.tp_rank * rows
    return vocab.Cut(first, max(0, min(rows, facts.vocab - first)), groups.tp_group)
