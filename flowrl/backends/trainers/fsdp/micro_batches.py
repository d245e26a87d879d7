"""Rows cut into micro-batches: padded tensors within a budget of tokens. Knows no model and no loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from flowrl.algos.pairs import GROUP, SIGN
from flowrl.algos.ragged import pad
from flowrl.backends.batch import Batch, Column, IntArray, Ragged
from flowrl.backends.sight import Sight
from flowrl.backends.trainers.fsdp.packing import packed_cut

TOP = ("ref_top_log_probs", "ref_top_tokens")
"""Columns with K numbers at each place."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded on the right. Attention is causal, so no token sees the padding behind it and neither an attention
    mask nor position ids are needed: places count from 0 in every row."""

    rows: IntArray
    """Their places in the batch; empty for a dummy, which keeps ranks in step and counts nowhere."""
    ids: Tensor
    """int64 [rows, tokens]."""
    mask: Tensor
    """bool [rows, tokens]: tokens that the op is about; all false in a dummy."""
    lengths: Tensor
    """int64 [rows]."""
    columns: dict[str, Tensor]
    """Token columns float32 [rows, tokens], or [rows, tokens, K]; sample columns float32 [rows]."""
    packed: bool = False
    """Whether the model is to run the rows one after another, without their padding."""
    sight: Sight | None = None
    """What the rows see, if the op reads images."""

    @property
    def own(self) -> Tensor:
        """bool [rows, tokens]: tokens that are no padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device)[None] < self.lengths[:, None]


def cut(lengths: IntArray, budget_tokens: int, groups: IntArray | None = None) -> list[IntArray]:
    """Places of the rows of each micro-batch: longest first, as many as fit with their padding; a row longer than the
    budget stands alone. Rows of one group, if `groups` is given, stay together. The same rows always give the same
    cut."""
    if groups is not None:
        return _cut_groups(lengths, budget_tokens, groups)
    order = np.argsort(-lengths, kind="stable")
    parts: list[IntArray] = []
    start = 0
    while start < len(order):
        fitting = max(1, budget_tokens // max(1, int(lengths[order[start]])))
        parts.append(order[start : start + fitting])
        start += fitting
    return parts


def _cut_groups(lengths: IntArray, budget_tokens: int, groups: IntArray) -> list[IntArray]:
    """As `cut`, of whole groups: those with the longest row first."""
    names, group_of = np.unique(groups, return_inverse=True)
    longest = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(longest, group_of, lengths)
    members = [np.flatnonzero(group_of == group) for group in range(len(names))]
    parts: list[IntArray] = []
    started: list[IntArray] = []
    for group in np.argsort(-longest, kind="stable"):
        rows = sum(map(len, started)) + len(members[group])
        if started and rows * int(longest[group_of[started[0][0]]]) > budget_tokens:
            parts.append(np.concatenate(started))
            started = []
        started.append(members[group])
    return [*parts, np.concatenate(started)] if started else parts


def micro_batches(
    batch: Batch,
    budget_tokens: int,
    columns: Sequence[str],
    device: str,
    *,
    by_prompt: bool = False,
    packed: bool = False,
) -> list[MicroBatch]:
    """All rows of `batch`, which has `tokens`, perhaps `loss_mask` (else all tokens but the first of a row count, which
    nothing predicts), and `columns`. `by_prompt`: the rows of a prompt stay together. `packed`: the budget is of tokens
    without padding."""
    lengths = batch.ragged("tokens").lengths
    groups = batch.prompt_ids if by_prompt else None
    cuts = (packed_cut if packed else cut)(lengths, budget_tokens, groups)
    made = (_padded(batch.select(rows), rows, columns, device) for rows in cuts)
    return [replace(micro, packed=packed) for micro in made]


def dummy(columns: Sequence[str], device: str) -> MicroBatch:
    """A row of two tokens that counts nowhere, for a rank that has fewer micro-batches than another."""
    zeros = torch.zeros((1, 2), device=device)
    return MicroBatch(
        rows=np.zeros(0, dtype=np.int64),
        ids=zeros.long(),
        mask=zeros.bool(),
        lengths=torch.full((1,), 2, device=device),
        columns={name: _nothing(name, zeros) for name in columns},
    )


def _nothing(name: str, zeros: Tensor) -> Tensor:
    """A column of the dummy: of the sample, of K tokens at each place, or of a token."""
    if name in (SIGN, GROUP):
        return zeros[:, 0]
    return zeros[..., None] if name in TOP else zeros


def _padded(batch: Batch, rows: IntArray, columns: Sequence[str], device: str) -> MicroBatch:
    tokens = batch.ragged("tokens")
    lengths = torch.from_numpy(tokens.lengths)
    ids = pad(torch.from_numpy(tokens.values.astype(np.int64)), lengths)
    if "loss_mask" in batch.columns:
        mask = pad(torch.from_numpy(batch.ragged("loss_mask").values.astype(np.bool_)), lengths)
    else:
        mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
    mask[:, :1] = False
    return MicroBatch(
        rows=rows,
        ids=ids.to(device),
        mask=mask.to(device),
        lengths=lengths.to(device),
        columns={name: _column(batch.columns[name], lengths).to(device) for name in columns},
    )


def _column(column: Column, lengths: Tensor) -> Tensor:
    if isinstance(column, Ragged):
        return pad(torch.from_numpy(column.values.astype(np.float32)), lengths)
    return torch.from_numpy(np.asarray(column, dtype=np.float32))
