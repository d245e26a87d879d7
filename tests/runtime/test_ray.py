"""Real Ray: the same run as inline, rows that the driver never unpacks, weights from rank to rank, and no leftovers.

Ranks are fakes unless a test says otherwise. One Ray serves the module; the last tests start one of their own.
"""

from __future__ import annotations

import dataclasses
import json
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
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.graph.graph import Kind
from flowrl.plan.plan import Layout, Plan, Pool, StageRun
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.launchers.ray_cluster import SLOT, connect, import_ray
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime import fakes
from tests.runtime.fakes import FakeReward, FakeTrainer, Slow, make_fake
from tests.runtime.plans import colocated, grpo_graph, make_plan, split, stage_plan

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

MakeRank = Callable[[RankSetup], object]
TIMING = ("seconds", "tokens_per_second", "samples_per_second")


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    module = import_ray()
    module.cloudpickle.register_pickle_by_value(fakes)
    module.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    module.init(num_cpus=4, resources={SLOT: 4}, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield module
    module.shutdown()


def _pools(infer_dp: int = 1) -> tuple[Pool, ...]:
    """Trainer and generator apart; the generator on `infer_dp` ranks."""
    pools: list[Pool] = []
    for pool in split(grpo_graph()):
        if pool.name != "pool_actor_infer":
            pools.append(pool)
            continue
        roles = tuple(structs.replace(role, layout=Layout(dp=infer_dp)) for role in pool.roles)
        devices = tuple(f"node0/{1 + i}" for i in range(infer_dp))
        pools.append(structs.replace(pool, roles=roles, devices=devices))
    return tuple(pools)


def _plan(pools: tuple[Pool, ...] | None = None, steps: int = 4, **stage: int) -> Plan:
    run = StageRun(steps=steps, loggers=(), samples_logged=2, **stage)
    return make_plan(stage_plan(grpo_graph(), pools or _pools(), run))


def _run(plan: Plan, runs: Path, name: str, make_rank: MakeRank = make_fake, stall_seconds: float = 60.0) -> Path:
    def launcher(kind: str, threads: int) -> Any:
        return InlineLauncher(1, make_rank) if kind == "inline" else RayLauncher(1, make_rank=make_rank)

    session = SessionOptions(make_launcher=launcher, progress=False, stall_seconds=stall_seconds)
    return run(plan, RunOptions(runs=runs, name=name, launcher=name.split("-")[0], session=session)).folder


def _lines(folder: Path, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def _leftovers() -> list[str]:
    """Weight buffers of processes that are gone."""
    names = [path.name for path in Path("/dev/shm").glob("flowrl-*")]
    return [name for name in names if not Path("/proc", name.split("-")[2]).exists()]


def _raised(plan: Plan, runs: Path, make_rank: MakeRank, stall_seconds: float = 60.0) -> FlowError:
    with pytest.raises(FlowError) as error:
        _run(plan, runs, "ray", make_rank, stall_seconds)
    return error.value


@pytest.mark.parametrize("pools", [_pools(infer_dp=2), colocated(grpo_graph())], ids=["split", "colocated"])
def test_a_run_on_ray_is_bit_equal_to_an_inline_run(tmp_path: Path, pools: tuple[Pool, ...]) -> None:
    inline = _run(_plan(colocated(grpo_graph())), tmp_path, "inline")
    on_ray = _run(_plan(pools), tmp_path, "ray")
    assert _lines(on_ray, "metrics.jsonl") == _lines(inline, "metrics.jsonl")
    assert _lines(on_ray, "samples.jsonl") == _lines(inline, "samples.jsonl")
    assert _leftovers() == []


def test_the_driver_unpacks_only_the_rows_it_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Batch.__setstate__  # type: ignore[attr-defined]

    def spy(self: Batch, state: object) -> None:
        original(self, state)
        seen.append(len(self))

    monkeypatch.setattr(Batch, "__setstate__", spy)
    folder = _run(_plan(), tmp_path, "ray")
    assert len(_lines(folder, "metrics.jsonl")) == 5
    assert seen
    assert max(seen) <= 2


def test_an_exception_in_a_rank_is_told_with_op_rank_and_last_line(tmp_path: Path) -> None:
    class Broken(FakeReward):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 3 and call.op.label is None:
                raise ValueError("first line\nthe verifier gave nothing")
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Broken(setup) if setup.role.kind is Kind.REWARD else make_fake(setup)

    told = _raised(_plan(), tmp_path, make).diagnostics[0]
    assert told.code == "FR0902"
    assert told.why == "ValueError: the verifier gave nothing"
    assert any("rank 0" in note for note in told.notes)
    assert any("raised in call" in note for note in told.notes)
    assert "reward.score" in str(told.labels or told.notes)
    assert _leftovers() == []


def test_a_flow_error_in_a_rank_keeps_its_diagnostics(tmp_path: Path) -> None:
    class Refusing(FakeReward):
        def call(self, call: Call, batch: Batch) -> Result:
            raise FlowError(diagnose("FR0804", folder="somewhere"))

    def make(setup: RankSetup) -> object:
        return Refusing(setup) if setup.role.kind is Kind.REWARD else make_fake(setup)

    assert _raised(_plan(), tmp_path, make).diagnostics[0].code == "FR0804"


def test_a_rank_that_fails_to_start_is_told(tmp_path: Path) -> None:
    def make(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR and setup.rank == 1:
            raise FlowError(diagnose("FR0804", folder="the second rank"))
        return make_fake(setup)

    error = _raised(_plan(_pools(infer_dp=2)), tmp_path, make)
    assert error.diagnostics[0].code == "FR0804"
    assert _leftovers() == []


def test_a_killed_process_is_named_with_what_it_was_doing(tmp_path: Path) -> None:
    class Dying(FakeTrainer):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Dying(setup) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    started = time.monotonic()
    told = _raised(_plan(), tmp_path, make).diagnostics[0]
    assert time.monotonic() - started < 45
    assert told.code == "FR0955"
    assert told.exit_code == 5
    text = str(told.labels or told.notes)
    assert "`actor_train`, rank 0" in text
    assert "run actor_train.update" in text
    assert _leftovers() == []


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

    told = _raised(_plan(), tmp_path, make, stall_seconds=2.0).diagnostics[0]
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
    told = _raised(_plan(_pools(infer_dp=5)), tmp_path, make_fake).diagnostics[0]
    assert told.code == "FR0954"
    assert told.exit_code == 4
    assert "needs 5 x flowrl_slot" in str(told.notes)


def test_ranks_that_do_not_come_up_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowrl.runtime.launchers import ray as launcher

    def make(setup: RankSetup) -> object:
        if setup.role.kind is Kind.GENERATOR:
            time.sleep(30)
        return make_fake(setup)

    monkeypatch.setattr(launcher, "START_SECONDS", 3.0)
    told = _raised(_plan(), tmp_path, make).diagnostics[0]
    assert told.code == "FR0957"
    assert "1 of them" in str(told.notes)


def test_a_ray_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, ray: Any) -> None:
    def refuse(**options: object) -> None:
        assert options["address"] == "192.0.2.7:6379"
        raise ConnectionError("nothing listens there\nand so on")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(FlowError) as error:
        connect(_plan(), _pools(), "192.0.2.7:6379")
    told = error.value.diagnostics[0]
    assert told.code == "FR0953"
    assert told.notes == ("192.0.2.7:6379: ConnectionError: nothing listens there",)


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
    folder = _run(_plan(pools), tmp_path, "ray", _make_halves)
    lines = _lines(folder, "metrics.jsonl")
    for version, line in enumerate(lines[:4]):
        wanted = [0.0] * 8 if version == 0 else [version] * 4 + [version + 0.1] * 4
        assert [line[f"actor_infer.w{i}"] for i in range(8)] == pytest.approx(wanted)
    assert _leftovers() == []


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

    whole = _run(_plan(colocated(grpo_graph()), steps=4), tmp_path / "whole", "inline")

    class Dying(FakeTrainer):
        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 3:
                os._exit(3)
            return super().call(call, batch)

    def make(setup: RankSetup) -> object:
        return Dying(setup) if setup.role.kind is Kind.TRAINER else make_fake(setup)

    _raised(_plan(steps=4, checkpoint_every_steps=2), tmp_path / "part", make)
    folder = next((tmp_path / "part").iterdir())
    session = SessionOptions(make_launcher=lambda *_: RayLauncher(1, make_rank=make_fake), progress=False)
    resume(folder, session=session)
    assert _lines(folder, "metrics.jsonl") == _lines(whole, "metrics.jsonl")


SCRIPT = """
import sys, json
from pathlib import Path
from flowrl.diag.diagnostic import FlowError
from flowrl.runtime.interrupts import InterruptError
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime import fakes
from tests.runtime.test_ray import _plan, slow_trainer
import ray
ray.cloudpickle.register_pickle_by_value(fakes)
ray.cloudpickle.register_pickle_by_value(sys.modules["tests.runtime.test_ray"])
session = SessionOptions(make_launcher=lambda *_: RayLauncher(1, make_rank=slow_trainer), progress=False)
try:
    run(_plan(steps=100), RunOptions(runs=Path(sys.argv[1]), launcher="ray", session=session))
except InterruptError as error:
    sys.exit(error.exit_status)
"""


def slow_trainer(setup: RankSetup) -> object:
    return Slow(make_fake(setup), "update", 0.2)


def test_ctrl_c_ends_within_ten_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    """In a process of its own that starts its own Ray: SIGINT in the middle of training, as a terminal sends it."""
    before = set(_leftovers())
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, script, tmp_path], env=environment, start_new_session=True)
    try:
        _wait_for(lambda: any(len(_lines(path.parent, path.name)) > 1 for path in tmp_path.glob("*/metrics.jsonl")))
        os.killpg(process.pid, signal.SIGINT)
        started = time.monotonic()
        assert process.wait(30) == 130
        assert time.monotonic() - started < 10
    finally:
        process.kill()
    _wait_for(lambda: not _of_session(process.pid), seconds=5)
    assert set(_leftovers()) <= before
    folder = next(tmp_path.glob("*/metrics.jsonl")).parent
    assert list(folder.glob("checkpoints/**/*.json"))


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
