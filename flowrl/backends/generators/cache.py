"""A KV cache with headroom: transformers' own copies all keys and values of a layer for every token it adds.

A layer keeps its keys and values at the front of a larger tensor and writes new ones behind them; the tensor is made
anew, larger by half, when it is full. Values are the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

LEAST_HEADROOM_TOKENS = 32


class RoomyLayer(DynamicLayer):
    """A DynamicLayer whose `keys` and `values` are the fronts of `_room`, if it has one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        assert self.keys is not None
        assert self.values is not None
        start = self.keys.shape[-2]
        stop = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < stop:
            self._room = (_roomy(self.keys, stop), _roomy(self.values, stop))
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[..., start:stop, :] = new
        self.keys, self.values = (room[..., :stop, :] for room in self._room)
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._room = None

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = None


def roomy_cache(config: Any) -> DynamicCache:
    """An empty cache for a model of this config; layers that keep a window only stay transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _roomy(held: Tensor, tokens: int) -> Tensor:
    """A tensor with `held` at its front and room for `tokens` and more."""
    shape = list(held.shape)
    shape[-2] = tokens + max(LEAST_HEADROOM_TOKENS, tokens // 2)
    room = torch.empty(shape, dtype=held.dtype, device=held.device)
    room[..., : held.shape[-2], :] = held
    return room
