"""Rows of unequal length as padded tensors, and sums over rows, groups and runs. Pure; knows no model and no batch."""

from __future__ import annotations

import torch
from torch import Tensor


def pad(values: Tensor, lengths: Tensor, fill: float | int | bool = 0) -> Tensor:
    """Flat [sum(lengths), ...] → [rows, longest, ...], each row from the left. lengths int64 [rows]."""
    longest = int(lengths.max()) if len(lengths) else 0
    padded = values.new_full((len(lengths), longest, *values.shape[1:]), fill)
    padded[inside(lengths, longest)] = values
    return padded


def unpad(padded: Tensor, lengths: Tensor) -> Tensor:
    """The inverse of `pad`: [rows, longest, ...] → flat [sum(lengths), ...]."""
    return padded[inside(lengths, padded.shape[1])]


def inside(lengths: Tensor, longest: int) -> Tensor:
    """bool [rows, longest]: whether a place holds a token of its row."""
    return torch.arange(longest, device=lengths.device)[None] < lengths[:, None]


def dense(ids: Tensor) -> tuple[Tensor, int]:
    """Group numbers 0 … groups - 1 in ascending order of id, int64 like `ids`, and how many groups there are."""
    unique, numbers = ids.unique(return_inverse=True)
    return numbers, len(unique)


def group_sum(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Sums of `values` [rows] by group number: [count]."""
    return values.new_zeros(count).index_add(0, groups, values)


def group_mean(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Mean of each row's group: [rows]."""
    return (group_sum(values, groups, count) / group_sum(torch.ones_like(values), groups, count))[groups]


def group_std(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Standard deviation (n - 1 in the denominator) of each row's group: [rows]; 0 for a group of one."""
    sizes = group_sum(torch.ones_like(values), groups, count)
    squares = (values - group_mean(values, groups, count)).square()
    return (group_sum(squares, groups, count) / (sizes - 1).clamp(min=1)).sqrt()[groups]


def runs(mask: Tensor) -> tuple[Tensor, int]:
    """Numbers of the maximal runs of true in bool `mask` [rows, tokens], over all rows, and their count. A run is a
    turn: the policy's own tokens between observations. Places outside have the number of no run: `count`."""
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
    starts = (mask & ~before).reshape(-1)
    count = int(starts.sum())
    numbers = (starts.cumsum(0) - 1).reshape(mask.shape)
    return torch.where(mask, numbers, torch.full_like(numbers, count)), count


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of each row over its true places: [rows]. What stands at false places is never read, NaN included."""
    return torch.where(mask, values, torch.zeros_like(values)).sum(dim=-1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over all true places; 0 if there is none."""
    return masked_sum(values, mask).sum() / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """(values - mean) / sqrt(variance + epsilon) over all true places (n - 1 in the variance), 0 elsewhere."""
    count = mask.sum()
    mean = masked_mean(values, mask)
    centred = torch.where(mask, values - mean, torch.zeros_like(values))
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + epsilon)
