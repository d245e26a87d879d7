"""Low-rank adapters: which matrices of a model they stand beside, and how many parameters they have (Hu et al. 2021).

A matrix of a x b with an adapter of rank r gets r * (a + b) parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.machine.denoiser import MLP_RATIO, DenoiserShape
from flowrl.machine.shape import ModelShape

ALL_LINEAR = "all_linear"


def adapter_parameters(shape: ModelShape, lora: Mapping[str, Any]) -> int:
    """Parameters of the adapter that `lora` (rank, targets) describes. Targets that the model has not count nothing:
    they are refused where they are written."""
    return int(lora["rank"]) * sum(widths(shape)[name] for name in targets_of(shape, lora) if name in widths(shape))


def targets_of(shape: ModelShape, lora: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the adapted matrices."""
    targets = lora.get("targets", ALL_LINEAR)
    if targets == ALL_LINEAR:
        return tuple(widths(shape))
    return (targets,) if isinstance(targets, str) else tuple(targets)


def widths(shape: ModelShape) -> dict[str, int]:
    """By name of a matrix: its two sides together, of all layers, in the names that transformers and diffusers use."""
    if isinstance(shape, DenoiserShape):
        return _denoiser_widths(shape)
    h, q, k, experts = shape.hidden, shape.q_width, shape.kv_width, max(1, shape.experts)
    each = {"q_proj": h + q, "k_proj": h + k, "v_proj": h + k, "o_proj": q + h}
    each |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), experts * (h + shape.ffn))
    return {name: shape.layers * both for name, both in each.items()}


def _denoiser_widths(shape: DenoiserShape) -> dict[str, int]:
    h, double, single = shape.hidden, shape.double_layers, shape.layers - shape.double_layers
    wide = (1 + MLP_RATIO) * h
    return {
        **dict.fromkeys(("to_q", "to_k", "to_v"), (double + single) * 2 * h),
        **dict.fromkeys(("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "to_out.0"), double * 2 * h),
        **dict.fromkeys(("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"), double * wide),
        "proj_mlp": single * wide,
        "proj_out": single * (wide + h),
    }
