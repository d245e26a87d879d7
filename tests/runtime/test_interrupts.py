"""Ctrl-C and SIGTERM in a real process: how soon it ends, what it leaves, and that it goes on from there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.plan.plan import StageRun
from flowrl.runtime.interrupts import Abandoned, InterruptError, Interrupts
from tests.conftest import Told
from tests.runtime.fakes import make_fake
from tests.runtime.plans import grpo_graph, make_plan, stage_plan
from tests.runtime.runs import lines_of, resume_fakes, run_fakes, with_fakes

ROOT = Path(__file__).parents[2]


def _interrupt(
    runs: Path, method: str, seconds: float, until: str, number: signal.Signals, *more: str
) -> tuple[int, str, float]:
    """Send the signal once `until` is printed: exit status, the last line, seconds it took to end."""
    command = [sys.executable, "-m", "tests.runtime.interrupted", str(runs), method, str(seconds), *more]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == until:
            break
    time.sleep(0.1)
    sent = time.monotonic()
    process.send_signal(number)
    rest = process.stdout.read().strip().splitlines()
    status = process.wait(timeout=20)
    process.stdout.close()
    return status, rest[-1] if rest else "", time.monotonic() - sent


def _state(runs: Path) -> tuple[Path, str, list[str]]:
    folder = next(runs.iterdir())
    checkpoints = sorted(p.name for p in (folder / "checkpoints" / "grpo").glob("step-*"))
    return folder, json.loads((folder / "run.json").read_text())["state"], checkpoints


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_generation_is_abandoned_and_the_last_whole_step_saved(tmp_path: Path, number: signal.Signals) -> None:
    status, last, seconds = _interrupt(tmp_path, "generate", 1.5, "actor_infer.generate", number)
    folder, state, checkpoints = _state(tmp_path)
    assert (status, state, checkpoints) == (128 + number, "interrupted", ["step-000001"])
    assert last.startswith("FR0904")
    assert "step 1 of stage `grpo`" in last
    assert seconds < 1.2
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1]


def test_an_update_that_has_begun_is_completed_first(tmp_path: Path) -> None:
    status, _, seconds = _interrupt(tmp_path, "update", 1.0, "actor_train.update", signal.SIGINT)
    folder, state, checkpoints = _state(tmp_path)
    assert (status, state, checkpoints) == (130, "interrupted", ["step-000002"])
    assert 0.5 < seconds < 10
    assert [line["step"] for line in lines_of(folder / "metrics.jsonl")] == [1, 2]
    resumed = resume_fakes(folder)
    assert [line["prompts"][0][0] for line in lines_of(folder / "ledger.jsonl")] == [4 * s for s in range(50)]
    assert resumed.stages[0].steps == 50


def test_a_process_that_is_killed_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    status, _, _ = _interrupt(tmp_path, "update", 1.0, "actor_train.update", signal.SIGKILL, "1")
    folder, state, checkpoints = _state(tmp_path)
    assert (status, state, checkpoints) == (-signal.SIGKILL, "running", ["step-000001"])
    resume_fakes(folder)
    assert [line["prompts"][0][0] for line in lines_of(folder / "ledger.jsonl")] == [4 * s for s in range(50)]


class Stopped:
    """A fake rank in whose scores of step 2 the process gets Ctrl-C."""

    def __init__(self, setup: RankSetup) -> None:
        self._rank = make_fake(setup)

    def __getattr__(self, name: str) -> object:
        return getattr(self._rank, name)

    def call(self, call: Call, batch: Batch) -> Result:
        if (call.op.method, call.step) == ("score", 2):
            signal.raise_signal(signal.SIGINT)
        return self._rank.call(call, batch)  # type: ignore[attr-defined]


def test_the_frame_says_what_is_left_and_how_to_go_on(tmp_path: Path, told: Told) -> None:
    plan = make_plan(stage_plan(grpo_graph(val_every=None), run=StageRun(steps=4, loggers=())))
    with pytest.raises(InterruptError) as raised:
        run_fakes(plan, tmp_path, with_fakes(Stopped))
    assert raised.value.exit_status == 130
    told(raised.value, "FR0904")


def test_the_first_signal_is_noted_and_the_second_ends_everything() -> None:
    before = signal.getsignal(signal.SIGINT)  # a shell that starts the suite in the background leaves it ignored
    interrupts = Interrupts()
    with interrupts.listening():
        signal.raise_signal(signal.SIGINT)
        assert (interrupts.asked, interrupts.overdue) == (signal.SIGINT, False)
        with pytest.raises(Abandoned):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.overdue
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_cleaning_up_is_not_interrupted_and_the_next_stage_can_be() -> None:
    interrupts = Interrupts(deadline_seconds=0.05)
    with interrupts.listening():
        interrupts.settled()
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked == signal.SIGINT
        interrupts.settled()
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
    assert not interrupts.overdue


def test_work_that_may_be_left_is_left_at_once() -> None:
    interrupts = Interrupts()
    with interrupts.listening(), pytest.raises(Abandoned), interrupts.abandonable():
        signal.raise_signal(signal.SIGTERM)
    assert interrupts.name == "SIGTERM"


def test_work_that_must_not_be_left_is_given_up_at_the_deadline() -> None:
    interrupts = Interrupts(deadline_seconds=0.05)
    with interrupts.listening():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Abandoned):
            time.sleep(5)
    assert interrupts.overdue


def _interrupted_as_cython_is(interrupts: Interrupts) -> None:
    """As in Ray's wait: a SystemError raised over what the handler raised."""
    with interrupts.abandonable():
        try:
            signal.raise_signal(signal.SIGINT)
        except Abandoned as raised:
            raise SystemError("returned a result with an exception set") from raised


def test_what_compiled_code_makes_of_the_signal_is_still_the_signal() -> None:
    interrupts = Interrupts()
    with interrupts.listening(), pytest.raises(Abandoned):
        _interrupted_as_cython_is(interrupts)


def test_another_system_error_is_not_the_signal() -> None:
    interrupts = Interrupts()
    with interrupts.listening(), pytest.raises(SystemError), interrupts.abandonable():
        raise SystemError("of its own")
