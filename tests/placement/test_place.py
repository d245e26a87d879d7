"""Placement: modes, explicit pools, layouts, offloading, decisions, and edits that are said to fit and do."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.cluster import Cluster
from flowrl.machine.devices import DEVICE_CARDS, node_group
from flowrl.placement.devices import allocate, device_names
from flowrl.placement.place import place
from flowrl.placement.search import search
from flowrl.placement.time.step import step_seconds
from flowrl.plan.plan import Pool
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text


def pools(told: Told) -> dict[str, Pool]:
    return {pool.name: pool for pool in told.placement.pools}


def roles(pool: Pool) -> set[str]:
    return {entry.role for entry in pool.roles}


def code(text: str, cluster: str | None = None) -> str:
    with pytest.raises(FlowError) as caught:
        told_text(text, cluster)
    return caught.value.diagnostics[0].code


def test_colocated_is_one_pool_over_all_devices() -> None:
    found = pools(told_text(with_placement(PPO, "colocated")))
    assert set(found) == {"all", "host"}
    assert len(found["all"].devices) == 16
    assert roles(found["all"]) == {"actor_train", "actor_infer", "critic", "reference"}
    assert roles(found["host"]) == {"reward", "advantage", "data.train"}
    assert all(entry.layout.devices == 16 for entry in found["all"].roles)


def test_disaggregated_gives_generators_their_own_devices() -> None:
    found = pools(told_text(with_placement(PPO, "disaggregated")))
    assert roles(found["rollout"]) == {"actor_infer"}
    assert roles(found["train"]) == {"actor_train", "critic", "reference"}
    devices = [device for pool in found.values() for device in pool.devices]
    assert len(devices) == len(set(devices)) == 16


def test_the_split_is_the_fastest_of_those_that_fit() -> None:
    """Brute force: every number of rollout devices on one node, timed and checked one by one."""
    told = told_text(with_placement(GRPO, "disaggregated"), "8xH100-80G")
    tried = search(told.graph, told.cluster, told.request, told.shapes).tried
    assert len(tried) == 7
    timed = {
        len(each.laid.pools[0].devices): step_seconds(
            told.graph, each.laid.pools, told.shapes, told.cluster, told.request
        )
        for each in tried
        if each.laid.fits and not each.starved
    }
    assert len(pools(told)["rollout"].devices) == min(timed, key=lambda count: timed[count])


def test_auto_takes_what_no_other_option_beats() -> None:
    told = told_text(GRPO)
    found = search(told.graph, told.cluster, told.request, told.shapes)
    best, tried = found.best, found.tried
    fitting = [each for each in tried if each.laid.fits and not each.starved]
    assert best.seconds == min(each.seconds for each in fitting)
    assert {each.option.label.split(":")[0] for each in tried} == {"colocated", "disaggregated"}


def test_lag_makes_a_split_cheaper() -> None:
    told = told_text(with_placement(GRPO, "disaggregated"))
    late = told_text(f"{with_placement(GRPO, 'disaggregated')}schedule: {{max_lag: 1}}\n").graph
    on_policy = step_seconds(told.graph, told.placement.pools, told.shapes, told.cluster, told.request)
    one_off = step_seconds(late, told.placement.pools, told.shapes, told.cluster, told.request)
    assert on_policy / 2 <= one_off < on_policy


def test_explicit_pools_are_as_written() -> None:
    section = (
        "{pools: {rollout: {gpus: 8, roles: [actor_infer], layouts: {actor_infer: {tp: 4}}}, "
        "train: {gpus: 4, roles: [actor_train, critic, reference]}}}"
    )
    found = pools(told_text(with_placement(PPO, section)))
    assert len(found["rollout"].devices) == 8
    assert len(found["train"].devices) == 4
    (infer,) = found["rollout"].roles
    assert (infer.layout.dp, infer.layout.tp) == (2, 4)
    assert found["train"].roles[0].layout.dp == 4


def test_a_role_in_no_pool_is_placed_by_a_decision_and_pin_overrides_it() -> None:
    section = "{pools: {rollout: {gpus: 8, roles: [actor_infer]}, train: {gpus: 8, roles: [actor_train, critic]}}}"
    told = told_text(with_placement(PPO, section))
    homes = {role: pool.name for pool in told.placement.pools for role in roles(pool)}
    assert homes["reference"] in ("rollout", "train")
    first = told.placement.decisions[0]
    assert f"reference in {homes['reference']}" in first.chosen
    assert len(first.rejected) == 1
    for pool in ("rollout", "train"):
        pinned = told_text(with_placement(PPO, section[:-1] + f", pin: {{reference: {pool}}}}}"))
        assert "reference" in roles(pools(pinned)[pool])


def test_apart_excludes_colocation() -> None:
    told = told_text(with_placement(PPO, "{apart: [[actor_train, actor_infer]]}"))
    assert not any({"actor_train", "actor_infer"} <= roles(pool) for pool in pools(told).values())


def test_local_is_one_process() -> None:
    flow = GRPO.replace("vllm", "hf").replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", "local")
    for section in ("auto", "colocated"):
        (pool, _) = told_text(with_placement(flow, section)).placement.pools
        assert pool.devices == ("node0/0",)
        assert not any(entry.offloaded for entry in pool.roles)
    assert len(told_text(with_placement(flow, "colocated"), "3xcpu").placement.pools[0].devices) == 3
    assert len(told_text(with_placement(flow, "auto"), "3xcpu").placement.pools[0].devices) == 1


def test_the_smallest_tp_that_holds_the_model() -> None:
    """Qwen2.5-72B in bf16 is 145 GB: two H100 of 80 GB hold it only without room for a cache at 0.85, four do."""
    flow = GRPO.replace("policy: {source: Qwen/Qwen2.5-7B}", "policy: {source: Qwen/Qwen2.5-72B}")
    told = told_text(with_placement(flow, "disaggregated"), "64xH100-80G")
    (infer,) = pools(told)["rollout"].roles
    assert infer.layout.tp == 4
    layout = next(each for each in told.placement.decisions if each.what == "layout of actor_infer")
    assert [each.reason for each in layout.rejected][:2] == ["does_not_fit", "does_not_fit"]


def test_no_layout_is_said_to_fit_in_a_pool_that_is_over_its_limit() -> None:
    flow = GRPO.replace("policy: {source: Qwen/Qwen2.5-7B}", "policy: {source: Qwen/Qwen2.5-72B}")
    told = told_text(with_placement(flow, "colocated"), "8xH100-80G")
    assert "FR0501" in [each.code for each in told.placement.diagnostics]
    layout = next(each for each in told.placement.decisions if each.what == "layout of actor_infer")
    assert layout.reason == "nearest_to_fitting"


def test_a_larger_tp_where_the_smallest_starves_its_cache() -> None:
    """Qwen2.5-32B leaves one H100 room for a few samples of 128 at a time; brute force over tp says what that costs."""
    flow = GRPO.replace("policy: {source: Qwen/Qwen2.5-7B}", "policy: {source: Qwen/Qwen2.5-32B}")
    told = told_text(with_placement(flow, "colocated"), "16xH100-80G")
    layout = next(each for each in told.placement.decisions if each.what == "layout of actor_infer")
    assert layout.reason == "fastest"
    seconds: dict[int, float] = {}
    for tp in (1, 2, 4, 8):
        layouts = f"layouts: {{actor_infer: {{tp: {tp}}}}}"
        section = f"{{pools: {{all: {{gpus: 16, roles: [actor_train, actor_infer, reward], {layouts}}}}}}}"
        asked = told_text(with_placement(flow, section), "16xH100-80G")
        seconds[tp] = step_seconds(asked.graph, asked.placement.pools, asked.shapes, asked.cluster, asked.request)
    assert seconds[2] < seconds[1] / 1.5
    fastest = min(seconds, key=seconds.__getitem__)
    assert layout.chosen == f"dp{16 // fastest} tp{fastest}"


def test_nobody_leaves_devices_that_have_room() -> None:
    flow = GRPO.replace("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.3},")
    told = told_text(with_placement(flow, "colocated"), "16xH200")
    assert not any(entry.offloaded for entry in pools(told)["all"].roles)
    flow = GRPO.replace("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.85},")
    told = told_text(with_placement(flow, "colocated"))
    assert pools(told)["all"].roles[0].offloaded


def test_an_asked_offload_is_kept() -> None:
    flow = GRPO.replace("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.3, offload: true},")
    told = told_text(with_placement(flow, "colocated"), "16xH200")
    assert {entry.role for entry in pools(told)["all"].roles if entry.offloaded} == {"actor_infer"}
    decision = next(each for each in told.placement.decisions if each.what == "offload of actor_infer")
    assert decision.reason == "asked_for"


def test_decisions_are_numbered_and_can_be_overridden() -> None:
    decisions = told_text(GRPO).placement.decisions
    assert [each.id for each in decisions] == [f"D{n}" for n in range(1, len(decisions) + 1)]
    assert all(each.text and each.reason and each.override for each in decisions)
    assert decisions[0].rejected[0].reason in ("slower", "does_not_fit")


def test_placement_is_deterministic() -> None:
    assert told_text(PPO).placement == told_text(PPO).placement


SMALL = (
    GRPO.replace("recompute: full", "recompute: none")
    .replace("backend: fsdp", "backend: deepspeed")
    .replace("update: {loss: ppo}", "update: {loss: ppo, micro_batch_tokens: 16384}")
)
"""Nothing that placement may choose makes it fit on 16 H100."""
HOST_REWARD = 'reward: {function: "flowrl:overlong", args: {max_tokens: 2048, buffer_tokens: 512, penalty: 1.0}}'


def edits_of(told: Told) -> list[str]:
    (diagnostic,) = [each for each in told.placement.diagnostics if each.code == "FR0501"]
    assert diagnostic.exit_code == 4
    rows = diagnostic.helps[0].text.splitlines()[1:]
    return [re.split(r"  +", row.strip())[1] for row in rows]


def test_every_edit_that_is_named_fits() -> None:
    told = told_text(with_placement(SMALL, "colocated"))
    assert not told.placement.fits
    edits = edits_of(told)
    assert "roles.actor_train.engine.recompute: full" in edits
    for edit in edits:
        key, _, value = edit.rpartition(": ")
        update = f"update: {{loss: ppo, micro_batch_tokens: {value}}}"
        edited = {
            "roles.actor_train.engine.recompute": SMALL.replace("recompute: none", "recompute: full"),
            "roles.actor_train.update.micro_batch_tokens": SMALL.replace(
                "update: {loss: ppo, micro_batch_tokens: 16384}", update
            ),
            "cluster": SMALL.replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", value),
            "placement": SMALL,
        }
        assert told_text(with_placement(edited[key], "auto" if key == "placement" else "colocated")).placement.fits


@pytest.mark.parametrize(
    ("model", "cluster", "enough"),
    [("Qwen/Qwen2.5-7B", "1xH100-80G", "1x2xH100-80G"), ("Qwen/Qwen2.5-72B", "8xH100-80G", "3x8xH100-80G")],
)
def test_the_number_of_devices_that_is_enough_is_found_and_a_node_less_is_not(
    model: str, cluster: str, enough: str
) -> None:
    """A node is filled before another is added, and what is shown can be pasted: a shorthand has no key `nodes`."""
    flow = GRPO.replace("Qwen/Qwen2.5-7B", model).replace("reward: {model: rm, backend: fsdp}", HOST_REWARD)
    assert f"cluster: {enough}" in edits_of(told_text(flow, cluster))
    assert told_text(flow, enough).placement.fits
    nodes, each, name = enough.split("x")
    less = f"{int(nodes) - 1}x{each}x{name}" if int(nodes) > 1 else f"1x{int(each) // 2}x{name}"
    assert not told_text(flow, less).placement.fits


def test_shorter_responses_are_named_when_no_other_edit_of_a_role_is_enough() -> None:
    """A micro-batch holds one sample at least, so a longer sample than memory holds has no other cure."""

    def of(tokens: str) -> Told:
        return told_text(GRPO.replace("max_response_tokens: 2048", f"max_response_tokens: {tokens}"), "4xL40S")

    key, _, value = edits_of(of("20000"))[0].partition(": ")
    assert key == "roles.actor_infer.generate.max_response_tokens"
    assert of(value).placement.fits


def test_the_ledger_of_a_diagnostic_adds_up() -> None:
    (diagnostic,) = told_text(with_placement(SMALL, "colocated")).placement.diagnostics
    heading, *rows = diagnostic.notes[0].splitlines()
    need = float(re.search(r"need ([\d.]+) GiB", heading)[1])  # type: ignore[index]
    parts = [float(re.search(r"\s([\d,]+\.\d)(?:\s|$)", row)[1].replace(",", "")) for row in rows]  # type: ignore[index]
    assert sum(parts) == pytest.approx(need, abs=0.05 * len(parts))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("{pools: {a: {gpus: 9, roles: [actor_infer]}, b: {gpus: 8, roles: [actor_train]}}}", "FR0502"),
        ("{pools: {a: {gpus: 6, roles: [actor_infer], layouts: {actor_infer: {tp: 4}}}}}", "FR0503"),
        ("{pools: {a: {gpus: 8, roles: [actor_infer]}, b: {gpus: 8, roles: [actor_infer]}}}", "FR0504"),
        ("{pools: {a: {gpus: 8, roles: [actor_infre]}}}", "FR0505"),
        ("{pools: {a: {gpus: 8, roles: [actor_infer], layouts: {actor_train: {tp: 1}}}}}", "FR0505"),
        ("{pin: {actor_infer: nowhere}}", "FR0506"),
        ("{pools: {a: {gpus: 8, roles: [advantage]}}}", "FR0509"),
        ("{pools: {a: {gpus: 8, roles: [actor_infer], layouts: {actor_infer: {cp: 2}}}}}", "FR0410"),
        ("{pools: {a: {gpus: 8, roles: [actor_infer], layouts: {actor_infer: {tp: 8}}}}}", "FR0411"),
    ],
)
def test_faults(section: str, expected: str) -> None:
    assert code(with_placement(GRPO, section)) == expected


def test_more_stages_than_layers_are_told_by_the_stages_that_there_may_be() -> None:
    section = "{pools: {a: {gpus: 16, roles: [actor_infer, actor_train], layouts: {actor_infer: {pp: 64}}}}}"
    with pytest.raises(FlowError) as caught:
        told_text(with_placement(GRPO, section), "16xH100-80G")
    (fault,) = caught.value.diagnostics
    assert [each.text for each in fault.helps] == ["sizes of pp that cut this model: 1 to 28"]


def test_too_many_slots_of_a_cpu_can_be_declared() -> None:
    flow = GRPO.replace("vllm", "hf").replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", "1xcpu")
    section = "{pools: {a: {gpus: 1, roles: [actor_infer]}, b: {gpus: 2, roles: [actor_train, reward]}}}"
    with pytest.raises(FlowError) as caught:
        told_text(with_placement(flow, section))
    (fault,) = caught.value.diagnostics
    assert (fault.code, "gpus_per_node: 3" in fault.helps[0].text) == ("FR0502", True)


def test_what_an_engine_would_refuse_is_told_before_it_starts() -> None:
    """vLLM has CPU kernels for some head sizes, and takes no sample longer than the model's positions."""
    small = "architecture: qwen2, tokenizer: characters, hidden_size: 192, layers: 2, heads: 4, ffn_size: 384"
    flow = GRPO.replace("source: Qwen/Qwen2.5-7B}", f"source: {{{small}, max_positions: 4096}}}}")
    assert code(flow, "1xcpu") == "FR0853"
    told_text(flow)
    told_text(flow.replace("backend: vllm", "backend: hf"), "1xcpu")
    assert code(flow.replace("max_positions: 4096", "max_positions: 3071")) == "FR0840"
    told_text(flow.replace("max_positions: 4096", "max_positions: 3072"))


