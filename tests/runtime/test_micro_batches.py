"""The plan's choice of a micro-batch reaches every forward pass of its role, whatever the graph says, and changes what
is trained by rounding alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from flowrl.backends.contract import RankSetup
from flowrl.backends.registry import make_rank
from flowrl.plan.io import dumps, loads
from flowrl.plan.plan import Plan, StagePlan
from flowrl.runtime.launchers.inline import InlineLauncher
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from flowrl.runtime.setups import role_setups
from tests.runtime.runs import logs_of
from tests.runtime.tiny_flow import tiny_quickstart

SMALL = 40
"""Tokens: some rows of the flow stand alone, others share a micro-batch with one more."""


def _with_size(plan: Plan, size: int) -> Plan:
    """The plan as if placement had chosen micro-batches of `size` for its trainer, read back from its file."""

    def chosen(stage: StagePlan) -> StagePlan:
        pools = tuple(
            replace(
                pool,
                roles=tuple(replace(r, micro_batch_tokens=size) if r.role == "actor_train" else r for r in pool.roles),
            )
            for pool in stage.pools
        )
        return replace(stage, pools=pools)

    return loads(dumps(replace(plan, stages=tuple(map(chosen, plan.stages)))))


def _passes(plan: Plan, runs: Path) -> tuple[list[tuple[int, int]], Path]:
    """Rows and tokens of every forward pass of the trainer in a whole run, and the run's folder."""
    seen: list[tuple[int, int]] = []

    def note(_: Any, inputs: tuple[Any, ...]) -> None:
        seen.append(tuple(inputs[0].shape[:2]))

    def noting(setup: RankSetup) -> Any:
        rank: Any = make_rank(setup)
        if setup.role.name == "actor_train":
            rank._rank.module.model.layers[0].self_attn.q_proj.register_forward_pre_hook(note)
        return rank

    session = SessionOptions(
        progress=False, threads=1, make_launcher=lambda kind, threads: InlineLauncher(threads, noting)
    )
    return seen, run(plan, RunOptions(runs=runs, session=session)).folder


def test_the_trainer_works_on_micro_batches_of_the_plans_size(tmp_path: Path) -> None:
    plan = tiny_quickstart("stages.1.step.updates=2")
    whole, first = _passes(plan, tmp_path / "whole")
    cut, second = _passes(_with_size(plan, SMALL), tmp_path / "cut")
    assert all(rows == 1 or rows * tokens <= SMALL for rows, tokens in cut)
    assert any(rows * tokens > SMALL and rows > 1 for rows, tokens in whole)
    assert len(cut) > len(whole)
    _agree(logs_of(first)["metrics.jsonl"], logs_of(second)["metrics.jsonl"])


def _agree(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Every number to the rounding of float32 sums, every name and word exactly."""
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            if isinstance(value, float) and math.isfinite(value):
                assert math.isclose(value, right[name], rel_tol=1e-4, abs_tol=1e-6), (name, value, right[name])
            else:
                assert str(value) == str(right[name]), name


def test_each_rank_is_told_the_size_of_all_its_ops() -> None:
    plan = _with_size(tiny_quickstart(), SMALL)
    for stage in plan.stages:
        setups = role_setups(plan, stage, {model.name: Path() for model in stage.graph.models})
        sizes = {
            (setup.role, op.method, getattr(op.params, "micro_batch_tokens", None))
            for setup in setups
            for op in setup.ranks[0].ops
        }
        trained = {(method, size) for role, method, size in sizes if role == "actor_train"}
        assert trained == {(op.method, SMALL) for op in stage.graph.ops if op.role == "actor_train"}
        assert all(size in (None, 16384) for role, _, size in sizes if role != "actor_train")


def test_an_engine_starts_with_the_memory_that_the_plan_gives_it() -> None:
    plan = tiny_quickstart()
    stage = plan.stages[-1]
    pools = tuple(replace(p, roles=tuple(replace(r, memory_share=0.37) for r in p.roles)) for p in stage.pools)
    folders = {model.name: Path() for model in stage.graph.models}
    told = role_setups(plan, replace(stage, pools=pools), folders)
    assert {setup.ranks[0].role.engine.kv_fraction for setup in told if setup.role == "actor_infer"} == {0.37}
    assert {setup.ranks[0].role.engine.kv_fraction for setup in role_setups(plan, stage, folders)} == {None}
