"""Whole runs with fakes: what lies in the folder, and that placement and minibatches do what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Gate, StageRun
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.runfile import RunStatus
from tests.conftest import Told
from tests.runtime.plans import colocated, grpo_graph, make_plan, sft_graph, split, stage_plan
from tests.runtime.runs import lines_of, logs_of, run_fakes, with_fakes
from tests.runtime.written import TEXTS, written

RUN = StageRun(steps=6, checkpoint_every_steps=2, loggers=(), samples_logged=2)


def test_a_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    plan = make_plan(stage_plan(grpo_graph(), run=structs.replace(RUN, loggers=("tensorboard",))))
    result = run(plan, RunOptions(runs=tmp_path, flow_text="flowrl: 1\n", session=with_fakes()))
    names = {entry.name for entry in result.folder.iterdir()}
    assert names == {
        "plan.json", "flow.yaml", "run.json", "metrics.jsonl", "samples.jsonl", "ledger.jsonl", "trace.json",
        "tensorboard", "checkpoints",
    }  # fmt: skip
    assert (result.state, result.metric) == (RunStatus.FINISHED, "reward.rewards@val")
    assert result.checkpoint == result.folder / "checkpoints" / "grpo" / "step-000006"
    assert [p.name for p in sorted((result.folder / "checkpoints" / "grpo").iterdir())] == [
        "step-000002",
        "step-000004",
        "step-000006",
    ]
    assert list((result.folder / "tensorboard" / "grpo").iterdir())
    spans = [e for e in json.loads((result.folder / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {"run actor_infer.generate", "run actor_train.update", "save actor_train"} <= {e["name"] for e in spans}


def test_metrics_have_one_line_a_step_and_one_of_the_last_weights(tmp_path: Path) -> None:
    result = run_fakes(make_plan(stage_plan(grpo_graph(val_every=3), run=RUN)), tmp_path)
    lines = lines_of(result.folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["step"] for line in lines if "reward.rewards@val" in line] == [1, 4, 7]
    assert [line.get("epilogue", False) for line in lines] == [False] * 6 + [True]
    assert result.first_reward == lines[0]["reward.rewards@val"]
    assert result.last_reward == lines[6]["reward.rewards@val"]
    assert all(line["lag"] == 0 for line in lines[:6])


def test_prompts_are_taken_in_order_and_each_once(tmp_path: Path) -> None:
    result = run_fakes(make_plan(stage_plan(grpo_graph(updates=2, epochs=2), run=RUN)), tmp_path)
    ledger = lines_of(result.folder / "ledger.jsonl")
    assert [entry["prompts"] for entry in ledger] == [[[4 * s, 4 * s + 4]] for s in range(6)]
    assert [(entry["made_with"], entry["version"], entry["samples"]) for entry in ledger] == [
        (s, s, 12) for s in range(6)
    ]


def test_samples_have_prompt_response_reward_and_version(tmp_path: Path) -> None:
    result = run_fakes(make_plan(stage_plan(grpo_graph(val_every=3), run=RUN)), tmp_path)
    samples = lines_of(result.folder / "samples.jsonl")
    assert [s["prompt_id"] for s in samples if s["step"] == 2] == [4, 5]
    assert [s.get("label") for s in samples if s["step"] == 4] == [None, None, "val", "val"]
    assert all(s["prompt"] == f"prompt {s['prompt_id'] % 20}" and s["response"] for s in samples)
    assert all(isinstance(s["reward"], float) and s["version"] == s["step"] - 1 for s in samples)


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_lag_is_that_of_the_schedule_once_it_is_reached(tmp_path: Path, max_lag: int) -> None:
    result = run_fakes(make_plan(stage_plan(grpo_graph(max_lag=max_lag, val_every=None), run=RUN)), tmp_path)
    lags = [line["lag"] for line in lines_of(result.folder / "metrics.jsonl")]
    assert lags == [min(step, max_lag) for step in range(6)]


def test_colocated_and_split_give_the_same_numbers(tmp_path: Path) -> None:
    """Placement never changes the maths (DESIGN, promise 2)."""
    graph = grpo_graph(updates=2)
    logs = [
        logs_of(run_fakes(make_plan(stage_plan(graph, pools, run=RUN)), tmp_path).folder)
        for pools in (colocated(graph), split(graph))
    ]
    assert logs[0] == logs[1]


def test_keep_leaves_the_newest_checkpoints(tmp_path: Path) -> None:
    run_ = structs.replace(RUN, checkpoint_every_steps=1, keep=2)
    result = run_fakes(make_plan(stage_plan(grpo_graph(), run=run_)), tmp_path)
    kept = sorted(p.name for p in (result.folder / "checkpoints" / "grpo").iterdir())
    assert kept == ["step-000005", "step-000006"]


def test_stages_follow_each_other(tmp_path: Path) -> None:
    plan = make_plan(stage_plan(sft_graph(), run=RUN), stage_plan(grpo_graph(), run=RUN))
    result = run_fakes(plan, tmp_path)
    lines = lines_of(result.folder / "metrics.jsonl")
    assert [line["stage"] for line in lines] == ["sft"] * 6 + ["grpo"] * 7
    assert [(stage.name, stage.steps) for stage in result.stages] == [("sft", 6), ("grpo", 6)]
    trace = json.loads((result.folder / "trace.json").read_text())["traceEvents"]
    pools = {e["args"]["name"] for e in trace if e["name"] == "process_name"}
    assert pools == {"pool sft/host", "pool sft/all", "pool grpo/host", "pool grpo/all"}


def test_a_gate_with_first_leaves_the_stage_as_soon_as_it_holds(tmp_path: Path) -> None:
    gate = Gate(metric="reward.rewards@val", at_least=0.0, when="first")
    result = run_fakes(make_plan(stage_plan(grpo_graph(val_every=3), run=RUN, gate=gate)), tmp_path)
    assert [line["step"] for line in lines_of(result.folder / "metrics.jsonl")] == [1]
    assert result.checkpoint is not None
    assert result.checkpoint.name == "step-000001"


def test_a_gate_that_is_not_passed_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    gate = Gate(metric="reward.rewards@val", at_least=2.0)
    plan = make_plan(stage_plan(sft_graph(), run=RUN), stage_plan(grpo_graph(), run=RUN, gate=gate))
    with pytest.raises(FlowError) as raised:
        run_fakes(plan, tmp_path)
    assert [d.code for d in raised.value.diagnostics] == ["FR0909"]
    folder = next(tmp_path.iterdir())
    assert json.loads((folder / "run.json").read_text())["state"] == "failed"
    assert (folder / "checkpoints" / "grpo" / "step-000006" / "state.json").exists()


def test_a_gate_may_let_the_run_go_on(tmp_path: Path) -> None:
    gate = Gate(metric="actor_train.loss", at_most=-1.0, otherwise="continue")
    plan = make_plan(stage_plan(sft_graph(), run=RUN, gate=gate), stage_plan(grpo_graph(), run=RUN))
    assert run_fakes(plan, tmp_path).state is RunStatus.FINISHED


def test_a_plan_that_does_not_fit_is_not_run(tmp_path: Path, told: Told) -> None:
    plan = structs.replace(make_plan(stage_plan(grpo_graph(), run=RUN)), verdict="infeasible")
    with pytest.raises(FlowError) as raised:
        run_fakes(plan, tmp_path)
    told(raised.value, "FR0912")
    assert not list(tmp_path.iterdir())


def test_a_role_of_two_ranks_is_refused_inline(tmp_path: Path, told: Told) -> None:
    graph = written(grpo_graph())
    with pytest.raises(FlowError) as raised:
        run_fakes(make_plan(stage_plan(graph, split(graph, train_dp=2), run=RUN)), tmp_path)
    told(raised.value, "FR0901", texts=TEXTS)


def test_an_unknown_logger_is_refused(tmp_path: Path) -> None:
    plan = make_plan(stage_plan(grpo_graph(), run=structs.replace(RUN, loggers=("wandb",))))
    with pytest.raises(FlowError, match="FR0801"):
        run_fakes(plan, tmp_path)
