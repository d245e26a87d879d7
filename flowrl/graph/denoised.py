"""What ops of a denoiser read and write in place of tokens. Data only; knows no torch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flowrl.graph.graph import Input
from flowrl.graph.signatures import FIELDS, slot
from flowrl.graph.types import Field

DENOISED = ("latents", "sigmas", "step_noise", "text_states", "text_pooled")
"""What stands in for the tokens of a denoiser: the states of each sample, their noise levels, the noise of the steps
that made them, and what the sampler's text encoders said of the prompt, so that no trainer holds them."""


def denoiser_reads(inputs: Sequence[Input]) -> tuple[Input, ...]:
    """The same inputs for a denoiser, whose actions are steps in place of tokens."""
    return tuple(j for i in inputs for j in (tuple(slot(name) for name in DENOISED) if i.slot == "tokens" else (i,)))


def denoiser_writes(fields: Sequence[Field]) -> tuple[Field, ...]:
    """The same columns for a denoiser; its response is an image."""
    renamed = (msgspec.structs.replace(f, dtype="image") if f.name == "response" else f for f in fields)
    return tuple(g for f in renamed for g in (tuple(FIELDS[name] for name in DENOISED) if f.name == "tokens" else (f,)))
