"""What leaves a trainer of adapters: its base with the adapters merged into it, or the adapters alone.

Rows are those of the shards, as in weights.py: FSDP2 cuts W and B along the same rows, and A, which is small, is
gathered whole for a moment. Of a module without adapters it is all parameters as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from flowrl.backends.contract import Bytes, TensorSpec
from flowrl.backends.lora import B, adapted_layers, is_adapter, merged
from flowrl.backends.trainers.fsdp import weights
from flowrl.backends.trainers.fsdp.weights import Part, named, part_of, parts
from flowrl.backends.weights import layout
from flowrl.diag.diagnostic import InternalError


def manifest(module: nn.Module, dtype: torch.dtype, *, alone: bool) -> tuple[TensorSpec, ...]:
    """The layout of a buffer of `alone` the adapters, else of a model without any."""
    own = ((name, tuple(tensor.shape)) for name, tensor in named(module) if is_adapter(name) == alone)
    return layout(own, dtype)


def write(module: nn.Module, specs: Sequence[TensorSpec], buffer: Bytes, dtype: torch.dtype, *, alone: bool) -> None:
    """Write this rank's rows of what `manifest` lays out. A collective where adapters are merged and several ranks
    share them."""
    own = (part for part in parts(module) if is_adapter(part.name)) if alone else merged_parts(module)
    weights.write(own, specs, buffer, dtype)


@torch.no_grad()
def merged_parts(module: nn.Module) -> Iterator[Part]:
    """This rank's part of each parameter that a model without adapters has."""
    layers = {f"{name}.weight": layer for name, layer in adapted_layers(module)}
    for part in parts(module):
        layer = layers.get(part.name)
        if layer is not None:
            own = part_of(B, layer.lora_b.detach())
            if (own.start, own.stop) != (part.start, part.stop):
                raise InternalError(f"{part.name} and its adapter are cut at different rows")
            whole = _whole(layer.lora_a.detach())
            yield replace(part, local=merged(part.local, whole, own.local, layer.scale))
        elif not is_adapter(part.name):
            yield part


@torch.no_grad()
def read(module: nn.Module, specs: Sequence[TensorSpec], buffer: Bytes) -> None:
    """Take a model's weights in as the base; adapters start anew, at zero."""
    weights.read((part for part in parts(module) if not is_adapter(part.name)), specs, buffer)
    for _, layer in adapted_layers(module):
        layer.lora_b.zero_()


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
