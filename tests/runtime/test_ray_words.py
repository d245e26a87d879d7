"""What the Ray launcher says of a Ray that fails, whole frames. Ray itself is a stand-in here and nothing is started;
tests/runtime/test_ray_faults.py has the same from a real one."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flowrl.backends.contract import TensorSpec
from flowrl.diag.diagnostic import FlowError
from flowrl.execution.contract import Firing
from flowrl.plan.plan import Plan, StagePlan
from flowrl.program.program import InstructionKind
from flowrl.runtime.faults import failure
from flowrl.runtime.launchers import ray_cluster, ray_waits
from flowrl.runtime.launchers.contract import Completion, Work
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.launchers.ray_actor import Outcome
from flowrl.runtime.launchers.ray_flights import Flight
from flowrl.runtime.launchers.ray_waits import Waits
from flowrl.runtime.launchers.ray_weights import Ranks, WeightEdges
from flowrl.runtime.weights import SharedBuffer
from tests.conftest import Told
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.written import TEXTS, written


class StandIn(ModuleType):
    """The module `ray` with the few names that the launcher asks; a test sets what they answer."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.is_initialized = lambda: False
        self.cluster_resources = dict[str, float]
        self.wait: Callable[..., Any] = lambda references, **_: (references, [])


class DeadError(Exception):
    """Stands for RayError: the process is gone."""


