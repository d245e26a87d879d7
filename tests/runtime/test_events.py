"""TensorBoard reads what a run has written, also of one that was killed and taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flowrl.plan.plan import StageRun
from tests.runtime.plans import grpo_graph, make_plan, stage_plan
from tests.runtime.runs import at, lines_of, resume_fakes, run_killed

RUN = StageRun(steps=6, checkpoint_every_steps=2, loggers=("tensorboard",))


def test_each_step_is_there_once_with_the_numbers_of_metrics_jsonl(tmp_path: Path) -> None:
    plan = make_plan(stage_plan(grpo_graph(), run=RUN))
    folder = run_killed(plan, tmp_path, at("run actor_train.update", 4))
    assert folder is not None
    resume_fakes(folder)
    events = EventAccumulator(str(folder / "tensorboard" / "grpo"))
    events.Reload()
    lines = lines_of(folder / "metrics.jsonl")
    losses = [(line["step"], line["actor_train.loss"]) for line in lines if "actor_train.loss" in line]
    assert [(e.step, e.value) for e in events.Scalars("actor_train/loss")] == [
        (step, pytest.approx(loss, rel=1e-6)) for step, loss in losses
    ]
    assert [e.step for e in events.Scalars("reward/rewards@val")] == [1, 4, 7]
