"""Low-rank adapters beside the linear layers of a transformers model (LoRA; Hu et al. 2021, arXiv:2106.09685).

y = x W^T + b + (alpha / r) x A^T B^T, with A [r, in] and B [out, r] beside a frozen W [out, in]. Takes a module and
what a flow says of its model's `lora`; changes the module in place. The names and shapes of its own parameters stay as
they were, so that shards, checkpoints and weight buffers know them. Must not know roles, ranks or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from flowrl.backends.seeds import sample_seed
from flowrl.diag.diagnostic import InternalError
from flowrl.machine.adapter import ALL_LINEAR

A, B = "lora_a", "lora_b"
"""Names of an adapter's two parameters, below the name of its linear layer."""
HEAD = "score."
"""Where the parameters of a scalar head are, which trains as it is: a frozen one that starts at zero says nothing."""


class AdaptedLinear(nn.Linear):
    """A linear layer with an adapter, which is computed with in the dtype of its input. Made by `adapt`."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    active: bool

    def forward(self, input: Tensor) -> Tensor:
        whole = linear(input, self.weight, self.bias)
        if not self.active:
            return whole
        a, b = self.lora_a.to(input.dtype), self.lora_b.to(input.dtype)
        return whole + linear(linear(input, a), b) * self.scale


def adapt(module: nn.Module, lora: Mapping[str, Any], seed: int, dtype: torch.dtype = torch.float32) -> None:
    """Put adapters of `dtype` beside the linear layers that `lora` (rank, alpha, targets) names; freeze all the rest
    but a scalar head.

    B starts at zero, A uniform in ±1/sqrt(in) (torch's own of a linear layer, as in peft), from the run's seed and the
    layer's name: equal on every rank, whichever other layers have adapters.
    """
    chosen = dict(targets(module, lora))
    if not chosen:
        raise InternalError(f"{type(module).__name__} has no linear layer that `targets: {lora.get('targets')}` names")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(HEAD))
    rank, scale = int(lora["rank"]), scale_of(lora)
    for name, layer in chosen.items():
        generator = torch.Generator().manual_seed(sample_seed(seed, f"lora.{name}", 0))
        bound = 1 / math.sqrt(layer.in_features)
        start = (2 * torch.rand((rank, layer.in_features), generator=generator) - 1) * bound
        layer.__class__ = AdaptedLinear
        adapted = cast("AdaptedLinear", layer)
        place = layer.weight.device
        adapted.lora_a = nn.Parameter(start.to(place, dtype))
        adapted.lora_b = nn.Parameter(torch.zeros((layer.out_features, rank), dtype=dtype, device=place))
        adapted.scale, adapted.active = scale, True


def scale_of(lora: Mapping[str, Any]) -> float:
    return float(lora["alpha"]) / int(lora["rank"])


def targets(module: nn.Module, lora: Mapping[str, Any]) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers that get adapters, by name: all of the decoder layers, or those whose name is a target or ends
    in `.TARGET`."""
    wanted = lora.get("targets", ALL_LINEAR)
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name, layer in module.named_modules():
        if type(layer) is not nn.Linear:
            continue
        if wanted == ALL_LINEAR:
            if ".layers." in f".{name}.":
                yield name, layer
        elif any(name == each or name.endswith(f".{each}") for each in names):
            yield name, layer


def is_adapter(name: str) -> bool:
    """Whether a parameter is an adapter's."""
    return name.endswith((f".{A}", f".{B}"))


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, AdaptedLinear]]:
    for name, layer in module.named_modules():
        if isinstance(layer, AdaptedLinear):
            yield name, layer


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """The model is its base inside."""
    layers = [layer for _, layer in adapted_layers(module)]
    for layer in layers:
        layer.active = False
    try:
        yield
    finally:
        for layer in layers:
            layer.active = True


def merged(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W + scale B A in float32, for some rows of W and the same rows of B."""
    return torch.addmm(weight.float(), b.float(), a.float(), alpha=scale)
