"""Lag on Ray: weight versions that wait are kept by a checkpoint, on one host and between hosts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.graph.graph import Kind
from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.checkpoint import weights_file
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.resume import resume
from flowrl.runtime.session import SessionOptions
from tests.runtime import test_carried_runs as carried
from tests.runtime.async_flow import run_async
from tests.runtime.fakes import FakeTrainer, make_fake
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.ray_runs import apart, leftovers, raised_by, ray_with, run_on, untimed
from tests.runtime.test_ray import _pretend_hosts

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
LAG = 2
EDGE = "actor_train => actor_infer"


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with ray_with(sys.modules[__name__]) as module:
        yield module


class Dying(FakeTrainer):
    def call(self, call: Call, batch: Batch) -> Result:
        if call.step == 5:
            os._exit(3)
        return super().call(call, batch)


def _make_dying(setup: RankSetup) -> object:
    return Dying(setup) if setup.role.kind is Kind.TRAINER else make_fake(setup)


def _plan() -> Plan:
    graph = grpo_graph(max_lag=LAG, val_every=None)
    return make_plan(stage_plan(graph, split(graph), StageRun(steps=7, loggers=(), checkpoint_every_steps=4)))


@pytest.mark.parametrize("between_hosts", [False, True])
def test_a_run_at_a_lag_goes_on_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between_hosts: bool
) -> None:
    """Killed in step 5, it is resumed from step 4 with the versions 2, 3 and 4 that waited there."""
    if between_hosts:
        _pretend_hosts(monkeypatch)
    whole = run_on(_plan(), tmp_path / "whole", "inline")
    raised_by(_plan(), tmp_path / "part", _make_dying)
    folder = next((tmp_path / "part").iterdir())
    kept = [weights_file(folder / "checkpoints" / "grpo" / "step-000004", EDGE, version).exists() for version in (2, 3)]
    assert kept == [True, True]
    session = SessionOptions(make_launcher=lambda *_: RayLauncher(1, make_rank=make_fake), progress=False)
    resume(folder, session=session)
    for name in ("metrics.jsonl", "ledger.jsonl", "samples.jsonl"):
        assert untimed(folder, name) == untimed(whole, name)
    lags = [entry["version"] - entry["made_with"] for entry in untimed(folder, "ledger.jsonl")]
    assert lags == [0, 1, 2, 2, 2, 2, 2]
    assert leftovers() == []


def test_two_engines_share_prompts_that_go_on(ray: Any, tmp_path: Path) -> None:
    ray.cloudpickle.register_pickle_by_value(carried)
    stage = carried.plan_of(takes=2, steps=7).stages[0]
    plan = make_plan(stage_plan(stage.graph, apart(infer_dp=2), stage.run))
    folder = run_on(plan, tmp_path, "ray", carried.gradual)
    carried.assert_balanced(folder, 7)


@pytest.mark.vllm
@pytest.mark.slow
def test_a_real_engine_goes_on_under_newer_weights(tmp_path: Path) -> None:
    """Ray, FSDP2 and the real vLLM. A trained token's log-prob is that of the weights that it was made with: where
    rollouts are a version old it differs from the trainer's, and only then."""
    pytest.importorskip("vllm")
    schedule = "schedule={max_lag: 2, partial_rollout: true}"
    folder = run_async(tmp_path, schedule, "roles.actor_infer.backend=vllm", "run.steps=8", launcher="ray")
    ledger = untimed(folder, "ledger.jsonl")
    runs = [run for line in ledger for run in line["prompts"]]
    assert sorted(prompt for start, stop in runs for prompt in range(start, stop)) == list(range(32))
    assert all(line["version"] - line["made_with"] <= 2 for line in ledger)
    for line in [line for line in untimed(folder, "metrics.jsonl") if line["step"] <= 8]:
        difference = line["actor_train.rollout_log_prob_diff_max"]
        assert isinstance(difference, float)
        assert (difference < 1e-4) is (line["lag_max"] == 0), line["step"]
