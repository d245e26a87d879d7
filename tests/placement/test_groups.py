"""Several groups of nodes, sides of interactions, prices: which pools are tried, and where their devices lie."""

from __future__ import annotations

import pytest

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.placed import sides
from flowrl.placement.cost.price import PER_HOUR, PER_STEP, price_lines
from flowrl.placement.request import Mode, PlacementRequest
from flowrl.placement.search import search
from flowrl.placement.search.familiar import familiar
from flowrl.placement.search.ways import Ways
from flowrl.plan.plan import Layout, Pool, RolePlacement
from flowrl.spec.schema import ClusterDocument
from tests.placement.flows import GRPO, with_placement
from tests.placement.told import told_text

TWO = "cluster: {groups: {fast: {gpu: H100-80G, gpus_per_node: 8}, old: {gpu: A100-80G, nodes: 2, gpus_per_node: 8}}}"
MIXED = GRPO.replace("cluster: {gpu: H100-80G, nodes: 2, gpus_per_node: 8}", TWO)
DEBATE = """
flowrl: 1
name: debate
cluster: {gpu: H100-80G, nodes: 2, gpus_per_node: 8}
models: {policy: {source: Qwen/Qwen2.5-0.5B}}
data: {train: {seeds: 100}}
roles:
  alice: {kind: generator, model: policy, backend: vllm, generate: {max_response_tokens: 512}}
  bob: {kind: generator, model: policy, backend: vllm, frozen: true, generate: {max_response_tokens: 512}}
  room: {kind: env, env: "gem:room", max_turns: 3}
  alice_train: {kind: trainer, model: policy, backend: fsdp, update: {loss: ppo}}
  advantage: {estimator: grpo}
edges:
  - data.train -> room.reset
  - alice.generate, bob.generate <-> room.step
  - alice.generate -> advantage.estimate
  - advantage.estimate -> alice_train.update
  - alice_train => alice
step: {prompts: 64, samples_per_prompt: 4}
"""


def test_each_group_alone_and_each_pair_is_worked_out() -> None:
    told = told_text(MIXED)
    found = familiar(Ways(told.graph, told.cluster, PlacementRequest()))
    split = {tuple(part.group for part in parts) for parts, _ in found if len(parts) == 2}
    assert split == {("fast", "fast"), ("old", "old"), ("fast", "old"), ("old", "fast")}
    assert [parts[0].group for parts, _ in found if len(parts) == 1] == ["fast", "old"]


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.DISAGGREGATED])
def test_sides_of_an_interaction_never_share_a_pool(mode: Mode) -> None:
    told = told_text(DEBATE)
    assert sides(told.graph) == (("alice", "bob"),)
    found = search(told.graph, told.cluster, PlacementRequest(mode=mode), told.shapes).tried
    assert found
    for candidate in found:
        home = {role: draft.name for draft in candidate.option.pools for role in draft.roles}
        assert home["alice"] != home["bob"]
        assert set(home) == {"alice", "bob", "alice_train"}
        devices = [device for draft in candidate.option.pools for device in draft.devices]
        assert len(devices) == len(set(devices))


def test_sides_that_find_no_devices_are_told_why() -> None:
    with pytest.raises(FlowError) as caught:
        told_text(DEBATE, "1x1xH100-80G")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FR0514"
    assert any("`alice` and `bob` answer each other" in note for note in (diagnostic.why or "", *diagnostic.notes))
    assert (
        diagnostic.labels[0].span.line
        == DEBATE.splitlines().index("  - alice.generate, bob.generate <-> room.step") + 1
    )


def test_a_free_role_of_explicit_pools_avoids_the_other_side() -> None:
    section = "{pools: {one: {gpus: 8, roles: [alice]}, two: {gpus: 8, roles: [alice_train]}}}"
    told = told_text(with_placement(DEBATE, section))
    home = {entry.role: pool.name for pool in told.placement.pools for entry in pool.roles}
    assert (home["alice"], home["bob"]) == ("one", "two")


# -- prices -----------------------------------------------------------------------------------------------------------


def priced(**groups: float | None) -> Cluster:
    entries = {
        name: {"gpu": "H100-80G", "gpus_per_node": 8, "price_per_gpu_hour": price} for name, price in groups.items()
    }
    return lower_cluster(ClusterDocument.model_validate({"groups": entries}))


def pools_on(**counts: int) -> tuple[Pool, ...]:
    entry = RolePlacement(role="actor_train", layout=Layout())
    return tuple(
        Pool(
            name=name,
            devices=tuple(f"{name}/node0/{place}" for place in range(count)),
            device="H100-80G",
            roles=(entry,),
        )
        for name, count in counts.items()
    )


def test_a_step_costs_the_devices_of_its_pools_for_its_time() -> None:
    """8 at 2.5 and 4 at 1: 24 an hour; 0.01 h of it is 0.24."""
    lines = price_lines(pools_on(a=8, b=4), priced(a=2.5, b=1.0), 36.0)
    assert {line.what: line.value for line in lines} == {PER_HOUR: pytest.approx(24.0), PER_STEP: pytest.approx(0.24)}


def test_without_every_price_there_is_none() -> None:
    assert price_lines(pools_on(a=8, b=4), priced(a=2.5, b=None), 36.0) == ()
    assert price_lines(pools_on(a=8), priced(a=2.5, b=None), 36.0) != ()


def test_the_price_of_the_whole_cluster_is_that_of_its_groups() -> None:
    document = {"price_per_gpu_hour": 3.0, "groups": {"a": {"gpu": "H20", "gpus_per_node": 8}}}
    (group,) = lower_cluster(ClusterDocument.model_validate(document)).groups
    assert group.price_per_gpu_hour == 3.0
