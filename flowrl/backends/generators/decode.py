"""Autoregressive decoding of a transformers causal LM with a KV cache.

Takes prompts and uniforms, gives responses. Must not know batches, seeds, versions or files. A prompt is run once and
its cache repeated for its samples; finished rows leave the batch once they are a quarter of it, which changes the
others' results by rounding at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import DynamicCache

from flowrl.backends.generators.cache import roomy_cache
from flowrl.backends.generators.lean import Lean
from flowrl.backends.generators.rollouts import Rollout
from flowrl.backends.generators.sampling import Sampling, pick
from flowrl.backends.sight import Sight, run

Ids = npt.NDArray[np.int32]
Ends = Callable[[Ids], npt.NDArray[np.bool_]]
"""Tokens so far, int32 [rows, length] → which rows end here."""

Look = Callable[[Tensor, Tensor], Sight]
"""Padded prompts int64 [rows, length] and which of their tokens are no padding → what they see."""

_FINISHED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Responses:
    """Rows are prompts × samples, samples of a prompt together. Beyond a row's length the arrays hold rubbish."""

    tokens: Ids
    """int32 [rows, longest]."""
    log_probs: npt.NDArray[np.float32]
    """float32 [rows, longest]."""
    lengths: npt.NDArray[np.int64]
    ended: npt.NDArray[np.bool_]
    """Whether the row came to an end of its own (else it met its limit)."""


@dataclass(slots=True)
class _Running:
    """Rows still in the batch."""

    rows: npt.NDArray[np.int64]
    """Their places in the responses."""
    cache: DynamicCache
    logits: Tensor
    positions: Tensor
    """int64 [rows, 1]: the place of the next token, padding not counted."""
    mask: Tensor | None
    """bool [rows, length so far] where prompts are padded; None if none is."""
    lean: Lean | None
    """Takes the model's place for one token, where it can."""
    finished: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.finished = np.zeros(len(self.rows), dtype=np.bool_)


