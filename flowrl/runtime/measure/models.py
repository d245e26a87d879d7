"""Small random models of the measurements: decoders of the kind that flows train, made in memory, never written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from flowrl.runtime.measure.machine import Machine

VOCABULARY = 128
HEAD = 32


@dataclass(frozen=True, slots=True)
class Small:
    hidden: int
    layers: int

    @property
    def ffn(self) -> int:
        return 3 * self.hidden

    @property
    def parameters(self) -> int:
        """That a token is multiplied with: four square matrices of attention, three of the feed-forward, the head."""
        return self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.ffn) + VOCABULARY * self.hidden


def make(small: Small, machine: Machine, dtype: torch.dtype) -> Any:
    arguments: dict[str, Any] = {"attn_implementation": "sdpa"}
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=small.hidden,
        intermediate_size=small.ffn,
        num_hidden_layers=small.layers,
        num_attention_heads=max(1, small.hidden // HEAD),
        num_key_value_heads=max(1, small.hidden // HEAD),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        **arguments,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = Qwen2ForCausalLM(config)
    return model.to(device=machine.device, dtype=dtype)
