"""Bytes that a decoder layer keeps of each token for its backward pass, by kind of layer and by how it is implemented.

Takes a Placed role; gives inputs whose origin is their formula. Knows no moments of a step.

Two implementations are counted. `eager` are modules of transformers (FSDP, DeepSpeed, plain scorers): an RMS norm keeps
a float32 copy of its input, the normalised and the scaled output, 4 bytes of inverse root; flash attention its inputs,
its output and a log-sum-exp; a gated feed-forward gate, up, their activation and product. `fused` are the kernels of
Transformer Engine that Megatron Core uses; they keep the input and the output of a norm, and what Korthikanti et al.
2022 (arXiv:2205.05198, section 4.1) count: inputs of matrix products, queries, keys, values, and inputs of the
activation. With 4·H wide ungated feed-forwards and attention of H that is their 34·s·b·h without the dropout masks.
Sequence parallelism cuts all of it by tp, tensor parallelism alone only what is between the norms (their table 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from flowrl.machine.denoiser import DenoiserShape
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, evaluate
from flowrl.placement.cost.placed import Placed

EAGER, FROZEN, FUSED, PRODUCTS = "eager", "frozen", "fused", "products"
"""What is kept: all, by modules, by modules with frozen weights, or by fused kernels; or outputs of matrix products
alone (selective recomputation)."""

NORM: Mapping[str, str] = {EAGER: "4*H + 2*w*H + 4", FROZEN: "4*H + w*H + 4", FUSED: "2*w*H + 4", PRODUCTS: "w*H"}
"""One norm over the hidden state. The gradient of its weight alone needs the normalised input."""
ATTENTION: Mapping[str, str] = {EAGER: "2*w*q + 2*w*k + 4*n", FUSED: "2*w*q + 2*w*k + 4*n", PRODUCTS: "2*w*q + 2*w*k"}
HEAD_NORMS: Mapping[str, str] = {
    EAGER: "(4 + w)*(q + k)",
    FROZEN: "4*(q + k)",
    FUSED: "w*(q + k)",
    PRODUCTS: "0*q",
}
LATENT: Mapping[str, str] = {
    EAGER: "3*w*q + 2*w*v + 2*w*c + 4*c + 4*n",
    FUSED: "3*w*q + 2*w*v + 2*w*c + 4*n",
    PRODUCTS: "2*w*q + 2*w*v + w*c",
}
"""Queries and keys of all heads, the up-projected latents, values and output (v wide), latents (c wide); own count."""
LINEAR: Mapping[str, str] = {EAGER: "4*w*c + 2*w*v", FUSED: "4*w*c + 2*w*v", PRODUCTS: "w*c + w*v"}
"""Channels before and after the convolution and its activation, gate and output; own estimate."""
GATED: Mapping[str, str] = {EAGER: "4*w*F", FUSED: "3*w*F", PRODUCTS: "2*w*F"}
UNGATED: Mapping[str, str] = {EAGER: "2*w*F", FUSED: "2*w*F", PRODUCTS: "w*F"}
EXPERT: Mapping[str, str] = {EAGER: "2*w*H", FUSED: "w*H", PRODUCTS: "w*H"}
"""Input of a token's copy at one expert, and of modules its output. Megatron Core's TEGroupedMLP weights the activation
instead of the output, so that no output is kept (transformer/moe/experts.py: weighted_bias_swiglu_impl)."""
WEIGHTED = " + y*H"
"""While a layer of modules works: the output in float32, weighted by the router's score, and its gradient (prime-rl's
trainer/models/layers/moe.py); y is the profile's."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Of a layer: `count` layers have it, and it keeps `formula` bytes of a token."""

    kind: str
    count: int
    formula: str
    values: tuple[tuple[str, float], ...] = ()


def layer_activations(placed: Placed) -> Given:
    """Of the layer that keeps most, without recomputation: what one layer's work needs."""
    return _given(placed, implementation(placed), largest=True)


def mean_activations(placed: Placed) -> Given:
    """Of all layers, divided by their number, as they are kept between forward and backward."""
    how = PRODUCTS if placed.recompute == "selective" else implementation(placed)
    return _given(placed, how, largest=False)


def implementation(placed: Placed) -> str:
    if placed.backend == "megatron":
        return FUSED
    return FROZEN if placed.role.trainable and placed.adapter else EAGER


def sequence_parallel(placed: Placed) -> bool:
    """Whether tp cuts norms and residuals too."""
    asked = placed.role.engine.sequence_parallel
    return placed.backend == "megatron" and placed.layout.tp > 1 and asked is not False


def kept_input(placed: Placed) -> str:
    """Of a layer that is recomputed whole: its input (Korthikanti et al. 2022, table 2: 2·s·b·h, cut by tp only with
    sequence parallelism)."""
    return "w*H/tp" if sequence_parallel(placed) else "w*H"


@dataclass(frozen=True, slots=True)
class _Way:
    """How the layers of a role are cut and implemented."""

    how: str
    dtype_bytes: int
    tp: int
    by_tokens: bool
    imbalance: float
    weighted: float
    """Bytes of a hidden unit of an expert's output in float32; 0: it is not weighted so."""


def _given(placed: Placed, how: str, *, largest: bool) -> Given:
    layout = placed.layout
    key = ("activations", how, largest, layout.tp, layout.ep > 1)
    found: Given | None = placed.kept.get(key)
    if found is None:
        found = placed.kept[key] = _worked_out(placed, how, largest=largest)
    return found


def _worked_out(placed: Placed, how: str, *, largest: bool) -> Given:
    layout, known = placed.layout, placed.profile
    in_float = largest and how in (EAGER, FROZEN) and bool(placed.model.experts)
    way = _Way(
        how=how,
        dtype_bytes=placed.dtype_bytes,
        tp=layout.tp,
        by_tokens=sequence_parallel(placed),
        imbalance=known.moe.imbalance if layout.ep > 1 else 1.0,
        weighted=known.training.weighted_expert_bytes if in_float else 0.0,
    )
    return _activations(placed.model, way, largest)


