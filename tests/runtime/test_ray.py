"""Real Ray: the same run as inline, rows that the driver never unpacks, weights from rank to rank, and no leftovers.

Ranks are fakes. test_ray_vllm.py and test_invariance.py have real ones.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Bytes, Call, RankSetup, Result, TensorSpec
from flowrl.graph.graph import Kind, Schedule
from flowrl.plan.plan import Layout, Pool, StageRun
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.session import SessionOptions
from tests.runtime import fakes
from tests.runtime.fakes import FakeTrainer, Slow, make_fake
from tests.runtime.plans import colocated, grpo_graph, make_plan, split, stage_plan
from tests.runtime.ray_runs import apart, leftovers, plan_of, raised_by, ray_with, run_on, untimed

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


@pytest.mark.parametrize("pools", [apart(infer_dp=2), colocated(grpo_graph())], ids=["split", "colocated"])
def test_a_run_on_ray_is_bit_equal_to_an_inline_run(tmp_path: Path, pools: tuple[Pool, ...]) -> None:
    inline = run_on(plan_of(colocated(grpo_graph())), tmp_path, "inline")
    on_ray = run_on(plan_of(pools), tmp_path, "ray")
    assert untimed(on_ray, "metrics.jsonl") == untimed(inline, "metrics.jsonl")
    assert untimed(on_ray, "samples.jsonl") == untimed(inline, "samples.jsonl")
    assert leftovers() == []


def test_parts_of_a_generation_are_scored_on_ray_with_the_same_result(tmp_path: Path) -> None:
    """Two ranks make every take together; only means, which are taken over the parts, may differ in their last bits."""
    whole = run_on(plan_of(colocated(grpo_graph())), tmp_path, "inline")
    graph = structs.replace(grpo_graph(), schedule=Schedule(takes=4))
    run = StageRun(steps=4, loggers=(), samples_logged=2)
    parts = run_on(make_plan(stage_plan(graph, apart(infer_dp=2), run)), tmp_path, "ray")
    assert untimed(parts, "samples.jsonl") == untimed(whole, "samples.jsonl")
    for mine, theirs in zip(untimed(parts, "metrics.jsonl"), untimed(whole, "metrics.jsonl"), strict=True):
        numbers = {name: value for name, value in theirs.items() if isinstance(value, float)}
        assert {name: mine[name] for name in numbers} == pytest.approx(numbers, rel=1e-6)
    assert leftovers() == []


def test_the_driver_unpacks_only_the_rows_it_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Batch.__setstate__  # type: ignore[attr-defined]

    def spy(self: Batch, state: object) -> None:
        original(self, state)
        seen.append(len(self))

    monkeypatch.setattr(Batch, "__setstate__", spy)
    folder = run_on(plan_of(), tmp_path, "ray")
    assert len(untimed(folder, "metrics.jsonl")) == 5
    assert seen
    assert max(seen) <= 2


class HalfTrainer(FakeTrainer):
    """Two ranks, each writes its own half of the weights: eight numbers that say version and rank."""

    def __init__(self, setup: RankSetup) -> None:
        super().__init__(setup)
        self.setup = setup
        self.version = 0

    def call(self, call: Call, batch: Batch) -> Result:
        self.version += 1
        return Result(None, {"loss": (0.0, 1.0)})

    def manifest(self) -> Sequence[TensorSpec]:
        return [TensorSpec("w", "float64", (8,), 0, 64)]

    def write_weights(self, buffer: Bytes) -> None:
        half = 32 * self.setup.rank
        buffer[half : half + 32] = np.full(4, self.version + 0.1 * self.setup.rank).view(np.uint8)


class Listening:
    """A generator that returns the weights it holds as its metrics."""

    def __init__(self, setup: RankSetup) -> None:
        self.weights = np.zeros(8)

    def read_weights(self, manifest: Sequence[TensorSpec], buffer: Bytes, version: int) -> None:
        self.weights = buffer.view(np.float64).copy()

    def __getattr__(self, name: str) -> object:
        return getattr(fakes.FakeGenerator, name).__get__(self)

    version = 0
    weight = 0.0

    def call(self, call: Call, batch: Batch) -> Result:
        made = fakes.FakeGenerator.call(self, call, batch)  # type: ignore[arg-type]
        return Result(made.batch, {f"w{i}": (float(value), 1.0) for i, value in enumerate(self.weights)})

    def _tokens(self, call: Call, sample: int) -> list[int]:
        return [1]

    def close(self) -> None:
        return


def _make_halves(setup: RankSetup) -> object:
    made: dict[Kind, Callable[[RankSetup], object]] = {Kind.TRAINER: HalfTrainer, Kind.GENERATOR: Listening}
    return made.get(setup.role.kind, make_fake)(setup)


@pytest.mark.parametrize("between_hosts", [False, True])
def test_every_rank_writes_its_shards_and_every_reader_gets_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between_hosts: bool
) -> None:
    """Two trainer ranks, two readers, four versions; once through shared memory, once as if each were on a host of its
    own, when the hosts' parts travel as objects."""
    if between_hosts:
        _pretend_hosts(monkeypatch)
    graph = grpo_graph()
    pools = tuple(
        structs.replace(
            pool,
            devices=tuple(f"node0/{place}{i}" for i in range(2)),
            roles=tuple(structs.replace(role, layout=Layout(dp=2)) for role in pool.roles),
        )
        if pool.devices
        else pool
        for place, pool in enumerate(split(graph))
    )
    folder = run_on(plan_of(pools), tmp_path, "ray", _make_halves)
    lines = untimed(folder, "metrics.jsonl")
    for version, line in enumerate(lines[:4]):
        wanted = [0.0] * 8 if version == 0 else [version] * 4 + [version + 0.1] * 4
        assert [line[f"actor_infer.w{i}"] for i in range(8)] == pytest.approx(wanted)
    assert leftovers() == []


