"""Where a run goes on from: a checkpoint → the StartPoint of its stage, and logs that end with it.

`resume` uses it in a new process, a roll-back within the run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.text import graph_digest
from flowrl.plan.io import dumps
from flowrl.plan.plan import Plan
from flowrl.runtime.checkpoint import Checkpoint, weights_file
from flowrl.runtime.jsonl import cut_back
from flowrl.runtime.ledger import START, digest_of
from flowrl.runtime.logs import LEDGER, METRICS, SAMPLES
from flowrl.runtime.runfile import PLAN
from flowrl.runtime.state import StartPoint

FORMER = "plan-*.json"
"""Plans that the run had before its plan.json."""


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
    if checkpoint is not None and checkpoint.state.plan not in _plans(run_folder):
        raise FlowError(diagnose("FR0908", path=run_folder / PLAN, reason="it has changed since the checkpoint"))
    for name in (METRICS, SAMPLES, LEDGER):
        cut_back(run_folder / name, stages, stage, step)
    if checkpoint is None and stage != stages[0]:
        return
    expected = START if checkpoint is None else checkpoint.state.ledger
    if digest_of(run_folder / LEDGER) != expected:
        reason = f"its lines up to step {step} of stage `{stage}` are not those of the checkpoint"
        raise FlowError(diagnose("FR0908", path=run_folder / LEDGER, reason=reason))


def change_plan(run_folder: Path, former: Plan, plan: Plan) -> None:
    """Let the run go on with another plan of the same flow: on other devices, in other layouts. The former one stays
    beside it as plan-1.json, plan-2.json, …: checkpoints name the plan that they were written under.

    Raises FlowError FR0921 if it is of another flow or another run, FR0912 if it does not fit.
    """
    if plan.verdict != "fits":
        raise FlowError(diagnose("FR0912", name=plan.name, verdict=plan.verdict))
    if differs := _what_differs(former, plan):
        raise FlowError(diagnose("FR0921", plan=plan.name, differs=differs, folder=run_folder))
    number = 1 + len(list(run_folder.glob(FORMER)))
    path, part = run_folder / PLAN, run_folder / (PLAN + ".part")
    part.write_bytes(dumps(plan))
    (run_folder / FORMER.replace("*", str(number))).write_bytes(path.read_bytes())
    part.replace(path)


def _what_differs(former: Plan, plan: Plan) -> str | None:
    """The first thing that no placement may change."""
    names = [stage.name for stage in plan.stages]
    if names != [stage.name for stage in former.stages]:
        return f"its stages are {', '.join(f'`{name}`' for name in names)}"
    for mine, theirs in zip(former.stages, plan.stages, strict=True):
        if graph_digest(mine.graph) != graph_digest(theirs.graph):
            return f"stage `{mine.name}` computes something else"
        if (mine.run.steps, mine.run.seed) != (theirs.run.steps, theirs.run.seed):
            return f"stage `{mine.name}` has {theirs.run.steps} steps and seed {theirs.run.seed}"
    return None


def _plans(run_folder: Path) -> set[str]:
    """Digests of all plans that the run has had."""
    files = [run_folder / PLAN, *run_folder.glob(FORMER)]
    return {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _waiting(checkpoint: Checkpoint, edge: str) -> tuple[int, ...]:
    """The versions that waited on an edge, if the checkpoint has their weights; else its own weights in their place."""
    waiting, newest_version = checkpoint.state.waiting[edge], checkpoint.state.waiting[edge][-1]
    needed = set(waiting) - {0} - ({newest_version} if edge in checkpoint.state.fresh else set())
    if all(weights_file(checkpoint.folder, edge, version).exists() for version in needed):
        return waiting
    return (newest_version,) * len(waiting)