@torch.inference_mode()
def decode(
    model: Any,
    prompts: Sequence[Ids],
    limits: npt.NDArray[np.int64],
    uniforms: npt.NDArray[np.float64],
    sampling: Sampling,
    ends: Ends,
    look: Look | None = None,
) -> Responses:
    """Sample `len(limits) // len(prompts)` responses to each prompt, which sees what `look` says.

    limits int64 [rows]: most tokens of each response, at least 1; uniforms float64 [rows, ≥ longest limit].
    """
    longest = int(limits.max())
    tokens = np.zeros((len(limits), longest), dtype=np.int32)
    log_probs = np.zeros((len(limits), longest), dtype=np.float32)
    lengths = np.zeros(len(limits), dtype=np.int64)
    ended = np.zeros(len(limits), dtype=np.bool_)
    running = _start(model, prompts, len(limits) // len(prompts), look)
    for step in range(longest):
        rows = running.rows
        draws = torch.from_numpy(uniforms[rows, step]).to(running.logits.device)
        picked, picked_log_probs = pick(running.logits, draws, sampling)
        tokens[rows, step] = picked.cpu().numpy()
        log_probs[rows, step] = picked_log_probs.cpu().numpy()
        lengths[rows[~running.finished]] = step + 1
        ended[rows] |= ends(tokens[rows, : step + 1]) & ~running.finished
        running.finished |= ended[rows] | (step + 1 >= limits[rows])
        if running.finished.all():
            break
        picked = _leave(running, picked)
        _advance(model, running, picked)
    longest = int(lengths.max())
    return Responses(tokens[:, :longest], log_probs[:, :longest], lengths, ended)


@torch.inference_mode()
def go_on(
    model: Any,
    rollouts: Sequence[Rollout],
    uniforms: Sequence[npt.NDArray[np.float64]],
    sampling: Sampling,
    ends: Ends,
    window: int,
    made: Callable[[Rollout, int, float, bool], bool],
) -> None:
    """Go on with rollouts, from a cache that is made of all their tokens so far, until `made` says that it is enough.

    uniforms: float64 [≥ limit] of each. `made` takes each token, with its log-prob and whether `ends` says so of the
    last `window` tokens, and finishes rollouts; of the last one of a step it says whether to stop.
    """
    prefixes = [np.asarray(each.prompt + each.response, dtype=np.int32) for each in rollouts]
    running = _start(model, prefixes, 1)
    while not running.finished.all():
        rows = running.rows.tolist()
        places = [min(len(rollouts[row].response), rollouts[row].limit - 1) for row in rows]
        draws = np.asarray([uniforms[row][place] for row, place in zip(rows, places, strict=True)])
        picked, log_probs = pick(running.logits, torch.from_numpy(draws).to(running.logits.device), sampling)
        tokens, values = picked.cpu().numpy(), log_probs.cpu().numpy()
        enough = False
        for place in np.flatnonzero(~running.finished).tolist():
            rollout = rollouts[rows[place]]
            tail = np.asarray([*rollout.response[1 - window or len(rollout.response) :], tokens[place]], dtype=np.int32)
            enough = made(rollout, int(tokens[place]), float(values[place]), bool(ends(tail[None])[0])) or enough
            running.finished[place] = rollout.finish_reason is not None
        if enough or running.finished.all():
            return
        _advance(model, running, _leave(running, picked))


def _start(model: Any, prompts: Sequence[Ids], samples: int, look: Look | None = None) -> _Running:
    """Run the prompts, left-padded, and repeat each for its samples."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths.max())
    padded = np.zeros((len(prompts), longest), dtype=np.int64)
    for row, prompt in enumerate(prompts):
        padded[row, longest - len(prompt) :] = prompt
    places = torch.arange(longest, device=device)[None] - (longest - lengths)[:, None]
    mask = None if bool((lengths == longest).all()) else places >= 0
    cache, ids = roomy_cache(model.config), torch.from_numpy(padded).to(device)
    sight = None if look is None else look(ids, places >= 0)
    positions = places.clamp(min=0) if sight is None else sight.positions
    logits = _forward(model, ids, mask, positions, cache, sight)
    following = lengths[:, None] if sight is None else sight.follows
    if samples > 1:
        cache.batch_repeat_interleave(samples)
    return _Running(
        rows=np.arange(len(prompts) * samples),
        cache=cache,
        logits=logits.repeat_interleave(samples, dim=0),
        positions=following.repeat_interleave(samples, dim=0),
        mask=None if mask is None else mask.repeat_interleave(samples, dim=0),
        lean=Lean.of(model),
    )


def _leave(running: _Running, picked: Tensor) -> Tensor:
    """Take finished rows out of the batch when they are many; gives the tokens of the rows that stay."""
    if running.finished.mean() < _FINISHED_SHARE:
        return picked
    stay = np.flatnonzero(~running.finished)
    index = torch.from_numpy(stay).to(picked.device)
    running.rows = running.rows[stay]
    running.finished = running.finished[stay]
    running.cache.batch_select_indices(index)
    running.positions = running.positions[index]
    running.mask = None if running.mask is None else running.mask[index]
    return picked[index]


def _advance(model: Any, running: _Running, picked: Tensor) -> None:
    if running.mask is not None:
        own = torch.ones((len(picked), 1), dtype=torch.bool, device=picked.device)
        running.mask = torch.cat([running.mask, own], dim=1)
    if running.lean is None:
        running.logits = _forward(model, picked[:, None], running.mask, running.positions, running.cache)
    else:
        running.logits = running.lean.step(picked, running.positions, running.mask, running.cache)
    running.positions = running.positions + 1


def _forward(
    model: Any,
    ids: Tensor,
    mask: Tensor | None,
    positions: Tensor,
    cache: DynamicCache,
    sight: Sight | None = None,
) -> Tensor:
    """Logits of the last place: [rows, vocab]."""
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": positions,
        "past_key_values": cache,
        "use_cache": True,
        "logits_to_keep": 1,
    }
    return run(model, sight, inputs).logits[:, -1]
