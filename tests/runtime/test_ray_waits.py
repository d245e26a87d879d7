"""Real Ray: a rank that hangs at work is made anew, or what the others have made is taken, as its edge says."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowrl.backends.batch import Batch
from flowrl.backends.contract import Call, RankSetup, Result
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Kind
from flowrl.plan.plan import Layout, Plan, StageRun
from tests.runtime.fakes import FakeReward, make_fake
from tests.runtime.plans import grpo_graph, make_plan, split, stage_plan
from tests.runtime.ray_runs import MakeRank, ray_with, run_on, untimed

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
SCORED = "reward.score -> advantage.estimate"


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with ray_with(sys.modules[__name__]) as module:
        yield module


def plan_of(policy: str | None) -> Plan:
    """Two ranks score."""
    graph = grpo_graph(val_every=None)
    declared = tuple(
        structs.replace(e, timeout_seconds=5.0, on_timeout=policy) if e.id == SCORED else e for e in graph.declared
    )
    graph = structs.replace(graph, declared=declared)
    pools = tuple(
        structs.replace(
            pool,
            roles=tuple(structs.replace(e, layout=Layout(dp=2)) if e.role == "reward" else e for e in pool.roles),
        )
        for pool in split(graph)
    )
    return make_plan(stage_plan(graph, pools, StageRun(steps=3, loggers=(), samples_logged=2)))


def hanging(flag: Path) -> MakeRank:
    """Rank 1 of the reward hangs in step 2, once."""

    class Hanging(FakeReward):
        def __init__(self, setup: RankSetup) -> None:
            super().__init__(setup)
            self.rank = setup.rank

        def call(self, call: Call, batch: Batch) -> Result:
            if call.step == 2 and self.rank == 1 and not flag.exists():
                flag.touch()
                time.sleep(600)
            return super().call(call, batch)

    return lambda setup: Hanging(setup) if setup.role.kind is Kind.REWARD else make_fake(setup)


def test_retry(tmp_path: Path) -> None:
    whole = run_on(plan_of("retry"), tmp_path, "ray-whole")
    found = run_on(plan_of("retry"), tmp_path, "ray", hanging(tmp_path / "flag"))
    assert untimed(found, "ledger.jsonl") == untimed(whole, "ledger.jsonl")
    assert untimed(found, "samples.jsonl") == untimed(whole, "samples.jsonl")
    assert SCORED in untimed(found, "faults.jsonl")[0]["reason"]


def test_drop(tmp_path: Path) -> None:
    found = run_on(plan_of("drop"), tmp_path, "ray", hanging(tmp_path / "flag"))
    trained = {line["step"]: line["samples"] for line in untimed(found, "ledger.jsonl")}
    metrics = {line["step"]: line for line in untimed(found, "metrics.jsonl")}
    assert (trained[1], trained[3]) == (12, 12)
    assert trained.get(2, 0) == 12 - 3 * metrics[2]["reward.dropped_groups"]
    assert metrics[2]["reward.dropped_groups"] > 0


def test_abort(tmp_path: Path) -> None:
    with pytest.raises(FlowError) as caught:
        run_on(plan_of(None), tmp_path, "ray", hanging(tmp_path / "flag"))
    assert caught.value.diagnostics[0].code == "FR0925"
