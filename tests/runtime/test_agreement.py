"""Engine and trainer must agree on-policy: the rule on numbers, and a run whose engine misses its weight updates."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl.backends.generators.hf import HfGenerator
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.params import CorrectionParams, UpdateParams
from flowrl.plan.plan import StagePlan
from flowrl.runtime.agreement import require_agreement
from flowrl.runtime.result import result_of
from flowrl.runtime.run import RunOptions, run
from tests.conftest import Told
from tests.runtime.plans import grpo_graph, stage_plan
from tests.runtime.runs import lines_of
from tests.runtime.tiny_flow import QUIET, tiny_quickstart
from tests.runtime.written import TEXTS, written

MAX, MEAN = "actor_train.rollout_log_prob_diff_max", "actor_train.rollout_log_prob_diff_mean"


def _stage(
    dtype: str = "float32", lag: int = 0, update: dict[str, object] | None = None, firings: int = 1
) -> StagePlan:
    stage = tiny_quickstart().stages[1]
    graph = stage.graph
    models = tuple(replace(model, dtype=dtype) for model in graph.models)
    ops = tuple(
        replace(op, params=replace(op.params, **(update or {})), firings=firings)
        if isinstance(op.params, UpdateParams)
        else op
        for op in graph.ops
    )
    schedule = replace(graph.schedule, max_lag=lag)
    return replace(stage, graph=replace(graph, models=models, ops=ops, schedule=schedule))


@pytest.mark.parametrize(
    ("dtype", "metrics"),
    [
        ("float32", {MAX: 4e-5, MEAN: 8e-6}),  # measured: vLLM against transformers, SmolLM2-135M
        ("bfloat16", {MAX: 0.28, MEAN: 0.06}),  # the same in bfloat16
        ("float32", {}),
    ],
)
def test_what_rounding_does_is_allowed(dtype: str, metrics: dict[str, float]) -> None:
    require_agreement(_stage(dtype), metrics, 1)


@pytest.mark.parametrize(
    ("dtype", "metrics"),
    [("float32", {MAX: 0.77, MEAN: 1e-6}), ("bfloat16", {MAX: 1.31, MEAN: 0.4})],  # stale cache; stale tied head
)
def test_what_only_other_weights_do_is_refused(dtype: str, metrics: dict[str, float]) -> None:
    with pytest.raises(FlowError, match="FR0915"):
        require_agreement(_stage(dtype), metrics, 1)


def test_a_difference_is_told_where_the_trainer_stands(told: Told) -> None:
    stage = stage_plan(written(grpo_graph()))
    with pytest.raises(FlowError) as raised:
        require_agreement(stage, {MAX: 1.31, MEAN: 0.4}, 3)
    told(raised.value, "FR0915", texts=TEXTS)


@pytest.mark.parametrize(
    "stage",
    [
        _stage(lag=1),
        _stage(update={"corrections": (CorrectionParams(name="tis", cap=2.0),)}),
        _stage(update={"old_log_probs": "rollout"}, firings=2),
    ],
)
def test_a_difference_that_is_meant_is_not_asked_about(stage: StagePlan) -> None:
    require_agreement(stage, {MAX: 1.0, MEAN: 1.0}, 1)


def test_an_engine_that_misses_its_updates_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HfGenerator, "read_weights", lambda *_: None)
    plan = tiny_quickstart(
        "stages.1.roles.reward.function=arithmetic.py:partial_credit",  # varies from the first step, so weights move
        "stages.1.roles.actor_train.optimizer.lr=0.1",
        "stages.1.roles.actor_train.optimizer.warmup_steps=0",
    )
    folders: list[Path] = []
    with pytest.raises(FlowError, match="FR0915") as raised:
        run(plan, RunOptions(runs=tmp_path, session=QUIET, on_folder=folders.append))
    assert raised.value.diagnostics[0].exit_code == 5
    assert lines_of(folders[0] / "metrics.jsonl")[-1][MAX] > 1e-3  # the step is in the log
    assert result_of(folders[0], plan).checkpoint is not None
