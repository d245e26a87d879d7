"""A Ray cluster of several nodes, all on this machine: one of them goes, and the run goes on on the others."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowrl.plan.plan import Plan, StageRun
from flowrl.runtime.launchers.ray import RayLauncher
from flowrl.runtime.launchers.ray_cluster import SLOT, import_ray
from flowrl.runtime.run import RunOptions, run
from flowrl.runtime.session import SessionOptions
from tests.runtime import fakes
from tests.runtime.fakes import Slow, make_fake
from tests.runtime.plans import colocated, grpo_graph, make_plan, split, stage_plan
from tests.runtime.ray_runs import run_on, untimed

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
STORE_BYTES = 80 * 2**20


@pytest.fixture
def cluster() -> Iterator[Any]:
    """The driver's node, which has one slot, and two more with one each."""
    ray = import_ray()
    for module in (fakes, sys.modules[__name__]):
        ray.cloudpickle.register_pickle_by_value(module)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "resources": {SLOT: 1}, "object_store_memory": STORE_BYTES}
    made = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    made.add_node(**node)
    made.add_node(**node)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def _plan(inline: bool = False) -> Plan:
    graph = grpo_graph(val_every=None)
    run_ = StageRun(steps=6, loggers=(), samples_logged=2, checkpoint_every_steps=2)
    return make_plan(stage_plan(graph, colocated(graph) if inline else split(graph), run_))


def make_slow(setup: Any) -> object:
    return Slow(make_fake(setup), "generate", 1.0)


def test_a_lost_host_rolls_the_stage_back_to_hosts_that_are_left(tmp_path: Path, cluster: Any) -> None:
    whole = run_on(_plan(inline=True), tmp_path / "whole", "inline")
    launcher = RayLauncher(1, make_rank=make_slow)
    folders: list[Path] = []

    def end_a_host() -> None:
        """One of the two that has a rank, once there is a checkpoint of step 2."""
        while not list(tmp_path.glob("ray*/checkpoints/grpo/step-000002/state.json")):
            time.sleep(0.05)
        assert launcher._crew is not None
        used = {launcher._crew.ranks[role].nodes[0] for role in ("actor_train", "actor_infer")}
        lost = next(node for node in cluster.worker_nodes if node.node_id in used)
        cluster.remove_node(lost, allow_graceful=False)

    threading.Thread(target=end_a_host, daemon=True).start()
    session = SessionOptions(make_launcher=lambda *_: launcher, progress=False)
    run(_plan(), RunOptions(runs=tmp_path, name="ray", launcher="ray", session=session, on_folder=folders.append))
    losses = untimed(folders[0], "faults.jsonl")
    assert losses
    assert any(loss.get("rolled_back_to", 0) >= 2 for loss in losses)  # type: ignore[operator]
    for name in ("metrics.jsonl", "ledger.jsonl", "samples.jsonl"):
        assert untimed(folders[0], name) == untimed(whole, name)
