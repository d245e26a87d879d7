"""The trace: timed spans, simulated or real, joined by instruction id. Written as Chrome/Perfetto JSON."""

from __future__ import annotations

import msgspec


class TraceSpan(msgspec.Struct, frozen=True, kw_only=True):
    instruction: str
    pool: str
    role: str
    step: int
    start_seconds: float
    """Since the start of the run."""
    seconds: float
    facts: dict[str, float] = {}
    """Counts with units in their names: rows, tokens, bytes."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    spans: tuple[TraceSpan, ...]
    simulated: bool
