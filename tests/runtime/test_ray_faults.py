"""Real Ray: exceptions, deaths and silence of ranks, told by name; nothing stays behind. Ranks are fakes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Kind
from tests.runtime.fakes import FakeReward, FakeTrainer, make_fake
from tests.runtime.ray_runs import apart, leftovers, plan_of, raised_by, ray_with

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with ray_with(sys.modules[__name__]) as module:
        yield module


def test_an_exception_in_a_rank_is_told_with_op_rank_and_last_line(tmp_path: Path) -> None:
    class Broken(FakeReward):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 3 and call.op.label is None:
                raise ValueError("first line\nthe verifier gave nothing")
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Broken(setup) if setup.role.kind is Kind.REWARD else make_fake(setup)

    told = raised_by(plan_of(), tmp_path, make).diagnostics[0]
    assert told.code == "FR0902"
    assert "rank 0, host " in told.notes[-3]
    assert "raised in call" in told.notes[-1]
    assert told.notes[-1].splitlines()[1:] == ["  ValueError: first line", "  the verifier gave nothing"]
    assert "reward.score" in str(told.labels or told.notes)
    assert leftovers() == []


def test_a_flow_error_in_a_rank_keeps_its_diagnostics(tmp_path: Path) -> None:
    class Refusing(FakeReward):
        def call(self, call: Call, batch: Batch) -> Result:
            raise FlowError(diagnose("FR0804", folder="somewhere"))

    def make(setup: RankSetup) -> object:
        return Refusing(setup) if setup.role.kind is Kind.REWARD else make_fake(setup)

    assert raised_by(plan_of(), tmp_path, make).diagnostics[0].code == "FR0804"


def test_a_rank_that_fails_to_start_is_told(tmp_path: Path) -> None:
    def make(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR and setup.rank == 1:
            raise FlowError(diagnose("FR0804", folder="the second rank"))
        return make_fake(setup)

    error = raised_by(plan_of(apart(infer_dp=2)), tmp_path, make)
    assert error.diagnostics[0].code == "FR0804"
    assert leftovers() == []


def test_a_killed_process_is_named_with_what_it_was_doing(tmp_path: Path) -> None:
    class Dying(FakeTrainer):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Dying(setup) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    started = time.monotonic()
    told = raised_by(plan_of(), tmp_path, make).diagnostics[0]
    assert time.monotonic() - started < 45
    assert told.code == "FR0955"
    assert told.exit_code == 5
    text = str(told.labels or told.notes)
    assert "`actor_train`, rank 0" in text
    assert "run actor_train.update" in text
    assert leftovers() == []


def test_a_stopped_process_is_a_stall_and_does_not_stay(tmp_path: Path) -> None:
    """SIGSTOP: Ray never notices; the driver's clock does, and close must end it all the same."""
    pids = tmp_path / "pid"

    class Stopping(FakeTrainer):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 2:
                pids.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Stopping(setup) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    told = raised_by(plan_of(), tmp_path, make, stall_seconds=2.0).diagnostics[0]
    assert told.code == "FR0903"
    assert any("run actor_train.update" in note for note in told.notes)
    assert _ends(int(pids.read_text()))


def _ends(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process is gone (or only waits for its parent to see so)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_too_few_devices_are_told_before_anything_starts(tmp_path: Path) -> None:
    told = raised_by(plan_of(apart(infer_dp=5)), tmp_path, make_fake).diagnostics[0]
    assert told.code == "FR0954"
    assert told.exit_code == 4
    assert "needs 5 x flowrl_slot" in str(told.notes)


def test_ranks_that_do_not_come_up_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowrl.runtime.launchers import ray_waits

    def make(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR:
            time.sleep(60)
        return make_fake(setup)

    monkeypatch.setattr(ray_waits, "START_SECONDS", 10.0)  # longer than a busy machine takes to start the processes
    told = raised_by(plan_of(), tmp_path, make).diagnostics[0]
    assert told.code == "FR0957"
    assert "from `actor_infer`, rank 0" in str(told.notes)
