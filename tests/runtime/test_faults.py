"""Runs that fail: what is said, where it points, and what is left."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.faults import LINES_SAID, said
from flowrl.runtime.launchers.contract import Completion, Work
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.session import SessionOptions
from tests.conftest import Told
from tests.runtime.fakes import make_fake
from tests.runtime.plans import grpo_graph, make_plan, stage_plan
from tests.runtime.runs import lines_of, logs_of, resume_fakes, run_fakes, with_fakes
from tests.runtime.written import TEXTS, place, written

RUN = StageRun(steps=5, loggers=(), samples_logged=1)
SPAN = place("reward")


class Failing:
    """A fake rank whose `method` raises in `step`."""

    def __init__(self, rank: object, method: str, step: int, error: Exception) -> None:
        self._rank, self._method, self._step, self._error = rank, method, step, error

    def __getattr__(self, name: str) -> object:
        return getattr(self._rank, name)

    def call(self, call: Call, batch: Batch) -> Result:
        if (call.op.method, call.step) == (self._method, self._step):
            raise self._error
        return self._rank.call(call, batch)  # type: ignore[attr-defined]


def _plan() -> Plan:
    return make_plan(stage_plan(written(grpo_graph(val_every=None)), run=RUN))


def _fail(runs: Path, method: str, step: int, error: Exception) -> FlowError:
    def failing(setup: RankSetup) -> object:
        return Failing(make_fake(setup), method, step, error)

    with pytest.raises(FlowError) as raised:
        run_fakes(_plan(), runs, with_fakes(failing))
    return raised.value


def test_an_exception_points_to_the_op_and_its_words_come_last(tmp_path: Path, told: Told) -> None:
    error = _fail(tmp_path, "score", 3, ValueError("many words\nlast words"))
    found = error.diagnostics[0]
    assert (found.labels[0].span, found.exit_code) == (SPAN, 5)
    assert "`run reward.score` failed in step 3" in found.labels[0].text
    assert "pool host, role reward" in found.notes[0]
    assert "checkpoint of step 2" in found.notes[1]
    assert found.notes[-1].splitlines()[1:] == ["  ValueError: many words", "  last words"]
    told(error, "FR0902", texts=TEXTS)


def test_of_a_long_exception_the_first_and_the_last_lines_are_told() -> None:
    error = RuntimeError("\n".join(f"line {number}" for number in range(1, 101)))
    words = said(error).splitlines()[1:]
    assert len(words) == LINES_SAID + 1
    assert (words[0], words[-1]) == ("  RuntimeError: line 1", "  line 100")
    assert said(KeyError()).splitlines()[-1] == "  KeyError"


def test_a_known_cause_without_a_place_is_put_at_the_op(tmp_path: Path) -> None:
    error = _fail(tmp_path, "score", 3, FlowError(diagnose("FR0804", folder="somewhere")))
    found = error.diagnostics[0]
    assert found.labels[0].span == SPAN
    assert "somewhere" in found.labels[0].text
    assert not any("somewhere" in note for note in found.notes)


def test_the_steps_before_a_failure_are_kept_and_the_run_goes_on_from_them(tmp_path: Path) -> None:
    _fail(tmp_path / "failed", "score", 3, ValueError("no"))
    folder = next((tmp_path / "failed").iterdir())
    run_file = json.loads((folder / "run.json").read_text())
    assert (run_file["state"], run_file["code"], run_file["step"]) == ("failed", "FR0902", 2)
    assert [p.name for p in (folder / "checkpoints" / "grpo").glob("step-*")] == ["step-000002"]
    resume_fakes(folder)
    assert logs_of(folder) == logs_of(run_fakes(_plan(), tmp_path / "whole").folder)


def test_a_trainer_that_failed_in_the_middle_is_not_saved(tmp_path: Path) -> None:
    _fail(tmp_path, "update", 3, RuntimeError("no"))
    folder = next(tmp_path.iterdir())
    assert not (folder / "checkpoints").exists() or not list(folder.glob("checkpoints/*/step-*"))
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1, 2]
    resume_fakes(folder)
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_a_known_cause_is_told_in_its_own_words_with_what_is_left(tmp_path: Path) -> None:
    known = FlowError(diagnose("FR0822", SPAN, function="r.py:r", error="ValueError: no", row="sample 0 of prompt 8"))
    error = _fail(tmp_path, "score", 3, known)
    assert [d.code for d in error.diagnostics] == ["FR0822"]
    assert "checkpoint of step 2 of stage `grpo`" in error.diagnostics[0].notes[-1]


class Silent(InlineLauncher):
    """Swallows the generate call of step 2: nothing comes back."""

    def submit(self, work: Work) -> None:
        if (work.firing.instruction.op, work.firing.step) != ("actor_infer.generate", 2):
            super().submit(work)

    def poll(self, timeout_seconds: float) -> Sequence[Completion]:
        return super().poll(timeout_seconds)


def test_a_stall_names_who_runs_who_waits_for_it_and_what_came_last(tmp_path: Path, told: Told) -> None:
    session = SessionOptions(
        progress=False, stall_seconds=0.2, make_launcher=lambda kind, threads: Silent(threads, make_fake)
    )
    with pytest.raises(FlowError) as raised:
        run_fakes(_plan(), tmp_path, session)
    found = raised.value.diagnostics[0]
    assert found.labels[0].span == place("actor_infer")
    assert "pool all: `run actor_infer.generate` runs" in found.notes
    assert any("`run reward.score` waits for `run actor_infer.generate`" in note for note in found.notes)
    told(raised.value, "FR0903", texts=TEXTS)
    folder = next(tmp_path.iterdir())
    assert [p.name for p in (folder / "checkpoints" / "grpo").glob("step-*")] == ["step-000001"]


class FullDisk:
    """A fake trainer whose second checkpoint finds no room."""

    saves = 0

    def __init__(self, setup: RankSetup) -> None:
        self._rank = make_fake(setup)

    def __getattr__(self, name: str) -> object:
        return getattr(self._rank, name)

    def save(self, folder: Path) -> None:
        FullDisk.saves += 1
        if FullDisk.saves > 1:
            raise OSError(28, os.strerror(28), str(folder))
        self._rank.save(folder)  # type: ignore[attr-defined]


def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path: Path, told: Told) -> None:
    plan = make_plan(stage_plan(grpo_graph(val_every=None), run=structs.replace(RUN, checkpoint_every_steps=2)))

    def full(setup: RankSetup) -> object:
        return FullDisk(setup) if setup.role.name == "actor_train" else make_fake(setup)

    FullDisk.saves = 0
    with pytest.raises(FlowError) as raised:
        run_fakes(plan, tmp_path, with_fakes(full))
    assert [d.code for d in raised.value.diagnostics] == ["FR0905"]
    assert "No space left on device" in raised.value.diagnostics[0].notes[0]
    told(raised.value, "FR0905")
    folder = next(tmp_path.iterdir())
    assert sorted(p.name for p in (folder / "checkpoints" / "grpo").iterdir()) == ["step-000002"]
    resume_fakes(folder)
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_a_runs_folder_that_cannot_be_made_is_told(tmp_path: Path, told: Told) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlowError) as raised:
        run_fakes(_plan(), tmp_path / "file")
    told(raised.value, "FR0905", "begin")
    with pytest.raises(FlowError, match="FR0905"):
        run_fakes(_plan(), tmp_path / "file" / "runs")


def test_our_own_faults_stay_our_own(tmp_path: Path) -> None:
    def failing(setup: RankSetup) -> object:
        return Failing(make_fake(setup), "score", 2, InternalError("ours"))

    with pytest.raises(InternalError, match="ours"):
        run_fakes(_plan(), tmp_path, with_fakes(failing))
    assert json.loads((next(tmp_path.iterdir()) / "run.json").read_text())["state"] == "failed"


def test_a_run_that_cannot_start_tells_of_nothing_left(tmp_path: Path) -> None:
    def failing(setup: RankSetup) -> object:
        raise FlowError(diagnose("FR0803", SPAN, model="policy", source="nowhere", reason="it is not there"))

    with pytest.raises(FlowError) as raised:
        run_fakes(_plan(), tmp_path, with_fakes(failing))
    assert raised.value.diagnostics[0].code == "FR0803"
    assert not any("checkpoint" in note or "resumed" in note for note in raised.value.diagnostics[0].notes)
