"""Reward functions that ship with FlowRL: `flowrl:NAME`. Written as a user would write them: lists in, a list out.

graph/signatures.py names them and the fields they read.
"""

from __future__ import annotations

from collections.abc import Sequence


def overlong(
    loss_mask: Sequence[Sequence[bool]], max_tokens: int, buffer_tokens: int, penalty: float = 1.0
) -> list[float]:
    """Soft punishment of long responses: 0 up to `max_tokens` - `buffer_tokens`, then falling to -`penalty` at
    `max_tokens`, and -`penalty` beyond (DAPO, Yu et al. 2025, equation 13)."""
    free = max_tokens - buffer_tokens
    excess = (min(max(sum(map(bool, mask)) - free, 0) / buffer_tokens, 1.0) for mask in loss_mask)
    return [-penalty * share for share in excess]
