"""A Trace as Chrome trace events: what Perfetto and chrome://tracing open.

One process per pool and one thread per role, in the order of their first spans; times in microseconds. The format is
"Trace Event Format", Google 2016: complete events (`ph: X`) and metadata events (`ph: M`).
"""

from __future__ import annotations

from typing import Any

from flowrl.execution.trace import Trace, TraceSpan

_MICROSECONDS = 1e6


def chrome(trace: Trace) -> dict[str, Any]:
    """The JSON object to write: `traceEvents`, and whether the trace is simulated."""
    pools = list(dict.fromkeys(span.pool for span in trace.spans))
    roles = list(dict.fromkeys((span.pool, span.role) for span in trace.spans))
    names = [_metadata("process_name", f"pool {pool}", place + 1) for place, pool in enumerate(pools)]
    threads = [
        _metadata("thread_name", role, pools.index(pool) + 1, roles.index((pool, role)) + 1) for pool, role in roles
    ]
    events = [_event(span, pools.index(span.pool) + 1, roles.index((span.pool, span.role)) + 1) for span in trace.spans]
    return {
        "traceEvents": [*names, *threads, *events],
        "displayTimeUnit": "ms",
        "otherData": {"simulated": trace.simulated},
    }


def _metadata(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _event(span: TraceSpan, pid: int, tid: int) -> dict[str, Any]:
    return {
        "name": span.instruction,
        "cat": span.instruction.split(" ", 1)[0],
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": span.start_seconds * _MICROSECONDS,
        "dur": span.seconds * _MICROSECONDS,
        "args": {"step": span.step, **span.facts},
    }
