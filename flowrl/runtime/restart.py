"""Where a run goes on from: a checkpoint → the StartPoint of its stage, and logs that end with it.

`resume` uses it in a new process, a roll-back within the run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.plan.plan import Plan
from flowrl.runtime.checkpoint import Checkpoint, weights_file
from flowrl.runtime.jsonl import cut_back
from flowrl.runtime.ledger import START, digest_of
from flowrl.runtime.logs import LEDGER, METRICS, SAMPLES
from flowrl.runtime.runfile import PLAN
from flowrl.runtime.state import StartPoint


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
    return StartPoint(state.step, state.cursors, waiting, frozenset(republish), folder, state.carried)


def cut_logs(run_folder: Path, plan: Plan, stage: str, checkpoint: Checkpoint | None) -> None:
    """Cut the logs back to a checkpoint of `stage`, or to before its first step, and see that they are the ones that
    the checkpoint belongs to. Raises FlowError FR0908 if they are not."""
    stages = [each.name for each in plan.stages]
    step = 0 if checkpoint is None else checkpoint.state.step
    if checkpoint is not None and checkpoint.state.plan != hashlib.sha256((run_folder / PLAN).read_bytes()).hexdigest():
        raise FlowError(diagnose("FR0908", path=run_folder / PLAN, reason="it has changed since the checkpoint"))
    for name in (METRICS, SAMPLES, LEDGER):
        cut_back(run_folder / name, stages, stage, step)
    if checkpoint is None and stage != stages[0]:
        return
    expected = START if checkpoint is None else checkpoint.state.ledger
    if digest_of(run_folder / LEDGER) != expected:
        reason = f"its lines up to step {step} of stage `{stage}` are not those of the checkpoint"
        raise FlowError(diagnose("FR0908", path=run_folder / LEDGER, reason=reason))


def _waiting(checkpoint: Checkpoint, edge: str) -> tuple[int, ...]:
    """The versions that waited on an edge, if the checkpoint has their weights; else its own weights in their place."""
    waiting, newest_version = checkpoint.state.waiting[edge], checkpoint.state.waiting[edge][-1]
    needed = set(waiting) - {0} - ({newest_version} if edge in checkpoint.state.fresh else set())
    if all(weights_file(checkpoint.folder, edge, version).exists() for version in needed):
        return waiting
    return (newest_version,) * len(waiting)
