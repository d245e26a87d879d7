"""Denoisers of the FLUX family as `diffusers` keeps them: a folder with a transformer, text encoders and a decoder.

Takes latents [rows, channels, height, width] and what the prompt's text became; gives velocities of that shape. The
sampler and the trainer both call `velocity`. Must not know batches, seeds or losses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Model

KIND = "FluxPipeline"
GUIDANCE = 3.5
"""Strength that a model distilled with guidance is told: FLUX.1-dev's own."""
SIDE = 2
"""Of the square of latents that one token of the transformer stands for."""


@dataclass(frozen=True, slots=True)
class Text:
    """What encoders make of prompts: states [rows, tokens, width], pooled [rows, width]."""

    states: Tensor
    pooled: Tensor


def check(model: Model, folder: Path) -> None:
    """Raise FlowError FR0869 for a folder that is no such denoiser, or without `diffusers`."""
    index = folder / "model_index.json"
    kind = json.loads(index.read_text(encoding="utf-8")).get("_class_name") if index.is_file() else None
    if kind != KIND:
        reason = f"a `{kind}`" if kind else f"{folder} has no model_index.json"
        raise FlowError(diagnose("FR0869", model.span, model=model.name, reason=reason, known=f"`{KIND}`"))
    try:
        import diffusers  # noqa: F401
    except ImportError as error:
        raise FlowError(diagnose("FR0913", model.span, what="`head: denoiser`", package="diffusers")) from error


def load_transformer(folder: Path, dtype: torch.dtype) -> Any:
    """The part that is trained."""
    from diffusers import FluxTransformer2DModel

    with _quiet():
        return FluxTransformer2DModel.from_pretrained(str(folder), subfolder="transformer", dtype=dtype)


def load_pipeline(folder: Path, dtype: torch.dtype) -> Any:
    from diffusers import FluxPipeline

    with _quiet():
        made: Any = FluxPipeline.from_pretrained(str(folder), dtype=dtype)
    made.set_progress_bar_config(disable=True)
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Without bars, and without advice to install what only shortens loading."""
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def tokens_of(latents: tuple[int, ...]) -> int:
    """Tokens of the transformer for latents of shape (…, height, width)."""
    return latents[-2] // SIDE * (latents[-1] // SIDE)


def velocity(transformer: Any, latents: Tensor, sigma: Tensor, text: Text) -> Tensor:
    """float32, of the latents' shape. sigma: float32 [rows]."""
    rows, _, height, width = latents.shape
    dtype = text.states.dtype
    ids = torch.zeros(height // SIDE, width // SIDE, 3, device=latents.device, dtype=dtype)
    ids[..., 1] = torch.arange(height // SIDE, device=latents.device)[:, None]
    ids[..., 2] = torch.arange(width // SIDE, device=latents.device)[None]
    guidance = torch.full((rows,), GUIDANCE, device=latents.device) if transformer.config.guidance_embeds else None
    made = transformer(
        hidden_states=packed(latents).to(dtype),
        encoder_hidden_states=text.states,
        pooled_projections=text.pooled,
        timestep=sigma.to(dtype),
        img_ids=ids.view(-1, 3),
        txt_ids=torch.zeros(text.states.shape[1], 3, device=latents.device, dtype=dtype),
        guidance=guidance,
        return_dict=False,
    )[0]
    return unpacked(made.float(), height, width)


def packed(latents: Tensor) -> Tensor:
    """[rows, channels, height, width] → [rows, tokens, channels × 4]: a token for each square of SIDE."""
    rows, channels, height, width = latents.shape
    squares = latents.view(rows, channels, height // SIDE, SIDE, width // SIDE, SIDE)
    return squares.permute(0, 2, 4, 1, 3, 5).reshape(rows, tokens_of(latents.shape), channels * SIDE * SIDE)


def unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `packed`."""
    rows, _, numbers = tokens.shape
    channels = numbers // (SIDE * SIDE)
    squares = tokens.view(rows, height // SIDE, width // SIDE, channels, SIDE, SIDE)
    return squares.permute(0, 3, 1, 4, 2, 5).reshape(rows, channels, height, width)
