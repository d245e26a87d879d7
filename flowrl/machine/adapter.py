"""Low-rank adapters: which matrices of a model they stand beside, and how many parameters they have (Hu et al. 2021).

A matrix of a x b with an adapter of rank r gets r * (a + b) parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.machine.attention import Mamba2
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
    found: dict[str, int] = {}
    for layers, matrices in ((shape.attention_layers, _attention(shape)), (shape.linear_layers, _linear(shape))):
        for name, both in matrices.items():
            found[name] = found.get(name, 0) + layers * both
    return found | _feed_forward(shape)


def _attention(shape: ModelShape) -> dict[str, int]:
    h, q, k = shape.hidden, shape.q_width, shape.kv_width
    if shape.latent is not None:
        return {name: sum(sides) for name, sides in shape.latent.matrices(h, shape.heads).items()}
    out = "out_proj" if shape.architecture == "opt" else "o_proj"
    return {"q_proj": h + (2 * q if shape.output_gate else q), "k_proj": h + k, "v_proj": h + k, out: q + h}


def _linear(shape: ModelShape) -> dict[str, int]:
    """Input and output matrices of recurrent layers; Qwen3.5 keeps apart what Qwen3-Next joins."""
    h = shape.hidden
    if isinstance(shape.linear, Mamba2):
        inner = shape.linear.heads * shape.linear.head_dim
        return {"in_proj": h + inner + shape.linear.channels + shape.linear.heads, "out_proj": inner + h}
    if shape.linear is None:
        return {}
    heads, values = shape.linear.value_heads, shape.linear.value_heads * shape.linear.value_dim
    if shape.architecture == "qwen3_next":
        joined = {"in_proj_qkvz": h + shape.linear.channels + values, "in_proj_ba": h + 2 * heads}
        return joined | {"out_proj": values + h}
    apart = {"in_proj_qkv": h + shape.linear.channels, "in_proj_z": h + values}
    return apart | {"in_proj_b": h + heads, "in_proj_a": h + heads, "out_proj": values + h}


def _feed_forward(shape: ModelShape) -> dict[str, int]:
    """Dense and shared ones, and each expert. GPT-OSS keeps its experts in tensors that no adapter stands beside."""
    if shape.architecture == "gpt_oss":
        return {}
    h, dense, sparse = shape.hidden, shape.dense_feed_forwards, shape.sparse_layers
    both = dense * (h + (shape.dense_ffn or shape.ffn)) + sparse * shape.experts * (h + shape.ffn)
    both += sparse * (h + shape.shared_ffn) if shape.shared_ffn else 0
    if shape.architecture == "opt":
        return dict.fromkeys(("fc1", "fc2"), both)
    if shape.architecture == "glm4":
        return {"gate_up_proj": both + dense * shape.ffn, "down_proj": both}
    return dict.fromkeys(("gate_proj", "up_proj", "down_proj")[3 - shape.ffn_matrices :], both)


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
