"""One token of each row through a transformers model of the Llama kind, in a third of the calls that its own forward
pass makes. Where a small model decodes on a CPU those calls are half of the time.

Takes the module, a cache that the module's own forward pass has begun, and tokens; gives logits. It computes what the
module computes, equal to rounding, and keeps nothing: the parameters are the module's. Must not know prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention
from transformers import DynamicCache

from flowrl.backends.generators.cache import RoomyLayer

KINDS = ("LlamaForCausalLM", "Qwen2ForCausalLM")
"""Models whose layers are norm, attention with rotary positions, norm, gated MLP, and nothing else."""
_LINEAR = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


@dataclass(frozen=True, slots=True)
class Lean:
    """`step` in place of the module's forward pass."""

    module: Any
    heads: int
    kv_heads: int
    size: int
    """Of a head."""

    @staticmethod
    def of(module: Any) -> Lean | None:
        """None where the module does anything that `step` does not: another kind, another dtype than float32, windows,
        layers that are not plain (adapters)."""
        config = module.config
        if type(module).__name__ not in KINDS or module.dtype is not torch.float32:
            return None
        if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
            return None
        layers = module.model.layers
        if any(type(layer.get_submodule(name)) is not nn.Linear for layer in layers for name in _LINEAR):
            return None
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return Lean(module, config.num_attention_heads, config.num_key_value_heads, size)

    def step(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: DynamicCache) -> Tensor:
        """Logits [rows, vocab] after tokens `ids` int64 [rows] at `positions` int64 [rows, 1], which enter the cache.
        mask bool [rows, length with them], or None where every row has all."""
        model = self.module.model
        x = model.embed_tokens(ids)
        cos, sin = (turn[:, :, : self.size // 2] for turn in model.rotary_emb(x[:, None], positions))
        seen = None if mask is None else mask[:, None, None]
        for layer, held in zip(model.layers, cache.layers, strict=True):
            assert isinstance(held, RoomyLayer)
            x = x + self._attention(layer, _normed(x, layer.input_layernorm), (cos, sin), seen, held)
            mlp, y = layer.mlp, _normed(x, layer.post_attention_layernorm)
            x = x + _through(mlp.act_fn(_through(y, mlp.gate_proj)) * _through(y, mlp.up_proj), mlp.down_proj)
        return self.module.lm_head(_normed(x, model.norm))

    def _attention(
        self, layer: Any, y: Tensor, turn: tuple[Tensor, Tensor], seen: Tensor | None, held: RoomyLayer
    ) -> Tensor:
        """Query heads that share keys and values stand as rows of one head: no keys are repeated."""
        own, rows = layer.self_attn, len(y)
        query = _turned(_through(y, own.q_proj).view(rows, self.heads, self.size), *turn)
        key = _turned(_through(y, own.k_proj).view(rows, self.kv_heads, self.size), *turn)
        value = _through(y, own.v_proj).view(rows, self.kv_heads, 1, self.size)
        keys, values = held.update(key[:, :, None], value)
        grouped = query.view(rows, self.kv_heads, self.heads // self.kv_heads, self.size)
        made = scaled_dot_product_attention(grouped, keys, values, attn_mask=seen, scale=own.scaling)
        return _through(made.reshape(rows, self.heads * self.size), own.o_proj)


def _through(x: Tensor, layer: Any) -> Tensor:
    return linear(x, layer.weight, layer.bias)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021) of heads [rows, heads, size]; cos and sin [rows, 1, size / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
