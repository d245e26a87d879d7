"""Real Ray: two generators and an environment talk from actor to actor, and whoever is killed on the way, the run is
the one it would have been in one process. Generators and trainer are fakes, the environments and their processes real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.backends.contract import RankSetup
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.runtime.worker import MakeRank
from tests.runtime import talking
from tests.runtime.ray_runs import leftovers, ray_with, run_on, untimed
from tests.runtime.talking import debate, make_talking
from tests.runtime.test_ray_recovery import LOGS, Mortal

ray_package = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    from tests.runtime import test_ray_recovery

    for module in (talking, test_ray_recovery):
        ray_package.cloudpickle.register_pickle_by_value(module)
    with ray_with(sys.modules[__name__]) as module:
        yield module


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    session = SessionOptions(make_launcher=lambda kind, threads: InlineLauncher(1, make_talking), progress=False)
    return run(debate(folder), RunOptions(runs=folder, name="inline", folder=folder, session=session)).folder


def mortal(role: str, method: str, number: int, marks: Path) -> MakeRank:
    """Of `role` the last rank is killed once, after the `number`-th call of `method`."""

    def make(setup: RankSetup) -> object:
        rank = make_talking(setup)
        if setup.role.name == role and setup.rank == setup.world_size - 1:
            struck = Mortal.__new__(Mortal)
            struck._rank, struck._method, struck._left, struck._signal, struck._marks = rank, method, number, 9, marks
            return struck
        return rank

    return make


def _assert_same(folder: Path, other: Path) -> None:
    for name in LOGS:
        ours, theirs = (
            [{key: value for key, value in line.items() if "restarts" not in key} for line in untimed(each, name)]
            for each in (folder, other)
        )
        assert ours == theirs
    assert leftovers() == []


def test_the_flow_is_worth_comparing_with(whole: Path) -> None:
    """Episodes of several turns, one that fails, and weights that change what is said."""
    steps = [line for line in untimed(whole, "metrics.jsonl") if "alice_train.loss" in line]
    assert len({line["alice_train.loss"] for line in steps}) == 3
    assert all(1.0 < line["alice.spoken"] <= 2.0 for line in steps)
    assert any(line["debate.failed"] > 0 for line in steps)
    assert len({line["response"] for line in untimed(whole, "samples.jsonl")}) > 6


def test_ranks_that_talk_say_what_they_would_in_one_process(tmp_path: Path, whole: Path) -> None:
    _assert_same(run_on(debate(tmp_path, alice=2), tmp_path, "ray", make_talking), whole)


@pytest.mark.parametrize(
    ("role", "method", "number"),
    [("alice", "speak", 9), ("bob", "finish", 2), ("debate", "tell", 12)],
)
def test_a_member_that_is_killed_is_replaced(tmp_path: Path, whole: Path, role: str, method: str, number: int) -> None:
    folder = run_on(debate(tmp_path), tmp_path, "ray", mortal(role, method, number, tmp_path / "mark"))
    (loss,) = untimed(folder, "faults.jsonl")
    assert loss["role"] == role
    _assert_same(folder, whole)
