"""One comparison with a peer, and the largest difference of each pair of functions that was seen."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = 1e-6

LARGEST: dict[tuple[str, str], float] = {}
"""By (what of ours, the peer's function)."""


def agree(what: str, theirs: str, got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    """Both of one shape; nothing is looked at but the numbers, so masks are the caller's business."""
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)}, {theirs}: {tuple(want.shape)}"
    assert got.numel(), "nothing to compare"
    difference = (got.detach().double() - want.detach().double()).abs().max().item()
    LARGEST[what, theirs] = max(difference, LARGEST.get((what, theirs), 0.0))
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=0.0, atol=tolerance)


def agree_with_gradients(what: str, theirs: str, got: Tensor, want: Tensor, ours: Tensor, other: Tensor) -> None:
    """Two scalars, and their gradients in the leaf of each."""
    agree(what, theirs, got, want)
    (slope,), (theirs_slope,) = torch.autograd.grad(got, ours), torch.autograd.grad(want, other)
    agree(f"{what}, gradient", theirs, slope, theirs_slope)


def table() -> list[str]:
    width = max((len(what) for what, _ in LARGEST), default=0)
    return [f"{what:<{width}}  {theirs:<60}  {most:.1e}" for (what, theirs), most in sorted(LARGEST.items())]