class LateError(Exception):
    """Stands for GetTimeoutError."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module, errors, groups = StandIn(), ModuleType("ray.exceptions"), ModuleType("ray.util.placement_group")
    errors.RayError, errors.GetTimeoutError = DeadError, LateError  # type: ignore[attr-defined]
    for name in ("placement_group", "placement_group_table", "remove_placement_group"):
        setattr(groups, name, None)
    modules = {"ray": module, "ray.exceptions": errors, "ray.util": ModuleType("ray.util")}
    for name, each in (modules | {"ray.util.placement_group": groups}).items():
        monkeypatch.setitem(sys.modules, name, each)
    return module


def _stage() -> StagePlan:
    graph = written(grpo_graph(val_every=None))
    return stage_plan(graph, split(graph, train_dp=2))


def _firing(stage: StagePlan, kind: InstructionKind, role: str) -> Firing:
    found = (i for i in stage.programs.instructions if i.kind is kind and i.role == role)
    return Firing(instruction=next(found), step=12)


def _launcher(stage: StagePlan) -> RayLauncher:
    made = RayLauncher()
    made._waits.stage = stage
    return made


def test_a_ray_that_does_not_answer(ray: StandIn, told: Told) -> None:
    def refuse(**options: object) -> None:
        assert options["address"] == "head.cluster:6379"
        raise ConnectionError("nothing listens there\nand so on")

    ray.init = refuse  # type: ignore[attr-defined]
    with pytest.raises(FlowError) as raised:
        ray_cluster.connect(make_plan(_stage()), (), "head.cluster:6379")
    told(raised.value, "FR0953")


def test_a_cluster_with_too_few_devices(ray: StandIn, told: Told) -> None:
    stage = _stage()
    ray.cluster_resources = lambda: {"GPU": 1.0, "CPU": 64.0}
    pools = [pool for pool in stage.pools if pool.name == "pool_actor_train"]
    with pytest.raises(FlowError) as raised:
        ray_cluster.reserve(_with_gpus(make_plan(stage)), pools)
    assert raised.value.diagnostics[0].exit_code == 4
    told(raised.value, "FR0954", texts=TEXTS)


def _with_gpus(plan: Plan) -> Plan:
    (group,) = plan.cluster.groups
    device = structs.replace(group.device, is_cpu=False)
    return structs.replace(plan, cluster=structs.replace(plan.cluster, groups=(structs.replace(group, device=device),)))


def test_a_process_that_dies_at_work(ray: StandIn, told: Told) -> None:
    stage = _stage()
    made = _launcher(stage)

    def get(reference: object, timeout: float) -> object:
        raise DeadError(
            "The actor died unexpectedly before finishing this task.\n"
            "Worker exit detail: Worker exits unexpectedly: the kernel killed it, for memory."
        )

    ray.get = get  # type: ignore[attr-defined]
    work = Work(_firing(stage, InstructionKind.RUN, "actor_train"))
    made._flights = {"reference": Flight(work, {"reference": 1})}
    (done,) = made.poll(1.0)
    told(failure(stage, done, Path("runs/ppo")), "FR0955", texts=TEXTS)


def test_a_process_that_dies_at_its_start(ray: StandIn, told: Told) -> None:
    def get(reference: object, timeout: float) -> object:
        raise DeadError("The actor died because of an error raised in its creation task.")

    ray.get = get  # type: ignore[attr-defined]
    with pytest.raises(FlowError) as raised:
        Waits(_stage()).ask(["reference"], [("actor_infer", 0)])
    told(raised.value, "FR0955", "start", texts=TEXTS)


def test_ranks_that_do_not_come_up(ray: StandIn, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 700.0)
    monkeypatch.setattr(ray_waits, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    ray.wait = lambda references, **_: ([], references)
    waits, ranks = Waits(_stage()), [("actor_train", rank) for rank in range(6)]
    with pytest.raises(FlowError) as raised:
        waits.ask([f"reference {rank}" for _, rank in ranks], ranks)
    told(raised.value, "FR0957", texts=TEXTS)
    with pytest.raises(FlowError, match="from 2 ranks"):
        waits.ask(["one", "another"])


class Remote:
    """An actor every call of which gives what `answers` has for its name, when it is asked."""

    def __init__(self, **answers: Callable[..., object]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *given: lambda: self._answers[name](*given))


def _ask(references: Sequence[Any], ranks: object = ()) -> list[Outcome]:
    return [Outcome(0.0, 0.0, value=reference()) for reference in references]


def test_no_room_for_the_weights_of_an_edge(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = (TensorSpec(name="w", dtype="uint8", shape=(2**30,), offset=0, nbytes=2**30),)
    disk = SimpleNamespace(f_bavail=2**14, f_frsize=2**12)  # 64 MiB, as Docker gives
    monkeypatch.setattr(os, "statvfs", lambda _: disk)

    def create(edge: str, nbytes: int, slots: int, writers: int) -> str:
        return SharedBuffer.create(nbytes, slots=slots, writers=writers, folder=Path("/dev/shm")).name

    trainer = Remote(manifest=lambda *_: manifest, create_buffer=create)
    ranks = {role: Ranks(role, (trainer,), ("node0",)) for role in ("actor_train", "actor_infer")}
    with pytest.raises(FlowError) as raised:
        WeightEdges(_stage(), ranks, _ask)
    assert "3,072.0 MiB" in str(raised.value.diagnostics[0].why)  # 1,024 for each of two that may wait, and one more
    told(raised.value, "FR0950", texts=TEXTS)


def _failed(stage: StagePlan, raised: pytest.ExceptionInfo[FlowError]) -> FlowError:
    work = Work(_firing(stage, InstructionKind.RECEIVE_WEIGHTS, "actor_infer"))
    told = failure(stage, Completion(work, error=raised.value), Path("runs/ppo"))
    assert isinstance(told, FlowError)
    return told


def test_a_buffer_that_stays_locked_points_to_its_edge(tmp_path: Path, told: Told) -> None:
    buffer = SharedBuffer.create(3, folder=tmp_path)
    buffer._try_lock = lambda *_: False  # type: ignore[method-assign]
    with pytest.raises(FlowError) as raised, buffer.reading(12, timeout_seconds=0.01):
        pass
    buffer.close()
    told(_failed(_stage(), raised), "FR0951", texts=TEXTS)


def test_weights_that_are_not_complete_point_to_their_edge(tmp_path: Path, told: Told) -> None:
    buffer = SharedBuffer.create(3, writers=2, folder=tmp_path)
    for version, writers in ((10, (0, 1)), (12, (0,))):
        for writer in writers:
            with buffer.writing(version, writer) as data:
                np.copyto(data, version)
    with pytest.raises(FlowError) as raised, buffer.reading(12):
        pass
    buffer.close()
    told(_failed(_stage(), raised), "FR0952", texts=TEXTS)
