"""What a run made of its plan: its report, its page with both times, and its trace for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flowrl.api.calibrate import read_trace
from flowrl.execution.chrome import chrome
from flowrl.execution.trace import Trace, TraceSpan
from flowrl.explain.pairs import events_of
from flowrl.explain.ran import Ran, ran
from flowrl.plan.plan import Plan
from flowrl.report.html.page import render_page
from flowrl.report.text import render_plan
from flowrl.report.view import SourceText, plan_view


def report_run(run_folder: str | Path) -> Ran:
    """Estimated and measured times of a run, and its metrics. Raises FlowError: FR0907 for a folder that is not a
    run's, FR0723 for one without a trace that can be read."""
    return _report(Path(run_folder))[1]


def run_page(run_folder: str | Path) -> str:
    """The page of the run's plan, with measured times to switch to and the curves of its metrics."""
    folder = Path(run_folder)
    plan, report = _report(folder)
    flow = folder / "flow.yaml"
    sources = [SourceText("flow.yaml", flow.read_text(encoding="utf-8"))] if flow.exists() else []
    view = plan_view(plan, sources=sources, measured=report)
    return render_page(view, render_plan(plan))


def perfetto(run_folder: str | Path) -> bytes:
    """The run's trace with the planned step beside it: what ui.perfetto.dev opens. Processes of the plan are named
    `planned POOL`."""
    from flowrl.runtime.runfile import TRACE, load_run

    folder = Path(run_folder)
    plan, _ = load_run(folder)
    read_trace(folder / TRACE)  # so that one that cannot be read is told
    measured: dict[str, Any] = msgspec.json.decode((folder / TRACE).read_bytes())
    events: list[dict[str, Any]] = measured.get("traceEvents", [])
    first = max((int(event.get("pid", 0)) for event in events), default=0)
    planned = [_moved(event, first) for event in chrome(_planned(plan))["traceEvents"]]
    return msgspec.json.encode({**measured, "traceEvents": [*events, *planned]})


def _report(folder: Path) -> tuple[Plan, Ran]:
    from flowrl.runtime.jsonl import read_lines
    from flowrl.runtime.logs import METRICS
    from flowrl.runtime.runfile import TRACE, load_run

    plan, file = load_run(folder)
    events = events_of(plan, read_trace(folder / TRACE))
    return plan, ran(plan, events, list(read_lines(folder / METRICS)), str(folder), str(file.state))


def _planned(plan: Plan) -> Trace:
    """The steady state of each stage, as one step 0."""
    several = len(plan.stages) > 1
    spans: list[TraceSpan] = []
    for stage in plan.stages:
        roles = {each.id: each.role for each in stage.programs.instructions}
        spans += [
            TraceSpan(
                instruction=span.instruction,
                pool=f"{stage.name}/{span.pool}" if several else span.pool,
                role=roles[span.instruction],
                step=0,
                start_seconds=span.start_seconds,
                seconds=span.seconds,
            )
            for span in stage.estimate.timeline
        ]
    return Trace(spans=tuple(spans), simulated=True)


def _moved(event: dict[str, Any], by: int) -> dict[str, Any]:
    """Into a process of its own: numbers of processes are not shared with the run's."""
    moved = {**event, "pid": int(event["pid"]) + by}
    if event["name"] == "process_name":
        moved["args"] = {"name": f"planned {str(event['args']['name']).removeprefix('pool ')}"}
    return moved
