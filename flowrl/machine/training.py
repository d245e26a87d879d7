"""What training software holds beside weights, states and activations: buffers, chunks, copies. A frozen value.

Part of a Profile; catalogue/training.toml has the figures with their sources. Knows no formula.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

import msgspec


class TrainingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Of trainers and scorers. Bytes unless said otherwise."""

    logit_bytes: float
    """Of one logit while a loss or log-probs are made of all of them at once."""
    held_logit_bytes: float
    """The same where the caller keeps the logits through the backward pass, as plain training loops do."""
    kernel_logit_bytes: float
    """The same where one kernel makes the loss and the gradient of float32 logits."""
    chunk_tokens: int
    """Tokens of which a chunked cross-entropy makes logits at a time."""
    fused_columns: int
    """Entries of the vocabulary of which a fused one makes logits at a time, for all tokens."""
    chunk_logit_bytes: float
    """Of one logit of a chunk: the model's own, its float32 copy, its softmax and its gradient."""
    layer_backward: float
    """What the backward pass of a recomputed layer holds, in units of what the layer keeps without recomputation."""
    kept_layer_backward: float
    """What it holds on top of a layer that was kept."""
    turning: float
    """That of the last layer, before a gradient is reduced."""
    kept_turning: float
    """The same of a layer that was kept."""
    weighted_expert_bytes: float
    """Of one hidden unit of a token's copy at an expert while its output is weighted in float32."""
    offloaded_layers: int
    """Layers whose activations are still on the device where activations move to the host."""
    reduce_bucket: int
    """Parameters whose gradients DeepSpeed reduces at a time."""
    live_parameters: int
    """Parameters that DeepSpeed keeps gathered at stage 3 at most."""
    prefetch_bucket: int
    """Parameters that it gathers ahead."""
    moment_block: int
    """Numbers that share one float32 scale in an 8-bit optimizer."""
    source: str = "assumed"


TRAINING: TrainingMemory = msgspec.convert(
    tomllib.loads(files("flowrl.machine").joinpath("catalogue/training.toml").read_text(encoding="utf-8")),
    TrainingMemory,
)
