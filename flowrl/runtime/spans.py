"""Spans of a run's trace: a completion → what it took, by the launcher's clock."""

from __future__ import annotations

from flowrl.execution.trace import TraceSpan
from flowrl.runtime.launchers.contract import Completion


def span_of(completion: Completion, began_seconds: float) -> TraceSpan:
    """The span of a completed firing; `began_seconds`: the start of the run."""
    instruction = completion.work.firing.instruction
    tokens = [p.token_lengths.sum() for p in completion.parts if p.token_lengths is not None]
    facts = {
        "rows": float(sum(len(p.ids) for p in completion.parts)),
        "tokens": float(sum(tokens)),
        "bytes": float(sum(p.nbytes for p in completion.parts)),
    }
    return TraceSpan(
        instruction=instruction.id,
        pool=instruction.pool,
        role=instruction.role,
        step=completion.work.firing.step,
        start_seconds=completion.start_seconds - began_seconds,
        seconds=completion.seconds,
        facts={name: value for name, value in facts.items() if value},
    )
