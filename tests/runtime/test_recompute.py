"""The plan's choice of recomputation reaches the trainer, whatever the graph says, and changes no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import make_rank
from flowrl.plan.io import dumps, loads
from flowrl.plan.plan import Plan, StagePlan
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime.runs import logs_of
from tests.runtime.tiny_flow import tiny_quickstart


def _with_recompute(plan: Plan, value: str) -> Plan:
    """The plan as if placement had chosen `value` for its trainer, read back from its file."""

    def chosen(stage: StagePlan) -> StagePlan:
        pools = tuple(
            replace(
                pool,
                roles=tuple(replace(r, recompute=value) if r.role == "actor_train" else r for r in pool.roles),
            )
            for pool in stage.pools
        )
        return replace(stage, pools=pools)

    return loads(dumps(replace(plan, stages=tuple(map(chosen, plan.stages)))))


def _forwards(plan: Plan, runs: Path) -> tuple[int, Path]:
    """How often the trainer's first layer runs with gradients in a whole run, and the run's folder."""
    fired = 0

    def count(*_: Any) -> None:
        nonlocal fired
        fired += torch.is_grad_enabled()

    def counting(setup: RankSetup) -> Any:
        rank: Any = make_rank(setup)
        if setup.role.name == "actor_train":
            rank._rank.module.model.layers[0].self_attn.register_forward_pre_hook(count)
        return rank

    session = SessionOptions(
        progress=False, threads=1, make_launcher=lambda kind, threads: InlineLauncher(threads, counting)
    )
    folder = run(plan, RunOptions(runs=runs, session=session)).folder
    return fired, folder


def test_the_trainer_recomputes_when_the_plan_says_so(tmp_path: Path) -> None:
    plan = tiny_quickstart()
    assert {r.recompute for s in plan.stages for p in s.pools for r in p.roles} == {"none"}
    assert all(stage.graph.role("actor_train").engine.recompute is None for stage in plan.stages)
    kept, first = _forwards(plan, tmp_path / "none")
    again, second = _forwards(_with_recompute(plan, "full"), tmp_path / "full")
    assert again == 2 * kept > 0
    assert logs_of(first) == logs_of(second)