def _pretend_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank on a node of its own, as far as weights are concerned."""
    from flowrl.runtime.launchers import ray as launcher
    from flowrl.runtime.launchers.ray_weights import Ranks, WeightEdges

    class Apart(WeightEdges):
        def __init__(self, stage: Any, ranks: dict[str, Ranks], ask: Any) -> None:
            apart = {
                role: dataclasses.replace(one, nodes=tuple(f"{role}{i}" for i in range(len(one.nodes))))
                for role, one in ranks.items()
            }
            super().__init__(stage, apart, ask)

    monkeypatch.setattr(launcher, "WeightEdges", Apart)


def test_a_resumed_run_is_bit_equal(tmp_path: Path) -> None:
    from flowrl.runtime.resume import resume

    whole = run_on(plan_of(colocated(grpo_graph()), steps=4), tmp_path / "whole", "inline")

    class Dying(FakeTrainer):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 3:
                os._exit(3)
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Dying(setup) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    raised_by(plan_of(steps=4, checkpoint_every_steps=2), tmp_path / "part", make)
    folder = next((tmp_path / "part").iterdir())
    session = SessionOptions(make_launcher=lambda *_: RayLauncher(1, make_rank=make_fake), progress=False)
    resume(folder, session=session)
    assert untimed(folder, "metrics.jsonl") == untimed(whole, "metrics.jsonl")


SCRIPT = """
import sys, json
from pathlib import Path
from flowrl.diag.diagnostic import FlowError
from flowrl.runtime.interrupts import InterruptError
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime import fakes
from tests.runtime.ray_runs import plan_of
from tests.runtime import test_ray
import ray
ray.cloudpickle.register_pickle_by_value(fakes)
ray.cloudpickle.register_pickle_by_value(sys.modules["tests.runtime.test_ray"])
make_rank = getattr(test_ray, sys.argv[2])
session = SessionOptions(make_launcher=lambda *_: RayLauncher(1, make_rank=make_rank), progress=False)
try:
    run(plan_of(steps=100), RunOptions(runs=Path(sys.argv[1]), launcher="ray", session=session))
except InterruptError as error:
    sys.exit(error.exit_status)
"""


def slow_trainer(setup: RankSetup) -> object:
    return Slow(make_fake(setup), "update", 0.2)


def slow_start(setup: RankSetup) -> object:
    if setup.role.kind is Kind.TRAINER:
        time.sleep(60)
    return make_fake(setup)


def _interrupted(folder: Path, make: str, begun: Callable[[int], bool], sent: signal.Signals = signal.SIGINT) -> None:
    """In a process of its own that starts its own Ray: SIGINT as a terminal sends it, or SIGTERM to the process alone
    as a scheduler does, once `begun` says so."""
    before = set(leftovers())
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, script, folder, make], env=environment, start_new_session=True)
    try:
        _wait_for(lambda: begun(process.pid), seconds=240)
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        started = time.monotonic()
        assert process.wait(30) == 128 + sent
        assert time.monotonic() - started < 10
    finally:
        process.kill()
    _wait_for(lambda: not _of_session(process.pid), seconds=5)
    assert set(leftovers()) <= before


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_training_ends_it_within_ten_seconds_and_leaves_nothing(
    tmp_path: Path, sent: signal.Signals
) -> None:
    def trains(leader: int) -> bool:
        return any(len(untimed(path.parent, path.name)) > 1 for path in tmp_path.glob("*/metrics.jsonl"))

    _interrupted(tmp_path, "slow_trainer", trains, sent)
    folder = next(tmp_path.glob("*/metrics.jsonl")).parent
    assert list(folder.glob("checkpoints/**/*.json"))


def test_ctrl_c_while_ranks_start_is_told_as_one_and_leaves_nothing(tmp_path: Path) -> None:
    """Ray turns what the handler raises in its own wait into a SystemError, which once came out as a fault of ours."""
    _interrupted(tmp_path, "slow_start", lambda leader: any("ray::RankActor" in line for line in _of_session(leader)))


def _wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def _of_session(leader: int) -> list[str]:
    """Command lines of the processes that a session leader has left."""
    found: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append((stat.parent / "cmdline").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
