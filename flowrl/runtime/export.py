"""Export: a trainer's checkpoint → a Hugging Face folder (weights, tokenizer, template) with equal logits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Kind
from flowrl.plan.plan import Plan, StagePlan
from flowrl.runtime.checkpoint import Checkpoint, at_step, newest, steps_of
from flowrl.runtime.faults import cannot_write
from flowrl.runtime.runfile import load_run
from flowrl.runtime.setups import model_folders

DEFAULT_ROLE = "actor_train"
_AS_IT_WAS = "the run and its checkpoints are as they were"


def export(run_folder: Path, step: int | None, out: Path, role: str | None = None) -> Path:
    """Write role `role` of a run's checkpoint to `out`, which must not exist or be empty; gives `out`.

    `step` None: the newest checkpoint; else that of the last stage which has one of this step. `role` None: the only
    trainer, or actor_train. Raises FlowError FR0906 without such a checkpoint, FR0914 without such a role, FR0905 if
    `out` cannot be written.
    """
    plan, _ = load_run(run_folder)
    run_folder = run_folder.resolve()
    checkpoint = _checkpoint(run_folder, plan, step)
    stage = next(stage for stage in plan.stages if stage.name == checkpoint.state.stage)
    chosen = _role(stage, checkpoint, role)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise cannot_write(out, "exists and is not an empty folder", _AS_IT_WAS, "name a folder that is not there yet")
    try:
        export_role(plan, stage, run_folder, checkpoint.folder, chosen, out)
    except OSError as error:
        reason, help_ = error.strerror or str(error), "make room, or name a folder elsewhere"
        raise cannot_write(out, reason, _AS_IT_WAS, help_) from error
    return out


def export_role(plan: Plan, stage: StagePlan, run_folder: Path, checkpoint: Path, role: str, out: Path) -> None:
    """Write a role's weights in the checkpoint folder `checkpoint` to `out`, in one go: it is there whole or not."""
    from flowrl.backends.trainers.fsdp.export import export_checkpoint

    model = stage.graph.role(role).model
    if model is None:
        raise InternalError(f"trainer `{role}` has no model")
    base = model_folders(plan, stage, run_folder)[model]
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    export_checkpoint(checkpoint / role, base, part)
    if out.exists():
        shutil.rmtree(out)
    part.rename(out)


def trainers(stage: StagePlan) -> list[str]:
    """Roles of the stage that a checkpoint holds, in the graph's order."""
    return [role.name for role in stage.graph.roles if role.kind is Kind.TRAINER]


def _checkpoint(run_folder: Path, plan: Plan, step: int | None) -> Checkpoint:
    stages = [stage.name for stage in plan.stages]
    found = newest(run_folder, stages) if step is None else at_step(run_folder, stages, step)
    if found is not None:
        return found
    have = {name: steps_of(run_folder, name) for name in stages}
    told = "; ".join(f"{_listed(steps)} of stage `{name}`" for name, steps in have.items() if steps)
    particular = "" if step is None else f" of step {step}"
    has = (
        f"it has those of {told}"
        if told
        else "a checkpoint is written every `run.checkpoint_every_steps` and at a stage's end"
    )
    last = max((max(steps) for steps in have.values() if steps), default=0)
    advice = (
        f"give one of these steps: {run_folder}@{last}" if told else f"go on with the run: flowrl resume {run_folder}"
    )
    raise FlowError(diagnose("FR0906", None, folder=run_folder, particular=particular, has=has, advice=advice))


def _role(stage: StagePlan, checkpoint: Checkpoint, role: str | None) -> str:
    known = [name for name in trainers(stage) if (checkpoint.folder / name).is_dir()]
    chosen = role or (known[0] if len(known) == 1 else DEFAULT_ROLE)
    if chosen in known:
        return chosen
    listed = ", ".join(f"`{name}`" for name in known) or "none"
    first = known[0] if known else "NAME"
    raise FlowError(diagnose("FR0914", role=chosen, stage=stage.name, known=listed, first=first))


def _listed(steps: Sequence[int]) -> str:
    return ("steps " if len(steps) > 1 else "step ") + ", ".join(str(step) for step in steps)
