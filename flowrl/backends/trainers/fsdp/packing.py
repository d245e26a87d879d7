"""Rows without padding: which rows share a sequence, and an attention in which none of them sees another.

A packed sequence is one row after another, with positions that count from 0 in each. transformers hands the places
where rows begin (`cu_seq_lens_q`) through to the attention; `flowrl_rows` runs torch's own on each row by itself, which
needs no mask and no work between rows. On a GPU `engine.extra: {attn_implementation: flash_attention_2}` takes the same
places in one kernel (not run here).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from flowrl.backends.batch import IntArray
from flowrl.diag.diagnostic import FlowError, diagnose

ATTENTION = "flowrl_rows"
UNKNOWN = ("softcap", "s_aux")
"""What attention of some architectures has beside queries, keys and values."""


def packed_cut(lengths: IntArray, budget_tokens: int, groups: IntArray | None = None) -> list[IntArray]:
    """Places of the rows of each packed micro-batch: the longest first, each into the first that has room for it (first
    fit decreasing); a row, or a group of rows that stay together, above the budget stands alone."""
    labels = np.arange(len(lengths)) if groups is None else groups
    names, group_of = np.unique(labels, return_inverse=True)
    sizes = np.bincount(group_of, weights=lengths, minlength=len(names)).astype(np.int64)
    parts: list[list[IntArray]] = []
    room: list[int] = []
    for group in np.argsort(-sizes, kind="stable").tolist():
        size, members = int(sizes[group]), np.flatnonzero(group_of == group)
        place = next((at for at, left in enumerate(room) if left >= size), len(parts))
        if place == len(parts):
            parts.append([])
            room.append(budget_tokens)
        parts[place].append(members)
        room[place] -= size
    return [np.concatenate(part) for part in parts]


def padding_saved(lengths: IntArray, cuts: Sequence[IntArray]) -> float:
    """Share of places that are padding where `cuts` of rows are padded, none of which are where they are packed."""
    places = sum(len(rows) * int(lengths[rows].max()) for rows in cuts)
    return 1.0 - float(lengths.sum()) / places if places else 0.0


def ends_of(lengths: Tensor) -> Tensor:
    """Where rows of these lengths begin in a packed sequence, and its end: int32 [rows + 1]."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def by_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention [1, heads, tokens, size] of each row to itself, causal, in a window if the layer has one."""
    odd = [name for name in UNKNOWN if more.get(name) is not None]
    if odd:
        what = f"`packing: true` with attention that has `{odd[0]}`"
        raise FlowError(diagnose("FR0801", None, what=what, known="`packing: false`"))
    ends = [0, query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.tolist()
    rows: list[Tensor] = []
    for start, stop in pairwise(ends):
        own = [tensor[:, :, start:stop] for tensor in (query, key, value)]
        window = _window(stop - start, sliding_window, query.device)
        rows.append(
            scaled_dot_product_attention(
                *own,
                attn_mask=window,
                is_causal=window is None,
                scale=scaling,
                enable_gqa=key.shape[1] != query.shape[1],
            )
        )
    return torch.cat(rows, dim=2).transpose(1, 2).contiguous(), None


def _window(tokens: int, size: int | None, device: torch.device) -> Tensor | None:
    """Which of its last `size` tokens each sees; None where that is all of them."""
    if size is None or size >= tokens:
        return None
    place = torch.arange(tokens, device=device)
    back = place[:, None] - place[None]
    return (back >= 0) & (back < size)


def _no_mask(*_: Any, **__: Any) -> None:
    return None


AttentionInterface.register(ATTENTION, by_rows)
AttentionMaskInterface.register(ATTENTION, _no_mask)