@lru_cache(maxsize=1024)
def _activations(shape: ModelShape, way: _Way, largest: bool) -> Given:
    """What is worked out once is found again by value."""
    parts, tp = _parts(shape, way), way.tp
    values = _values(shape, way.dtype_bytes)
    bytes_of = {part: evaluate(part.formula, {**values, **dict(part.values)}) for part in parts}
    cuts = {part: tp if part.kind != "norms" or way.by_tokens else 1 for part in parts}
    each = {part: amount / cuts[part] for part, amount in bytes_of.items()}
    if largest:
        value = _largest(shape, each)
    else:
        value = sum(part.count * amount for part, amount in each.items()) / shape.layers
    return Given(value, _words(shape, parts, cuts, tp, largest=largest))


def _largest(shape: ModelShape, each: Mapping[_Part, float]) -> float:
    norms = sum(amount for part, amount in each.items() if part.kind == "norms")
    mixers = max((amount for part, amount in each.items() if "attention" in part.kind), default=0.0)
    ffns = max((amount for part, amount in each.items() if "feed-forward" in part.kind), default=0.0)
    apart = bool(shape.mixers or shape.feed_forwards)
    return norms + (max(mixers, ffns) if apart else mixers + ffns)


def _words(shape: ModelShape, parts: tuple[_Part, ...], cuts: Mapping[_Part, int], tp: int, *, largest: bool) -> str:
    """The formula; of a model with several kinds of layers each with its number."""
    mixed = any(part.count not in (0, shape.layers) for part in parts)
    texts: list[str] = []
    for part in parts:
        cut = f"({part.formula})/tp" if cuts[part] > 1 else part.formula
        texts.append(f"{part.count} x {part.kind}: {cut}" if mixed else cut)
    if not mixed:
        return f"per token and layer: {' + '.join(texts)}{f', tp {tp}' if tp > 1 else ''}"
    return f"per token, {'the largest' if largest else 'mean'} of {shape.layers} layers: {'; '.join(texts)}"


def _parts(shape: ModelShape, way: _Way) -> tuple[_Part, ...]:
    if isinstance(shape, DenoiserShape):
        return _denoiser(shape)
    how = way.how
    feed_forward = _of(UNGATED if shape.ffn_matrices == 2 else GATED, how)
    parts = [
        _Part("norms", shape.layers, f"{shape.layer_norms}*({_of(NORM, how)})"),
        _Part("attention", shape.attention_layers, *_attention(shape, how)),
        _linear(shape, how),
        _Part("dense feed-forward", shape.dense_feed_forwards, feed_forward, (("F", shape.dense_ffn or shape.ffn),)),
        _sparse(shape, way, feed_forward),
    ]
    return tuple(part for part in parts if part.count)


def _of(kind: Mapping[str, str], how: str) -> str:
    """Frozen weights change norms alone: adapters keep the inputs of matrix products."""
    return kind[EAGER] if how == FROZEN and FROZEN not in kind else kind[how]


def _attention(shape: ModelShape, how: str) -> tuple[str, tuple[tuple[str, float], ...]]:
    if shape.latent is not None:
        latent = shape.latent
        widths = (("v", shape.heads * latent.value_dim), ("c", latent.q_rank + latent.cached))
        return _of(LATENT, how), widths
    gate = " + 2*w*q" if shape.output_gate else ""
    return _of(ATTENTION, how) + gate + (f" + {_of(HEAD_NORMS, how)}" if shape.qk_norm else ""), ()


def _linear(shape: ModelShape, how: str) -> _Part:
    mixer = shape.linear
    if mixer is None:
        return _Part("linear attention", 0, _of(LINEAR, how))
    values = (("c", mixer.channels), ("v", mixer.channels / 2))
    return _Part("linear attention", shape.linear_layers, _of(LINEAR, how), values)


def _sparse(shape: ModelShape, way: _Way, feed_forward: str) -> _Part:
    """e copies of a token, x times as many at the busiest rank of expert parallelism; float32 logits and scores of the
    router; shared experts."""
    copies = f"e*({feed_forward} + {_of(EXPERT, way.how)}{WEIGHTED if way.weighted else ''})"
    formula = f"x*{copies}" if way.imbalance != 1.0 else copies
    formula += " + 8*E"
    values: list[tuple[str, float]] = [("x", way.imbalance), ("y", way.weighted)]
    if shape.shared_ffn:
        formula += f" + {feed_forward.replace('F', 'Fs')}"
        values.append(("Fs", shape.shared_ffn))
    return _Part("sparse feed-forward", shape.sparse_layers, formula, tuple(values))


def _denoiser(shape: DenoiserShape) -> tuple[_Part, ...]:
    """Its feed-forward has no gate, and its norms are modulated (2·w·H more; own estimate)."""
    norms = " + (4 + w)*(q + k)" if shape.qk_norm else ""
    return (
        _Part("norms", shape.layers, "8*H + 6*w*H + 8"),
        _Part("attention", shape.layers, f"2*w*q + 2*w*k + 4*n{norms}"),
        _Part("dense feed-forward", shape.layers, "2*w*F"),
    )


def _values(shape: ModelShape, dtype_bytes: int) -> dict[str, float]:
    return {
        "w": dtype_bytes,
        "H": shape.hidden,
        "q": shape.q_width,
        "k": shape.kv_width,
        "F": shape.ffn,
        "n": shape.heads,
        "E": max(1, shape.experts),
        "e": max(1, shape.experts_per_token),
    }
