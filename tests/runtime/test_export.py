"""What cannot be exported, of a run with fakes: told before a weight is read, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import StageRun
from flowrl.runtime.export import export
from tests.conftest import Told
from tests.runtime.plans import grpo_graph, make_plan, stage_plan
from tests.runtime.runs import at, run_fakes, run_killed

RUN = StageRun(steps=4, checkpoint_every_steps=2, loggers=())
PLAN = make_plan(stage_plan(grpo_graph(), run=RUN))


@pytest.mark.parametrize(
    ("step", "role", "code", "case"),
    [(7, None, "FR0906", "step"), (None, "actor_infer", "FR0914", ""), (2, "nobody", "FR0914", "nobody")],
)
def test_what_a_run_does_not_have_is_told_with_what_it_has(
    tmp_path: Path, told: Told, step: int | None, role: str | None, code: str, case: str
) -> None:
    folder = run_fakes(PLAN, tmp_path).folder
    with pytest.raises(FlowError) as raised:
        export(folder, step, tmp_path / "model", role)
    told(raised.value, code, case)
    assert not (tmp_path / "model").exists()


def test_a_run_without_a_checkpoint_is_to_be_gone_on_with(tmp_path: Path, told: Told) -> None:
    folder = run_killed(PLAN, tmp_path, at("run actor_train.update", 1))
    assert folder is not None
    with pytest.raises(FlowError) as raised:
        export(folder, None, tmp_path / "model")
    told(raised.value, "FR0906")


def test_a_folder_with_something_in_it_is_not_written_over(tmp_path: Path, told: Told) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    folder = run_fakes(PLAN, tmp_path / "runs").folder
    with pytest.raises(FlowError) as raised:
        export(folder, None, mine)
    told(raised.value, "FR0905", "export")
    assert (mine / "notes.txt").read_text() == "mine"