def test_faults_are_told_together() -> None:
    section = "{pools: {a: {gpus: 20, roles: [actor_infre, reward]}, host: {gpus: 1, roles: [reward]}}}"
    with pytest.raises(FlowError) as caught:
        told_text(with_placement(GRPO, section))
    assert {each.code for each in caught.value.diagnostics} == {"FR0502", "FR0504", "FR0505", "FR0516"}


def test_groups_of_different_devices() -> None:
    mixed = "{groups: {fast: {gpu: H100-80G, gpus_per_node: 8}, cheap: {gpu: L40S, nodes: 2, gpus_per_node: 8}}}"
    flow = GRPO.replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", mixed)
    told = told_text(flow)
    assert {pool.device for pool in told.placement.pools if pool.devices} <= {"H100-80G", "L40S"}
    section = (
        "{pools: {r: {gpus: 16, group: cheap, roles: [actor_infer]}, t: {gpus: 8, group: fast, roles: [actor_train]}}}"
    )
    found = pools(told_text(with_placement(flow, section)))
    assert (found["r"].device, found["t"].device) == ("L40S", "H100-80G")
    assert found["r"].devices[0] == "cheap/node0/0"


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 8), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_pools_get_devices_of_their_own(nodes: int, per_node: int, wanted: list[int]) -> None:
    group = node_group(DEVICE_CARDS["H100-80G"], "nodes", nodes, per_node)
    cluster = Cluster(name="test", groups=(group,))
    while sum(wanted) > nodes * per_node:
        wanted = wanted[:-1]
    taken = allocate(cluster, [("nodes", count) for count in wanted])
    assert [len(devices) for devices in taken] == wanted
    everything = list(chain(*taken))
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(chain(*device_names(cluster, group)))


def test_a_pool_that_fits_a_node_is_not_spread() -> None:
    cluster = lower_cluster("16xH100-80G")
    first, second = allocate(cluster, [("nodes", 6), ("nodes", 8)])
    assert {device.split("/")[0] for device in first} == {"node0"}
    assert {device.split("/")[0] for device in second} == {"node1"}


def test_placing_a_thousand_devices_is_quick() -> None:
    flow = GRPO.replace("nodes: 2", "nodes: 128").replace("prompts: 128", "prompts: 2048")
    told = told_text(flow)
    assert told.placement.fits
    assert place(told.graph, told.cluster, told.request, told.shapes) == told.placement
