"""Runs of fakes on Ray, for its tests: one Ray serves a module."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs

from flowrl.backends.contract import RankSetup
from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Layout, Plan, Pool, StageRun
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.launchers.ray_cluster import SLOT, import_ray
from flowrl.runtime.metrics import TIMING
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime import fakes
from tests.runtime.fakes import make_fake
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan

MakeRank = Callable[[RankSetup], object]


@contextmanager
def ray_with(tests: ModuleType) -> Iterator[Any]:
    """A Ray of four slots. Ranks made by functions of `tests` are shipped by value: no process could import it."""
    ray = import_ray()
    for module in (fakes, tests):
        ray.cloudpickle.register_pickle_by_value(module)
    ray.init(num_cpus=4, resources={SLOT: 4}, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield ray
    finally:
        ray.shutdown()


def apart(infer_dp: int = 1) -> tuple[Pool, ...]:
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


def plan_of(pools: tuple[Pool, ...] | None = None, steps: int = 4, **stage: int) -> Plan:
    run = StageRun(steps=steps, loggers=(), samples_logged=2, **stage)
    return make_plan(stage_plan(grpo_graph(), pools or apart(), run))


def run_on(
    plan: Plan,
    runs: Path,
    name: str,
    make_rank: MakeRank = make_fake,
    stall_seconds: float = 60.0,
    replacements: int = 3,
    hung_seconds: float = 60.0,
) -> Path:
    def launcher(kind: str, threads: int) -> Any:
        if kind == "inline":
            return InlineLauncher(1, make_rank)
        return RayLauncher(1, make_rank=make_rank, hung_seconds=hung_seconds)

    session = SessionOptions(
        make_launcher=launcher, progress=False, stall_seconds=stall_seconds, replacements=replacements
    )
    return run(plan, RunOptions(runs=runs, name=name, launcher=name.split("-")[0], session=session)).folder


def untimed(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def leftovers() -> list[str]:
    """Weight buffers of processes that are gone."""
    names = [path.name for path in Path("/dev/shm").glob("flowrl-*")]
    return [name for name in names if not Path("/proc", name.split("-")[2]).exists()]


def raised_by(plan: Plan, runs: Path, make_rank: MakeRank, stall_seconds: float = 60.0) -> FlowError:
    """What a run says that replaces no rank."""
    with pytest.raises(FlowError) as error:
        run_on(plan, runs, "ray", make_rank, stall_seconds, replacements=0)
    return error.value
