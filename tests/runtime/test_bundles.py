"""What a placement group asks of Ray: devices and nothing else, so that no lack of CPUs can make it wait for ever."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flowrl.api.compile import compile_spec
from flowrl.plan.plan import Plan
from flowrl.runtime.launchers.ray_cluster import reserve
from flowrl.spec import loads
from tests.errors.test_bug_reports import text

POOLS = """placement:
  pools:
    rollout: {gpus: 2, roles: [actor_infer]}
    train: {gpus: 6, roles: [actor_train]}"""


class Ray:
    """Answers as a Ray cluster of eight GPUs and one CPU would, and keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[dict[str, float]], str]] = []

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": 8.0, "CPU": 1.0}

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.asked.append((bundles, strategy))
        return SimpleNamespace(wait=lambda timeout_seconds: True, bundles=bundles)

    def placement_group_table(self, group: Any) -> dict[str, dict[int, str]]:
        return {"bundles_to_node_id": dict.fromkeys(range(len(group.bundles)), "node")}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    module, util, groups = ModuleType("ray"), ModuleType("ray.util"), ModuleType("ray.util.placement_group")
    vars(module).update(cluster_resources=made.cluster_resources, available_resources=made.cluster_resources)
    vars(groups).update(
        placement_group=made.placement_group,
        placement_group_table=made.placement_group_table,
        remove_placement_group=lambda group: None,
    )
    for name, each in (("ray", module), ("ray.util", util), ("ray.util.placement_group", groups)):
        monkeypatch.setitem(sys.modules, name, each)
    return made


def test_bundles_ask_for_devices_only(ray: Ray) -> None:
    plan: Plan = compile_spec(loads(text(PLACEMENT=POOLS)))
    reserve(plan, plan.stages[0].pools)
    assert ray.asked == [([{"GPU": 1.0}] * 2, "PACK"), ([{"GPU": 1.0}] * 6, "PACK")]
