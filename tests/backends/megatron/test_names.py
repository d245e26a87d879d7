"""Boxes of full tensors in Megatron Core's parameters, against fused tensors made by hand and element by element."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flowrl.backends.trainers.megatron.names import Facts, Run, boxes, runs

LAYER = "decoder.layers.2."
TARGET = "model.layers.2."


def facts_of(heads: int = 4, kv_heads: int = 2, head_size: int = 3, ffn: int = 8, vocab: int = 11) -> Facts:
    return Facts(
        layers=3,
        hidden=5,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=ffn,
        vocab=vocab,
        tied=True,
        qkv_bias=True,
        qk_norm=False,
        scalar=False,
    )


def numbered(rows: int, columns: int, start: int) -> Tensor:
    return torch.arange(start, start + rows * columns).reshape(rows, columns)


def filled(name: str, rows: int, columns: int, facts: Facts, tp: int, rank: int, full: dict[str, Tensor]) -> Tensor:
    """The local matrix of a tp rank, box by box."""
    local = torch.zeros((rows, columns), dtype=torch.int64)
    for box in boxes(runs(name, rows, columns, facts, tp, rank), columns, 0, rows * columns):
        values = full[box.name][box.row : box.row + box.rows, box.column : box.column + box.columns]
        local[box.local_row : box.local_row + box.rows, box.local_column : box.local_column + box.columns] = values
    return local


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp"), [(4, 2, 1), (4, 2, 2), (4, 1, 2), (8, 8, 4), (6, 2, 2), (8, 2, 4)]
)
def test_fused_qkv_is_groups_of_queries_key_and_value(heads: int, kv_heads: int, tp: int) -> None:
    """Megatron Core, SelfAttention: [groups, (heads a group + 2) * head size, hidden], then cut by rows over tp."""
    facts = facts_of(heads=heads, kv_heads=kv_heads)
    size, columns = facts.head_size, facts.hidden
    q, k, v = (numbered(n * size, columns, 1000 * i) for i, n in enumerate((heads, kv_heads, kv_heads)))
    groups = [
        torch.cat(
            [q[g * heads // kv_heads * size :][: heads // kv_heads * size], k[g * size :][:size], v[g * size :][:size]]
        )
        for g in range(kv_heads)
    ]
    fused = torch.cat(groups).chunk(tp)
    full = {f"{TARGET}self_attn.{letter}_proj.weight": each for letter, each in zip("qkv", (q, k, v), strict=True)}
    for rank in range(tp):
        name, rows = f"{LAYER}self_attention.linear_qkv.weight", len(fused[rank])
        assert torch.equal(filled(name, rows, columns, facts, tp, rank, full), fused[rank])


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_each_rank_has_a_part_of_the_gate_above_the_same_part_of_up(tp: int) -> None:
    facts = facts_of()
    gate, up = numbered(8, 5, 0), numbered(8, 5, 1000)
    full = {f"{TARGET}mlp.gate_proj.weight": gate, f"{TARGET}mlp.up_proj.weight": up}
    for rank in range(tp):
        expected = torch.cat([gate.chunk(tp)[rank], up.chunk(tp)[rank]])
        made = filled(f"{LAYER}mlp.linear_fc1.weight", 16 // tp, 5, facts, tp, rank, full)
        assert torch.equal(made, expected)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_what_stands_after_a_product_is_cut_by_columns(tp: int) -> None:
    down = numbered(5, 8, 0)
    full = {f"{TARGET}mlp.down_proj.weight": down}
    for rank in range(tp):
        made = filled(f"{LAYER}mlp.linear_fc2.weight", 5, 8 // tp, facts_of(), tp, rank, full)
        assert torch.equal(made, down.chunk(tp, dim=1)[rank])


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_rows_beyond_the_vocabulary_are_nobodys(tp: int) -> None:
    facts = facts_of(vocab=11)
    embedding = numbered(11, 5, 1)
    rows = facts.padded_vocab(tp) // tp
    parts = [
        filled("embedding.word_embeddings.weight", rows, 5, facts, tp, rank, {"model.embed_tokens.weight": embedding})
        for rank in range(tp)
    ]
    whole = torch.cat(parts)
    assert torch.equal(whole[:11], embedding)
    assert not whole[11:].any()


def test_a_tied_head_is_the_embedding() -> None:
    (run,) = runs("output_layer.weight", 11, 5, facts_of(), 1, 0)
    assert run.name == "model.embed_tokens.weight"


def test_a_parameter_that_nobody_knows_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        runs("decoder.layers.0.mlp.router.weight", 4, 4, facts_of(), 1, 0)


@given(st.integers(1, 6), st.integers(1, 5), st.lists(st.integers(0, 30), max_size=4), st.integers(1, 3))
def test_shares_of_a_matrix_together_are_all_of_it_once(rows: int, columns: int, ends: list[int], parts: int) -> None:
    """However its elements are shared out, each falls into one box, at the place that counting gives."""
    of = list(_in_parts(rows, parts))
    cuts = sorted({0, rows * columns, *(end for end in ends if end < rows * columns)})
    seen: Counter[tuple[int, int]] = Counter()
    for start, stop in pairwise(cuts):
        for box in boxes(of, columns, start, stop):
            for row in range(box.rows):
                for column in range(box.columns):
                    place = (box.local_row + row) * columns + box.local_column + column
                    assert start <= place < stop
                    seen[box.row + row, box.column + column] += 1
                    assert (box.row + row, box.column + column) == divmod(place, columns)
    assert seen == Counter({(row, column): 1 for row in range(rows) for column in range(columns)})


def _in_parts(rows: int, parts: int) -> Iterator[Run]:
    size = -(-rows // parts)
    for start in range(0, rows, size):
        yield Run("t", start, min(size, rows - start), start)
