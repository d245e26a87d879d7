"""Real Ray: a process that is killed or stopped anywhere is replaced, and the run is the one it would have been.

Ranks are fakes, which tell lost and repeated rows. benchmarks/chaos.py has real ones.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowrl.backends.contract import RankSetup
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.worker import MakeRank
from tests.runtime import losing
from tests.runtime.fakes import make_fake
from tests.runtime.losing import careful
from tests.runtime.plans import colocated, grpo_graph, make_plan, stage_plan
from tests.runtime.ray_runs import apart, leftovers, plan_of, ray_with, run_on, untimed

ray_package = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
LOGS = ("metrics.jsonl", "samples.jsonl", "ledger.jsonl")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    ray_package.cloudpickle.register_pickle_by_value(losing)
    with ray_with(sys.modules[__name__]) as module:
        yield module


class Mortal:
    """A fake rank whose process gets a signal in the middle of one method, once for all processes of the run."""

    def __init__(self, setup: RankSetup, method: str, number: int, sent: int, marks: Path) -> None:
        self._rank = careful(setup)
        self._method, self._left, self._signal, self._marks = method, number, sent, marks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rank, name)
        if name != self._method:
            return found

        def struck(*arguments: object, **named: object) -> object:
            made = found(*arguments, **named)
            self._left -= 1
            if self._left == 0 and not self._marks.exists():
                self._marks.write_text(str(os.getpid()))
                os.kill(os.getpid(), self._signal)
            return made

        return struck


def mortal(role: str, method: str, number: int, marks: Path, sent: int = signal.SIGKILL) -> MakeRank:
    """Of `role` the last rank is struck in the `number`-th call of `method`, once its work is done."""

    def make(setup: RankSetup) -> object:
        if setup.role.name == role and setup.rank == setup.world_size - 1:
            return Mortal(setup, method, number, sent, marks)
        return careful(setup)

    return make


def _graph(**more: int) -> Graph:
    return grpo_graph(updates=2, val_every=2, **more)


def _plan(graph: Graph, infer_dp: int = 1, turns: bool = False) -> Plan:
    pools = colocated(graph) if turns else apart(infer_dp)
    run = StageRun(steps=4, loggers=(), samples_logged=2, checkpoint_every_steps=2)
    return make_plan(stage_plan(graph, pools, run))


def _in_parts(graph: Graph) -> Graph:
    return structs.replace(graph, schedule=structs.replace(graph.schedule, takes=3))


APART, TURNS, PARTS = _plan(_graph(), 2), _plan(_graph(), turns=True), _plan(_in_parts(_graph()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    runs = tmp_path_factory.mktemp("whole")
    plans = {"apart": TURNS, "turns": TURNS, "parts": PARTS}
    return {name: run_on(plan, runs, f"inline-{name}") for name, plan in plans.items()}


def _assert_same(folder: Path, other: Path) -> None:
    for name in LOGS:
        assert untimed(folder, name) == untimed(other, name)
    assert leftovers() == []


@pytest.mark.parametrize(
    ("role", "method", "number", "rolled_back_to"),
    [
        ("actor_infer", "read_weights", 2, None),
        ("reward", "call", 4, None),
        ("data.train", "rows", 2, None),
        ("actor_train", "call", 7, 2),
        ("actor_train", "save", 1, 0),
    ],
)
def test_a_killed_process_is_replaced(
    tmp_path: Path, whole: dict[str, Path], role: str, method: str, number: int, rolled_back_to: int | None
) -> None:
    folder = run_on(APART, tmp_path, "ray", mortal(role, method, number, tmp_path / "mark"))
    (loss,) = untimed(folder, "faults.jsonl")
    assert (loss["role"], loss.get("rolled_back_to")) == (role, rolled_back_to)
    _assert_same(folder, whole["apart"])


@pytest.mark.parametrize("method", ["offload", "load"])
def test_a_rank_that_takes_turns_comes_back_where_it_was(tmp_path: Path, whole: dict[str, Path], method: str) -> None:
    folder = run_on(TURNS, tmp_path, "ray", mortal("actor_infer", method, 2, tmp_path / "mark"))
    assert len(untimed(folder, "faults.jsonl")) == 1
    _assert_same(folder, whole["turns"])


def test_rows_that_a_session_has_given_are_not_given_again(tmp_path: Path, whole: dict[str, Path]) -> None:
    """The generator dies between two takes, where a whole call of it would be all of the session."""
    folder = run_on(PARTS, tmp_path, "ray", _dies_between_takes(tmp_path / "mark"))
    assert len(untimed(folder, "faults.jsonl")) == 1
    assert untimed(folder, "samples.jsonl") == untimed(whole["parts"], "samples.jsonl")
    assert untimed(folder, "ledger.jsonl") == untimed(whole["parts"], "ledger.jsonl")


def _dies_between_takes(marks: Path) -> MakeRank:
    """The reward, which reads what the first take has given, ends the generator before it goes on."""

    def make(setup: RankSetup) -> object:
        rank = careful(setup)
        if setup.role.name == "actor_infer":
            (marks.parent / "pid").write_text(str(os.getpid()))
        if setup.role.name != "reward":
            return rank
        call = rank.call

        def strike(*arguments: Any) -> object:
            if not marks.exists():
                marks.touch()
                os.kill(int((marks.parent / "pid").read_text()), signal.SIGKILL)
            return call(*arguments)

        rank.call = strike
        return rank

    return make


@pytest.mark.parametrize("role", ["actor_infer", "actor_train"])
def test_a_stopped_process_has_no_pulse_and_is_replaced(tmp_path: Path, whole: dict[str, Path], role: str) -> None:
    """SIGSTOP: Ray never notices."""
    mark = tmp_path / "mark"
    folder = run_on(APART, tmp_path, "ray", mortal(role, "call", 3, mark, signal.SIGSTOP), hung_seconds=8.0)
    (loss,) = untimed(folder, "faults.jsonl")
    assert loss["reason"] == "its process has not answered for 8 s"
    _assert_same(folder, whole["apart"])
    assert not Path("/proc", mark.read_text(), "cmdline").exists() or _is_zombie(int(mark.read_text()))


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_the_clerk_may_die(tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds nothing: another one reads the rows of samples.jsonl."""
    from flowrl.runtime.launchers.ray import RayLauncher

    peek, killed = RayLauncher.peek, list[bool]()

    def killing(self: RayLauncher, *arguments: Any) -> Any:
        if not killed:
            killed.append(True)
            assert self._crew is not None
            ray.kill(self._crew.clerk)
            time.sleep(0.5)
        return peek(self, *arguments)

    monkeypatch.setattr(RayLauncher, "peek", killing)
    folder = run_on(plan_of(steps=2), tmp_path, "ray", make_fake)
    assert killed
    assert len(untimed(folder, "samples.jsonl")) > 0
