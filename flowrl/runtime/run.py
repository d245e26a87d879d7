"""`run`: a plan → a run folder `runs/NAME-DATE-TIME/` with everything that comes of it.

    plan.json  flow.yaml  run.json  metrics.jsonl  samples.jsonl  ledger.jsonl  trace.json
    tensorboard/  checkpoints/  models/

The plan is the only thing that is read besides the data, functions and models that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.plan.io import dumps
from flowrl.plan.plan import Plan
from flowrl.runtime.faults import cannot_write
from flowrl.runtime.launchers.choose import AUTO, choose
from flowrl.runtime.result import RunResult, result_of
from flowrl.runtime.runfile import FLOW, PLAN, RunFile, RunStatus, make_run_folder, owned, write_run_file
from flowrl.runtime.session import Session, SessionOptions
from flowrl.runtime.state import StartPoint


@dataclass(frozen=True, slots=True)
class RunOptions:
    runs: Path = Path("runs")
    """Where run folders are made."""
    name: str | None = None
    """Of the run; None: the plan's."""
    launcher: str = AUTO
    """auto, inline or ray."""
    flow_text: str | None = None
    """The resolved flow as YAML, kept as flow.yaml."""
    folder: Path | None = None
    """Where the flow's relative paths start; None: the plan's folder, from here."""
    on_folder: Callable[[Path], None] | None = None
    """Told the run folder as soon as it is there."""
    session: SessionOptions = field(default_factory=SessionOptions)


def run(plan: Plan, options: RunOptions | None = None) -> RunResult:
    """Run every stage of the plan. Raises FlowError: FR0912 for a plan that does not fit, FR09nn, FR08nn or what a
    backend tells; InterruptError (FR0904, exit status 130 or 143) after a signal."""
    options = options or RunOptions()
    if plan.verdict != "fits":
        raise FlowError(diagnose("FR0912", name=plan.name, verdict=plan.verdict))
    name = options.name or plan.name
    folder = (options.folder or Path(plan.folder)).resolve()
    run_folder = make_run_folder(options.runs, name)
    launcher = choose(plan, options.launcher)
    file = RunFile(name=name, state=RunStatus.RUNNING, folder=str(folder), launcher=launcher)
    try:
        (run_folder / PLAN).write_bytes(dumps(plan))
        if options.flow_text is not None:
            (run_folder / FLOW).write_text(options.flow_text, encoding="utf-8")
        write_run_file(run_folder, owned(file))
    except OSError as error:
        raise cannot_write(run_folder, error.strerror or str(error)) from error
    if options.on_folder is not None:
        options.on_folder(run_folder)
    Session(structs.replace(plan, folder=str(folder)), run_folder, file, options.session).run(0, StartPoint())
    return result_of(run_folder, plan)
