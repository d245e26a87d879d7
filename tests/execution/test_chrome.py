"""The Perfetto file: what the Trace Event Format asks for."""

from __future__ import annotations

import json

from flowrl.execution.chrome import chrome
from flowrl.execution.trace import Trace, TraceSpan


def test_pools_are_processes_and_roles_threads() -> None:
    spans = (
        TraceSpan(
            instruction="run actor_infer.generate",
            pool="infer",
            role="actor_infer",
            step=1,
            start_seconds=0.5,
            seconds=2.0,
            facts={"response_tokens": 640.0},
        ),
        TraceSpan(
            instruction="run critic.update", pool="train", role="critic", step=1, start_seconds=2.5, seconds=0.25
        ),
        TraceSpan(instruction="save actor_train", pool="train", role="actor_train", step=1, start_seconds=3, seconds=1),
    )
    found = json.loads(json.dumps(chrome(Trace(spans=spans, simulated=True))))
    events = found["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {
        (1, 0): "pool infer",
        (2, 0): "pool train",
        (1, 1): "actor_infer",
        (2, 2): "critic",
        (2, 3): "actor_train",
    }
    first = next(e for e in events if e["ph"] == "X")
    assert first == {
        "name": "run actor_infer.generate",
        "cat": "run",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 500_000.0,
        "dur": 2_000_000.0,
        "args": {"step": 1, "response_tokens": 640.0},
    }
    assert found["otherData"] == {"simulated": True}
