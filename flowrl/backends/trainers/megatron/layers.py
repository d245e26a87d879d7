"""What stands in for parts that Megatron Core takes from TransformerEngine or Apex: torch's own, on any device.

With them sequence parallelism works without TransformerEngine, and attention never keeps a matrix of scores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from flowrl.backends.trainers.megatron.library import core


class RmsNorm(nn.RMSNorm):
    """With tp over tokens (sequence parallelism) each rank sees some of them: the mark has their gradients summed."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        vars(self.weight)["sequence_parallel"] = config.sequence_parallel


class CausalAttention(nn.Module):
    """Causal attention of grouped queries: [tokens, rows, heads, size] three times → [tokens, rows, heads * size]."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        q, k, v = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        grouped = q.shape[1] != k.shape[1]
        made = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self._scale, enable_gqa=grouped)
        return made.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)


class ScalarHead(nn.Module):
    """One number a token, in place of logits: [tokens, rows, hidden] → [tokens, rows, 1]. Whole on every tp rank."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, self.weight, self.bias)


def layer_spec(qk_norm: bool) -> Any:
    """A decoder layer of Megatron Core with the parts above."""
    spec = core().get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=qk_norm)
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    attention.core_attention = CausalAttention
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    return spec


def block_spec(qk_norm: bool, layers: int) -> Any:
    """`layers` of them, and the norm behind the last one."""
    return core().TransformerBlockSubmodules(layer_specs=[layer_spec(qk_norm)] * layers, layer_norm=RmsNorm)
