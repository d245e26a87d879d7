"""`resume`: a run folder → the run goes on from its newest whole checkpoint, as if it had not stopped.

Logs are cut back to the checkpoint's step first, so that nothing stands in them twice.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import structs

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.plan.plan import Plan
from flowrl.runtime.checkpoint import Checkpoint, newest, weights_file
from flowrl.runtime.jsonl import cut_back
from flowrl.runtime.launchers.choose import AUTO, choose
from flowrl.runtime.ledger import START, digest_of
from flowrl.runtime.logs import LEDGER, METRICS, SAMPLES
from flowrl.runtime.result import RunResult, result_of
from flowrl.runtime.runfile import PLAN, RunStatus, load_run, require_left
from flowrl.runtime.session import Session, SessionOptions
from flowrl.runtime.state import StartPoint


def resume(run_folder: Path, launcher: str | None = None, session: SessionOptions | None = None) -> RunResult:
    """Go on with a run. `launcher` None: the one that it had. A finished run is left as it is.

    Raises FlowError FR0907 (no run), FR0908 (its files do not fit its checkpoint), FR0911 (still going), and what `run`
    raises. Without a checkpoint it starts from the beginning.
    """
    run_folder = run_folder.resolve()
    plan, file = load_run(run_folder)
    require_left(run_folder, file)
    if file.state is RunStatus.FINISHED:
        return result_of(run_folder, plan)
    stages = [stage.name for stage in plan.stages]
    checkpoint = newest(run_folder, stages)
    _cut_back(run_folder, plan, checkpoint)
    chosen = file.launcher if launcher in (None, AUTO) else choose(plan, launcher)
    file = structs.replace(file, launcher=chosen, resumed=file.resumed + 1)
    first = 0 if checkpoint is None else stages.index(checkpoint.state.stage)
    Session(plan, run_folder, file, session or SessionOptions()).run(first, start_of(checkpoint))
    return result_of(run_folder, plan)


def start_of(checkpoint: Checkpoint | None) -> StartPoint:
    if checkpoint is None:
        return StartPoint()
    state, folder = checkpoint.state, checkpoint.folder
    waiting = {edge: _waiting(checkpoint, edge) for edge in state.waiting}
    republish = {
        edge
        for edge, versions in waiting.items()
        if versions[-1] and (edge in state.fresh or versions != state.waiting[edge])
    }
    return StartPoint(state.step, state.cursors, waiting, frozenset(republish), folder)


def _waiting(checkpoint: Checkpoint, edge: str) -> tuple[int, ...]:
    """The versions that waited on an edge, if the checkpoint has their weights; else its own weights in their place."""
    waiting, newest_version = checkpoint.state.waiting[edge], checkpoint.state.waiting[edge][-1]
    needed = set(waiting) - {0} - ({newest_version} if edge in checkpoint.state.fresh else set())
    if all(weights_file(checkpoint.folder, edge, version).exists() for version in needed):
        return waiting
    return (newest_version,) * len(waiting)


def _cut_back(run_folder: Path, plan: Plan, checkpoint: Checkpoint | None) -> None:
    """Cut the logs back to the checkpoint, and see that they are the ones it belongs to."""
    stages = [stage.name for stage in plan.stages]
    stage, step = (stages[0], 0) if checkpoint is None else (checkpoint.state.stage, checkpoint.state.step)
    if checkpoint is not None and checkpoint.state.plan != hashlib.sha256((run_folder / PLAN).read_bytes()).hexdigest():
        raise FlowError(diagnose("FR0908", path=run_folder / PLAN, reason="it has changed since the checkpoint"))
    for name in (METRICS, SAMPLES, LEDGER):
        cut_back(run_folder / name, stages, stage, step)
    expected = START if checkpoint is None else checkpoint.state.ledger
    if digest_of(run_folder / LEDGER) != expected:
        reason = f"its lines up to step {step} of stage `{stage}` are not those of the checkpoint"
        raise FlowError(diagnose("FR0908", path=run_folder / LEDGER, reason=reason))
