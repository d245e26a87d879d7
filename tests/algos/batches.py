"""Random padded batches for tests of algos."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Padded:
    """Groups of samples with gaps in their masks, as turns leave them. Every row has a token of its own."""

    mask: Tensor
    prompts: Tensor
    rewards: Tensor
    generator: torch.Generator

    def normal(self, scale: float = 1.0) -> Tensor:
        return torch.randn(self.mask.shape, generator=self.generator) * scale

    def log_probs(self) -> Tensor:
        return -self.normal().abs() - 0.1


@st.composite
def padded(draw: st.DrawFn, groups: int = 3, samples: int = 4, tokens: int = 7) -> Padded:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    prompts = torch.arange(groups).repeat_interleave(samples) * 5 + 2
    rows = groups * samples
    mask = torch.rand((rows, tokens), generator=generator) < 0.7
    mask[torch.arange(rows), torch.randint(tokens, (rows,), generator=generator)] = True
    lengths = torch.randint(1, tokens + 1, (rows,), generator=generator)
    own = mask & (torch.arange(tokens)[None] < lengths[:, None])
    own[~own.any(-1), 0] = True
    return Padded(own, prompts, torch.randn(rows, generator=generator).round(decimals=1), generator)
