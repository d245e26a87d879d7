"""Megatron Core's parameters and Hugging Face's: which part of which tensor is where. Pure; knows neither library.

A local parameter is seen as a matrix (a vector has one column). Megatron Core fuses q, k and v of each group of heads,
and the two halves of the gated feed-forward; tp then cuts rows of what stands before a product and columns of what
stands after it. Everything here is a box: rows and columns of a full tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """Sizes of a dense decoder with grouped queries and a gated feed-forward (Qwen2, Qwen3, Llama, Mistral)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    tied: bool
    """Whether the head is the embedding. A scalar head never is."""
    qkv_bias: bool
    qk_norm: bool
    scalar: bool
    """Whether the head gives one number a token."""

    def padded_vocab(self, tp: int) -> int:
        """Rows of the embedding that tp can cut; those beyond `vocab` are no tokens."""
        return -(-self.vocab // tp) * tp


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of a local matrix, over all its columns, that are a box of a full tensor."""

    name: str
    """Of the full tensor, Hugging Face's."""
    local_row: int
    rows: int
    row: int
    """First row in the full tensor."""
    column: int = 0
    """First column in the full tensor."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a full tensor and where it begins in a local matrix."""

    name: str
    row: int
    rows: int
    column: int
    columns: int
    local_row: int
    local_column: int


_DIRECT = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}
"""Whole on every tp rank."""
_CUT_COLUMNS = {
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_ENDS = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
    "score.weight": "score.weight",
    "score.bias": "score.bias",
}
_LAYER = "decoder.layers."


def is_repeated(name: str) -> bool:
    """Whether every tp rank holds the same whole parameter."""
    return name.startswith("score.") or name.endswith("layernorm.weight")


def runs(name: str, rows: int, columns: int, facts: Facts, tp: int, tp_rank: int) -> tuple[Run, ...]:
    """Where the rows of a parameter with `rows` x `columns` on this rank belong. `name` is Megatron Core's, with layers
    counted from 0 through all stages. Rows that belong nowhere pad the vocabulary."""
    if name in _ENDS:
        return _of_ends(name, rows, facts, tp_rank)
    number, _, part = name.removeprefix(_LAYER).partition(".")
    prefix = f"model.layers.{number}."
    if not name.startswith(_LAYER):
        raise KeyError(name)
    if part in _DIRECT:
        return (Run(prefix + _DIRECT[part], 0, rows, 0),)
    if part in _CUT_COLUMNS:
        return (Run(prefix + _CUT_COLUMNS[part], 0, rows, 0, tp_rank * columns),)
    module, _, kind = part.rpartition(".")
    if module == "self_attention.linear_qkv":
        return tuple(_within(_fused_qkv(prefix, kind, facts), tp_rank * rows, rows))
    if module == "mlp.linear_fc1":
        half = rows // 2
        return tuple(
            Run(f"{prefix}mlp.{each}_proj.{kind}", place * half, half, tp_rank * half)
            for place, each in enumerate(("gate", "up"))
        )
    raise KeyError(name)


def _of_ends(name: str, rows: int, facts: Facts, tp_rank: int) -> tuple[Run, ...]:
    target = _ENDS[name]
    if is_repeated(name):
        return (Run(target, 0, rows, 0),)
    if name == "output_layer.weight" and facts.tied:
        target = _ENDS["embedding.word_embeddings.weight"]
    first = tp_rank * rows
    count = max(0, min(rows, facts.vocab - first))
    return (Run(target, 0, count, first),) if count else ()


def _fused_qkv(prefix: str, kind: str, facts: Facts) -> Iterator[Run]:
    """Rows of the whole fused matrix: for each group of heads its queries, its key, its value."""
    queries = facts.heads // facts.kv_heads * facts.head_size
    place = 0
    for group in range(facts.kv_heads):
        for letter, size in (("q", queries), ("k", facts.head_size), ("v", facts.head_size)):
            yield Run(f"{prefix}self_attn.{letter}_proj.{kind}", place, size, group * size)
            place += size


def _within(whole: Iterator[Run], start: int, rows: int) -> Iterator[Run]:
    """The parts of runs that lie in rows [start, start + rows), counted from there."""
    for run in whole:
        low, high = max(run.local_row, start), min(run.local_row + run.rows, start + rows)
        if low < high:
            yield Run(run.name, low - start, high - low, run.row + low - run.local_row, run.column)


def boxes(of: Sequence[Run], columns: int, start: int, stop: int) -> Iterator[Box]:
    """The boxes of the elements [start, stop) of a local matrix with `columns`, counted row by row: what is left of its
    first row, whole rows, the beginning of its last one."""
    for first, count, column, width in _pieces(columns, start, stop):
        for run in of:
            low, high = max(run.local_row, first), min(run.local_row + run.rows, first + count)
            if low < high:
                row = run.row + low - run.local_row
                yield Box(run.name, row, high - low, run.column + column, width, low, column)


def _pieces(columns: int, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(first row, rows, first column, columns)."""
    while start < stop:
        row, column = divmod(start, columns)
        if column == 0 and stop - start >= columns:
            rows = (stop - start) // columns
            yield row, rows, 0, columns
            start += rows * columns
        else:
            end = min(stop, (row + 1) * columns)
            yield row, 1, column, end - start
            start = end
