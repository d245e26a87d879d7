"""The weights of a model by class of tensor: how often, how large, and along which side tensor parallelism cuts them.

Takes a ModelShape; gives a few dozen classes at most, whatever the size of the model. Knows no devices and no layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flowrl.machine.attention import Mamba2
from flowrl.machine.denoiser import DenoiserShape
from flowrl.machine.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Rule:
    """What decides who holds which part of a tensor, beside its sides."""

    axis: str
    """column: tp cuts the rows (outputs); row: it cuts the columns (inputs); kv: the rows, by key-value heads; whole:
    each tensor-parallel rank has all of it (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""
    experts: bool = False
    place: str = "layers"
    """Of a pipeline: layers, first or last stage, or both ends (a tied embedding)."""
    groups: int = 0
    """Of kv: key-value heads, below which an engine repeats what tp would cut further."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of one class: `copies` in each of its layers, for each of `experts` one of `rows` x `columns`."""

    name: str
    rule: Rule
    layers: tuple[int, ...]
    """Which of the model's layers have it, ascending. Outside the layers: (0,)."""
    rows: int
    columns: int = 1
    experts: int = 1
    copies: int = 1

    def __hash__(self) -> int:
        return hash((self.name, self.rows, self.columns, self.experts, len(self.layers)))

    @property
    def count(self) -> int:
        """Tensors as transformers names them: one of each expert."""
        return len(self.layers) * self.experts * self.copies

    @property
    def elements(self) -> int:
        return self.count * self.rows * self.columns


COLUMN, ROW, WHOLE = Rule("column"), Rule("row"), Rule("whole")
ROOT = (0,)


@lru_cache(maxsize=256)
def tensors_of(shape: ModelShape) -> tuple[Tensors, ...]:
    """All classes of the model; their elements add up to its parameters."""
    if isinstance(shape, DenoiserShape):
        return even_tensors("blocks", shape.parameters, shape.layers)
    parts = (*_root(shape), *_attention(shape), *_linear(shape), *_dense(shape), *_sparse(shape), *_norms(shape))
    return tuple(each for each in parts if each.elements)


@lru_cache(maxsize=256)
def adapter_tensors(parameters: int, layers: int) -> tuple[Tensors, ...]:
    """A LoRA adapter, which each device of an engine takes whole (vLLM reads it as one set of tensors)."""
    return even_tensors("adapter", parameters, layers)


def even_tensors(name: str, parameters: int, layers: int) -> tuple[Tensors, ...]:
    """Uncut tensors that are alike in all layers, and one for the rest."""
    each, rest = divmod(parameters, layers)
    body = Tensors(name, WHOLE, tuple(range(layers)), each)
    return tuple(part for part in (body, Tensors(f"{name}, rest", WHOLE, ROOT, rest)) if part.elements)


def spread(count: int, first: int, last: int) -> tuple[int, ...]:
    """`count` layers evenly spread over those from `first` up to `last`."""
    return tuple(first + place * (last - first) // count for place in range(count))


def _root(shape: ModelShape) -> tuple[Tensors, ...]:
    width = shape.embedding_width or shape.hidden
    looked_up = shape.tied and shape.head == "lm"
    scalar = shape.head == "scalar"
    head = 0 if looked_up else 1 if scalar else shape.vocab
    return (
        Tensors("embedding", Rule("column", place="ends" if looked_up else "first"), ROOT, shape.vocab, width),
        Tensors("positions", Rule("whole", place="first"), ROOT, shape.learned_positions, shape.hidden),
        Tensors("projection in", Rule("whole", place="first"), ROOT, shape.hidden, shape.embedding_width),
        Tensors("projection out", Rule("whole", place="last"), ROOT, shape.embedding_width, shape.hidden),
        Tensors("head", Rule("whole" if scalar else "column", place="last"), ROOT, head, width),
        Tensors("last norm", Rule("whole", place="last"), ROOT, shape.norm_parameters if shape.last_norm else 0),
        Tensors("vision", Rule("whole", place="first"), ROOT, shape.vision_parameters),
    )


def _attention(shape: ModelShape) -> tuple[Tensors, ...]:
    layers = spread(shape.attention_layers, 0, shape.layers)
    if shape.latent is not None:
        return _latent(shape, layers)
    q, kv, hidden = shape.q_width * (2 if shape.output_gate else 1), shape.kv_width, shape.hidden
    shared, bias = Rule("kv", groups=shape.kv_heads), 1 if shape.qkv_bias else 0
    return (
        Tensors("q", COLUMN, layers, q, hidden),
        Tensors("k and v", shared, layers, kv, hidden, copies=2),
        Tensors("o", ROW, layers, hidden, shape.q_width),
        Tensors("bias of q", COLUMN, layers, q * bias),
        Tensors("bias of k and v", shared, layers, kv * bias, copies=2),
        Tensors("bias of o", WHOLE, layers, hidden if shape.output_bias else 0),
        Tensors("sinks", COLUMN, layers, shape.heads if shape.sinks else 0),
        Tensors("norms of q and k", WHOLE, layers, shape.head_dim if shape.qk_norm else 0, copies=2),
    )


def _latent(shape: ModelShape, layers: tuple[int, ...]) -> tuple[Tensors, ...]:
    """Projections down to the latents are on each tensor-parallel rank (vLLM's ReplicatedLinear in deepseek_v2.py)."""
    latent = shape.latent
    if latent is None:
        return ()
    axes = {"q_a_proj": WHOLE, "kv_a_proj_with_mqa": WHOLE, "o_proj": ROW}
    matrices = latent.matrices(shape.hidden, shape.heads).items()
    return (
        *(Tensors(name, axes.get(name, COLUMN), layers, out, into) for name, (into, out) in matrices),
        Tensors("norm of the latent of q", WHOLE, layers, latent.q_rank),
        Tensors("norm of the latent of k and v", WHOLE, layers, latent.kv_rank),
    )


def _linear(shape: ModelShape) -> tuple[Tensors, ...]:
    """Recurrent mixers: matrices in by columns, out by rows, and what stands between by heads."""
    linear, hidden = shape.linear, shape.hidden
    if linear is None:
        return ()
    layers = spread(shape.linear_layers, 0, shape.layers)
    heads = linear.heads if isinstance(linear, Mamba2) else linear.value_heads
    inner = heads * (linear.head_dim if isinstance(linear, Mamba2) else linear.value_dim)
    into = linear.channels + inner + (heads if isinstance(linear, Mamba2) else 2 * heads)
    inside = shape.linear_parameters - hidden * (into + inner)
    return (
        Tensors("recurrent in", COLUMN, layers, into, hidden),
        Tensors("recurrent inside", COLUMN, layers, inside),
        Tensors("recurrent out", ROW, layers, hidden, inner),
    )


def _dense(shape: ModelShape) -> tuple[Tensors, ...]:
    first = shape.dense_layers and shape.dense_layers == shape.dense_feed_forwards
    layers = spread(shape.dense_feed_forwards, 0, shape.dense_feed_forwards if first else shape.layers)
    return _feed_forward(shape, "feed-forward", layers, shape.dense_ffn or shape.ffn)


def _sparse(shape: ModelShape) -> tuple[Tensors, ...]:
    if not shape.experts:
        return ()
    layers = spread(shape.sparse_layers, shape.dense_layers, shape.layers)
    shared = _feed_forward(shape, "shared experts", layers, shape.shared_ffn) if shape.shared_ffn else ()
    return (
        *_feed_forward(shape, "experts", layers, shape.ffn, shape.experts),
        *shared,
        Tensors("router", WHOLE, layers, shape.experts, shape.hidden),
        Tensors("bias of the router", WHOLE, layers, shape.experts if shape.router_bias else 0),
        Tensors("gate of the shared experts", WHOLE, layers, 1 if shape.shared_gate else 0, shape.hidden),
    )


def _feed_forward(
    shape: ModelShape, name: str, layers: tuple[int, ...], width: int, experts: int = 0
) -> tuple[Tensors, ...]:
    of, count, up = bool(experts), max(1, experts), shape.ffn_matrices - 1
    bias, hidden = 1 if shape.ffn_bias else 0, shape.hidden
    return (
        Tensors(f"{name}, up", Rule("column", of), layers, width, hidden, count, up),
        Tensors(f"{name}, down", Rule("row", of), layers, hidden, width, count),
        Tensors(f"{name}, bias of up", Rule("column", of), layers, width * bias, 1, count, up),
        Tensors(f"{name}, bias of down", Rule("whole", of), layers, hidden * bias, 1, count),
    )


def _norms(shape: ModelShape) -> tuple[Tensors, ...]:
    layers = tuple(range(shape.layers))
    return (Tensors("norms", WHOLE, layers, shape.norm_parameters, copies=shape.layer_norms),)
