"""Engines whose tensor-parallel group fills several nodes, and trainers and small nodes, which may not."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import FlowError
from tests.placement.flows import GRPO, with_placement
from tests.placement.told import told_text

FLOW = GRPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-72B").replace("nodes: 2", "nodes: 4")


def placed(rollout: str, cluster: str) -> str:
    flow = FLOW.replace("nodes: 4, gpus_per_node: 8", cluster)
    pools = f"rollout: {{gpus: 16, roles: [actor_infer], layouts: {{actor_infer: {rollout}}}}}"
    return with_placement(flow, f"{{pools: {{{pools}, train: {{gpus: 16, roles: [actor_train, reward]}}}}}}")


def test_an_engine_may_fill_two_nodes_of_eight() -> None:
    """verl's 70B recipes: rollout.tensor_model_parallel_size=16 on nodes of 8."""
    found = told_text(placed("{tp: 16}", "nodes: 4, gpus_per_node: 8"))
    rollout = next(pool for pool in found.placement.pools if pool.name == "rollout")
    assert rollout.roles[0].layout.tp == 16
    assert {device.split("/")[0] for device in rollout.devices} == {"node0", "node1"}


@pytest.mark.parametrize("cluster", ["nodes: 32, gpus_per_node: 1", "nodes: 6, gpus_per_node: 6"])
def test_not_nodes_of_one_nor_parts_of_nodes(cluster: str) -> None:
    with pytest.raises(FlowError) as error:
        told_text(placed("{tp: 8}", cluster))
    assert [each.code for each in error.value.diagnostics] == ["FR0533"]
