"""What a run has come to, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.plan.plan import Plan
from flowrl.runtime.checkpoint import steps_of
from flowrl.runtime.jsonl import read_lines
from flowrl.runtime.logs import METRICS
from flowrl.runtime.rewards import reward_metric, reward_roles
from flowrl.runtime.runfile import PLAN, TRACE, RunStatus, read_run_file


@dataclass(frozen=True, slots=True)
class StageResult:
    name: str
    steps: int
    """Whole steps that it has made."""
    checkpoint: Path | None
    """Its newest."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The reward is that of validation where there is one, else of training; of the last stage that has any."""

    folder: Path
    state: RunStatus
    metric: str | None
    """Name of the reward's metric."""
    first_reward: float | None
    last_reward: float | None
    stages: tuple[StageResult, ...]

    @property
    def checkpoint(self) -> Path | None:
        return next((stage.checkpoint for stage in reversed(self.stages) if stage.checkpoint is not None), None)

    @property
    def plan(self) -> Path:
        return self.folder / PLAN

    @property
    def trace(self) -> Path:
        return self.folder / TRACE


def result_of(run_folder: Path, plan: Plan) -> RunResult:
    lines = list(read_lines(run_folder / METRICS))
    metric, rewards = _rewards(plan, lines)
    return RunResult(
        folder=run_folder,
        state=read_run_file(run_folder).state,
        metric=metric,
        first_reward=rewards[0] if rewards else None,
        last_reward=rewards[-1] if rewards else None,
        stages=tuple(_stage(run_folder, stage.name, lines) for stage in plan.stages),
    )


def _stage(run_folder: Path, name: str, lines: list[dict[str, Any]]) -> StageResult:
    steps = [line["step"] for line in lines if line["stage"] == name and not line.get("epilogue")]
    saved = steps_of(run_folder, name)
    checkpoint = run_folder / "checkpoints" / name / f"step-{saved[-1]:06d}" if saved else None
    return StageResult(name=name, steps=max(steps, default=0), checkpoint=checkpoint)


def _rewards(plan: Plan, lines: list[dict[str, Any]]) -> tuple[str | None, list[float]]:
    for stage in reversed(plan.stages):
        own = [line for line in lines if line["stage"] == stage.name]
        metric = reward_metric({name for line in own for name in line}, reward_roles(stage.graph))
        if metric is not None:
            return metric, [line[metric] for line in own if isinstance(line.get(metric), int | float)]
    return None, []
