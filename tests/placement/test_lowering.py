"""The cluster and placement sections as they reach placement: nodes, links, pools, assumptions, origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.compiler.lower.cluster import lower_cluster, lower_stage_cluster
from flowrl.compiler.lower.placement import lower_placement
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.cluster import Cluster
from flowrl.machine.devices import DEVICES
from flowrl.placement.request import Mode, PlacementRequest
from flowrl.spec import load, loads
from tests.placement.flows import PPO, with_placement


def cluster(section: str) -> Cluster:
    return lower_stage_cluster(loads(PPO.replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", section)), 0)


def request(section: str) -> PlacementRequest:
    return lower_placement(loads(with_placement(PPO, section)), 0)


def test_a_mapping_and_its_shorthand_are_the_same_nodes() -> None:
    (one,) = cluster("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}").groups
    (other,) = cluster("16xH100-80G").groups
    assert one == other


def test_links_replace_those_of_the_catalogue() -> None:
    links = "links: {node_bytes_per_second: 1.0e+11, network_bytes_per_second: 2.0e+10}"
    (group,) = cluster(f"{{gpu: H100-80G, gpus_per_node: 8, {links}}}").groups
    assert (group.device.link_bytes_per_second, group.network_bytes_per_second) == (1e11, 2e10)
    assert group.device.memory_bytes == DEVICES["H100-80G"].memory_bytes


def test_groups_keep_their_names_and_order() -> None:
    found = cluster("{groups: {fast: {gpu: H200, gpus_per_node: 8}, cheap: {gpu: L4, nodes: 3, gpus_per_node: 4}}}")
    assert [(g.name, g.device.name, g.nodes, g.devices_per_node) for g in found.groups] == [
        ("fast", "H200", 1, 8),
        ("cheap", "L4", 3, 4),
    ]


def test_a_fault_is_told_where_it_stands() -> None:
    with pytest.raises(FlowError) as caught:
        cluster("{groups: {fast: {gpu: H300, gpus_per_node: 8}}}")
    (label,) = caught.value.diagnostics[0].labels
    assert label.span.line == 4
    with pytest.raises(FlowError) as caught:
        lower_cluster("12xH100-80G")
    assert caught.value.diagnostics[0].labels[0].span.file == "--cluster"


@pytest.mark.parametrize("mode", ["auto", "colocated", "disaggregated"])
def test_words(mode: str) -> None:
    found = request(mode)
    assert found.mode == Mode(mode)
    assert found.span is not None
    assert not found.pools


def test_nothing_said_is_auto() -> None:
    found = lower_placement(loads(PPO), 0)
    assert found.mode is Mode.AUTO
    assert found.origin("placement") == "default"


def test_pools_layouts_pin_and_apart() -> None:
    found = request(
        "{pools: {r: {gpus: 8, roles: [actor_infer], layouts: {actor_infer: {tp: 2}}}, t: {gpus: 8}}, "
        "pin: {critic: t}, apart: [[actor_train, actor_infer]]}"
    )
    first, second = found.pools
    assert (found.mode, first.name, first.gpus, first.roles) == (Mode.POOLS, "r", 8, ("actor_infer",))
    assert first.layouts["actor_infer"].tp == 2
    assert first.role_spans["actor_infer"].line == PPO.count("\n") + 1
    assert (second.roles, found.pin, found.apart) == ((), {"critic": "t"}, (("actor_train", "actor_infer"),))


def test_wishes_without_pools_are_auto() -> None:
    assert request("{apart: [[actor_train, actor_infer]]}").mode is Mode.AUTO


def test_assumptions_and_origins() -> None:
    text = PPO + "assume: {actor_infer.generate: {response_tokens: {mean: 300, p99: 2000}, seconds: 0.5}}\n"
    found = lower_placement(loads(text, file="ppo.yaml"), 0)
    assumed = found.assume["actor_infer.generate"]
    assert (assumed.response_tokens, assumed.response_tokens_p99, assumed.seconds) == (300, 2000, 0.5)
    assert found.origin("roles", "actor_infer", "generate", "max_response_tokens").startswith("ppo.yaml:9:")
    assert found.origin("roles", "critic", "update", "micro_batch_tokens") == "default"


def test_a_stage_has_its_own_origins_over_the_shared_ones() -> None:
    examples = Path(__file__).parents[2] / "examples"
    spec = load(examples / "quickstart.yaml")
    warmup, grpo = (lower_placement(spec, index) for index in (0, 1))
    assert warmup.origin("data", "train", "max_prompt_tokens") == grpo.origin("data", "train", "max_prompt_tokens")
    own = ("roles", "actor_train", "optimizer", "lr")
    assert warmup.origin(*own) != grpo.origin(*own) != "default"
