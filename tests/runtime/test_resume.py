"""A run that is killed anywhere and taken up again is bit-equal to one that was not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Gate, Plan, StageRun
from flowrl.runtime.runfile import RunStatus
from tests.conftest import Told
from tests.runtime.plans import grpo_graph, make_plan, sft_graph, split, stage_plan
from tests.runtime.runs import at, lines_of, logs_of, nth, resume_fakes, run_fakes, run_killed, trained_state

RUN = StageRun(steps=5, checkpoint_every_steps=2, loggers=(), samples_logged=2)


def _two_stages() -> Plan:
    graph = grpo_graph(updates=2, val_every=2)
    return make_plan(
        stage_plan(sft_graph(), run=structs.replace(RUN, steps=2)),
        stage_plan(graph, split(graph), run=structs.replace(RUN, steps=3)),
    )


def test_killed_before_any_piece_of_work_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Every place where the process can die between two pieces of work, in both stages and at their border."""
    plan = _two_stages()
    whole = run_fakes(plan, tmp_path / "whole")
    works = 0
    while (folder := run_killed(plan, tmp_path / f"killed-{works}", nth(works))) is not None:
        result = resume_fakes(folder)
        assert result.state is RunStatus.FINISHED
        assert logs_of(folder) == logs_of(whole.folder), f"killed before work {works}"
        assert trained_state(folder, "grpo", 3) == trained_state(whole.folder, "grpo", 3)
        works += 1
    assert works > 30


def test_a_resumed_run_may_be_killed_again(tmp_path: Path) -> None:
    plan = make_plan(stage_plan(grpo_graph(), run=structs.replace(RUN, steps=9)))
    whole = run_fakes(plan, tmp_path / "whole")
    folder = run_killed(plan, tmp_path, at("run actor_train.update", 5))
    assert folder is not None
    (folder / "checkpoints" / "grpo" / ".step-000009.part").mkdir()
    resume_fakes(folder)
    assert logs_of(folder) == logs_of(whole.folder)
    assert json.loads((folder / "run.json").read_text())["resumed"] == 1


def test_lines_written_after_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    plan = make_plan(stage_plan(grpo_graph(), run=RUN))
    whole = run_fakes(plan, tmp_path / "whole")
    folder = run_killed(plan, tmp_path / "killed", at("run reward.score", 4))
    assert folder is not None
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1, 2, 3]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage":"grpo","step":4,"cut sho')
    resume_fakes(folder)
    assert logs_of(folder) == logs_of(whole.folder)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    result = run_fakes(make_plan(stage_plan(grpo_graph(), run=RUN)), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in result.folder.rglob("*")}
    assert resume_fakes(result.folder) == result
    assert {path: path.stat().st_mtime_ns for path in result.folder.rglob("*")} == before


def test_a_stage_that_had_passed_its_gate_is_not_run_again(tmp_path: Path) -> None:
    gate = Gate(metric="actor_train.loss", at_least=0.0, when="first")
    plan = make_plan(stage_plan(sft_graph(), run=RUN, gate=gate), stage_plan(grpo_graph(), run=RUN))
    whole = run_fakes(plan, tmp_path / "whole")
    folder = run_killed(plan, tmp_path / "killed", at("run reward.score", 1))
    assert folder is not None
    resume_fakes(folder)
    assert logs_of(folder) == logs_of(whole.folder)


@pytest.mark.parametrize(
    "graph",
    [
        grpo_graph(max_lag=1),
        grpo_graph(max_lag=2, val_every=None),
        grpo_graph(max_lag=1, weights_every=2, val_every=None),
    ],
    ids=["lag 1", "lag 2", "lag 1, weights every 2 steps"],
)
def test_weights_on_their_way_are_kept(tmp_path: Path, graph: Graph) -> None:
    """At a lag, and where weights travel every few steps, a checkpoint holds the versions that still wait."""
    run_ = structs.replace(RUN, steps=8, checkpoint_every_steps=3)
    plan = make_plan(stage_plan(graph, split(graph), run=run_))
    whole = run_fakes(plan, tmp_path / "whole")
    for step in (4, 5, 7, 8):
        folder = run_killed(plan, tmp_path / f"killed-{step}", at("run actor_train.update", step))
        assert folder is not None
        resume_fakes(folder)
        assert logs_of(folder) == logs_of(whole.folder)


def test_without_weights_on_their_way_a_run_goes_on_with_fresher_ones_and_loses_no_prompt(tmp_path: Path) -> None:
    """A launcher need not keep them: the lag is smaller for a while, the prompts are the same."""
    plan = make_plan(stage_plan(grpo_graph(max_lag=1, val_every=None), run=structs.replace(RUN, steps=8)))
    folder = run_killed(plan, tmp_path, at("run actor_train.update", 6))
    assert folder is not None
    shutil.rmtree(folder / "checkpoints" / "grpo" / "step-000004" / "weights")
    resume_fakes(folder)
    ledger = lines_of(folder / "ledger.jsonl")
    assert [entry["prompts"] for entry in ledger] == [[[4 * s, 4 * s + 4]] for s in range(8)]
    lags = [entry["version"] - entry["made_with"] for entry in ledger]
    assert max(lags) == 1
    assert lags.count(0) == 2, "the first step, and the first after the restart"


@pytest.mark.parametrize(
    ("name", "change", "case"),
    [
        ("plan.json", lambda text: text.replace('"steps": 5', '"steps": 6'), "plan"),
        ("ledger.jsonl", lambda text: text.replace('"samples":12', '"samples":11', 1), "ledger"),
        ("ledger.jsonl", lambda text: "".join(text.splitlines(keepends=True)[1:]), "ledger"),
    ],
)
def test_files_that_do_not_fit_the_checkpoint_are_refused(
    tmp_path: Path, told: Told, name: str, change: object, case: str
) -> None:
    folder = run_killed(make_plan(stage_plan(grpo_graph(), run=RUN)), tmp_path, at("run reward.score", 4))
    assert folder is not None
    text = (folder / name).read_text()
    changed = change(text)  # type: ignore[operator]
    assert changed != text
    (folder / name).write_text(changed)
    with pytest.raises(FlowError) as raised:
        resume_fakes(folder)
    told(raised.value, "FR0908", case)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, told: Told) -> None:
    with pytest.raises(FlowError) as raised:
        resume_fakes(tmp_path)
    told(raised.value, "FR0907")
