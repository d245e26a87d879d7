"""`resume`: a run folder → the run goes on from its newest whole checkpoint, as if it had not stopped.

Logs are cut back to the checkpoint's step first, so that nothing stands in them twice.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from flowrl.plan.plan import Plan
from flowrl.runtime.checkpoint import newest
from flowrl.runtime.launchers.choose import AUTO, choose
from flowrl.runtime.restart import change_plan, cut_logs, start_of
from flowrl.runtime.result import RunResult, result_of
from flowrl.runtime.runfile import RunStatus, load_run, require_left
from flowrl.runtime.session import Session, SessionOptions


def resume(
    run_folder: Path,
    launcher: str | None = None,
    session: SessionOptions | None = None,
    plan: Plan | None = None,
) -> RunResult:
    """Go on with a run. `launcher` None: the one that it had. `plan`: another one of the same flow, for other devices.
    A finished run is left as it is.

    Raises FlowError FR0907 (no run), FR0908 (its files do not fit its checkpoint), FR0911 (still going), FR0921 (the
    plan is of another flow), and what `run` raises. Without a checkpoint it starts from the beginning.
    """
    run_folder = run_folder.resolve()
    former, file = load_run(run_folder)
    require_left(run_folder, file)
    if file.state is RunStatus.FINISHED:
        return result_of(run_folder, former)
    if plan is not None:
        change_plan(run_folder, former, plan)
    plan = former if plan is None else structs.replace(plan, folder=former.folder)
    stages = [stage.name for stage in plan.stages]
    checkpoint = newest(run_folder, stages)
    stage = stages[0] if checkpoint is None else checkpoint.state.stage
    cut_logs(run_folder, plan, stage, checkpoint)
    kept = launcher in (None, AUTO) and plan is former
    chosen = file.launcher if kept else choose(plan, launcher or AUTO)
    file = structs.replace(file, launcher=chosen, resumed=file.resumed + 1)
    Session(plan, run_folder, file, session or SessionOptions()).run(stages.index(stage), start_of(checkpoint))
    return result_of(run_folder, plan)
