"""The menu of a role on a site: what is on it, in which order, what is left out and what that costs."""

from __future__ import annotations

from itertools import product

import pytest

from flowrl.compiler.lower.cluster import lower_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.placement.choices import WIDEST, Choices, recomputations
from flowrl.placement.cost.bound import busy_seconds
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.cuts import Ground, cuts, searched_axes
from flowrl.placement.request import LayoutRequest
from flowrl.placement.shapes import shapes_of
from flowrl.plan.plan import Layout, Pool, RolePlacement
from flowrl.spec import loads
from tests.placement.flows import GRPO, PPO

OPEN = GRPO.replace(", engine: {recompute: full}", "")
OPEN_PPO = PPO.replace("engine: {recompute: full}, ", "")
MEGATRON = OPEN.replace("policy, backend: fsdp", "policy, backend: megatron")
LARGE = {
    "Qwen/Qwen3-235B-A22B": "32x8xH100-80G",
    "meta-llama/Llama-3.1-405B": "64x8xH100-80G",
    "deepseek-ai/DeepSeek-V3": "128x8xH100-80G",
}


def choices_of(flow: str, cluster: str) -> Choices:
    spec = loads(flow, folder=".")
    graph, _ = run_passes(lower_stage(spec, 0))
    return Choices(RoleCosts(Workload(graph, shapes_of(graph, "."), lower_placement(spec, 0)), lower_cluster(cluster)))


def site_of(choices: Choices, count: int | None = None) -> Site:
    cluster = choices.costs.cluster
    return choices.costs.site_of(cluster.groups[0].name, count or cluster.device_count)


def large(model: str) -> Choices:
    flow = MEGATRON.replace("Qwen/Qwen2.5-7B", model).replace("prompts: 128", "prompts: 512")
    return choices_of(flow, LARGE[model])


def alone(choices: Choices, entry: RolePlacement, site: Site) -> float:
    """Seconds of its ops in a step, if it fits with the devices to itself."""
    cost = choices.costs.role_cost(entry, site)
    return busy_seconds(choices.costs, cost) if choices.costs.fits((cost,), site) else float("inf")


def fastest(choices: Choices, role: str, site: Site) -> tuple[float, RolePlacement]:
    entries = [each for each in choices.of(role, site) if not each.offloaded]
    return min(((alone(choices, each, site), each) for each in entries), key=lambda each: each[0])


# -- layouts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", LARGE)
def test_large_models_have_a_layout_that_fits_in_auto(model: str) -> None:
    choices = large(model)
    site = site_of(choices)
    for role in ("actor_train", "actor_infer"):
        seconds, entry = fastest(choices, role, site)
        assert seconds < float("inf")
        assert len(choices.menu(role, site).layouts) <= 16
        assert entry.layout.devices == site.count


def test_engines_of_models_that_no_node_holds_stand_on_several() -> None:
    llama, deepseek = large("meta-llama/Llama-3.1-405B"), large("deepseek-ai/DeepSeek-V3")
    assert Layout(dp=32, tp=8, pp=2) in llama.menu("actor_infer", site_of(llama)).layouts
    found = deepseek.menu("actor_infer", site_of(deepseek)).layouts
    assert Layout(dp=32, tp=8, pp=4) in found
    assert any(each.ep > each.tp for each in found)
    assert Layout(dp=16, tp=4, pp=4, ep=8) in (
        large("Qwen/Qwen3-235B-A22B").menu("actor_train", site_of(large("Qwen/Qwen3-235B-A22B"))).layouts
    )


@pytest.mark.parametrize(
    ("flow", "cluster", "role"),
    [
        (MEGATRON.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B"), "2x8xH100-80G", "actor_train"),
        (MEGATRON.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B"), "4x8xH100-80G", "actor_train"),
        (MEGATRON.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"), "8x8xA100-80G", "actor_train"),
        (MEGATRON.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"), "8x8xA100-80G", "actor_infer"),
        (OPEN, "3x8xL40S", "actor_infer"),
        (OPEN.replace("Qwen2.5-7B", "Qwen3-8B").replace("prompts: 128", "prompts: 2"), "8xH100-80G", "actor_infer"),
    ],
)
def test_nothing_that_is_left_out_is_much_faster(flow: str, cluster: str, role: str) -> None:
    """Every legal layout with every recomputation and four sizes of micro-batches, each alone, against the menu."""
    choices = choices_of(flow, cluster)
    site, here = site_of(choices), choices.graph.role(role)
    where = Ground(site.count, 8, 8, 8)
    legal = cuts(here, choices.work.shapes[here.model or ""], where, searched_axes(here))
    ways = product(legal, recomputations(here), (None, 4096, 8192, 32768))
    every = (RolePlacement(role=role, layout=cut, recompute=how, micro_batch_tokens=size) for cut, how, size in ways)
    best = min(alone(choices, each, site) for each in every)
    assert best <= fastest(choices, role, site)[0] <= 1.02 * best


def test_what_is_left_out_as_too_large_does_not_fit() -> None:
    choices = large("meta-llama/Llama-3.1-405B")
    site = site_of(choices)
    menu = choices.menu("actor_train", site)
    assert menu.over
    for layout, how, size in product(menu.over[-6:], ("none", "selective", "full"), (None, 4096, 8192)):
        entry = RolePlacement(role="actor_train", layout=layout, recompute=how, micro_batch_tokens=size)
        assert alone(choices, entry, site) == float("inf")


def test_a_copy_takes_at_most_four_times_the_devices_of_the_first_that_fits() -> None:
    choices = choices_of(MEGATRON.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"), "32x8xH100-80G")
    copies = [each.tp * each.pp * each.cp for each in choices.menu("actor_train", site_of(choices)).layouts]
    assert copies == sorted(copies)
    assert copies[-1] == WIDEST * copies[0]
    stays = MEGATRON.replace("backend: vllm", "backend: vllm, engine: {offload: false}")
    beside = choices_of(stays.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"), "32x8xH100-80G")
    wider = [each.tp * each.pp * each.cp for each in beside.menu("actor_train", site_of(beside)).layouts]
    assert (wider[0], wider[-1]) == (copies[0], 16 * copies[0])


def test_context_is_cut_where_a_sequence_does_not_fit_and_nowhere_else() -> None:
    def menu(tokens: int) -> tuple[Layout, ...]:
        flow = OPEN.replace("max_response_tokens: 2048", f"max_response_tokens: {tokens}")
        choices = choices_of(flow, "4x8xH100-80G")
        return choices.menu("actor_train", site_of(choices)).layouts

    assert menu(2048) == (Layout(dp=32),)
    assert menu(16384) == (Layout(dp=32),)
    assert all(each.cp > 1 for each in menu(126976))


def test_ranks_without_a_row_are_left_out_where_another_cut_has_none() -> None:
    flow = MEGATRON.replace("prompts: 128, samples_per_prompt: 8, updates: 2", "prompts: 16, samples_per_prompt: 2")
    choices = choices_of(flow, "8x8xH100-80G")
    menu = choices.menu("actor_train", site_of(choices))
    assert {each.dp for each in menu.layouts} <= {1, 2, 4, 8, 16, 32}
    assert menu.starved > 0
    assert "more ranks than there are rows" in menu.told()


def test_a_layout_that_is_asked_for_is_the_only_one() -> None:
    choices = choices_of(MEGATRON, "2x8xH100-80G")
    site = site_of(choices)
    found = choices.of("actor_train", site, LayoutRequest(tp=2, pp=4))
    assert {each.layout for each in found} == {Layout(dp=2, tp=2, pp=4)}
    assert choices.of("actor_train", site, LayoutRequest(tp=3)) == ()


def test_copies_of_states_that_no_layout_holds_leave_no_choice() -> None:
    """Nine devices do not hold copies of eight; sixteen hold two."""
    flow = OPEN.replace("backend: fsdp, update", "backend: fsdp, engine: {shard_devices: 8}, update")
    choices = choices_of(flow, "2x8xH100-80G")
    assert choices.of("actor_train", site_of(choices, 9)) == ()
    assert {each.layout for each in choices.of("actor_train", site_of(choices, 16))} == {Layout(dp=16)}


def test_where_nothing_fits_the_nearest_is_tried() -> None:
    flow = MEGATRON.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-405B")
    choices = choices_of(flow, "1x8xL40S")
    menu = choices.menu("actor_train", site_of(choices))
    assert (menu.layouts, menu.fits) == ((Layout(dp=1, tp=8),), False)


def test_on_a_cpu_the_least_cut_that_fits_is_taken_with_micro_batches_as_written() -> None:
    flow = OPEN.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B").replace(
        "cluster: {gpu: H100-80G, nodes: 2, ", "cluster: {gpu: cpu, "
    )
    choices = choices_of(flow.replace("gpus_per_node: 8", "gpus_per_node: 2"), "2xcpu")
    site = site_of(choices)
    for role in ("actor_train", "actor_infer"):
        found = choices.of(role, site)
        assert {each.layout for each in found} == {Layout(dp=2)}
        assert {(each.offloaded, each.micro_batch_tokens) for each in found} == {(False, None)}


def test_a_site_without_names_has_the_same_menu() -> None:
    choices = choices_of(MEGATRON, "3x4xL40S")
    for first, count in product((0, 2, 4), (2, 4, 6, 8)):
        block = choices.costs.site_of(choices.costs.cluster.groups[0].name, count, first)
        named = choices.costs.site(Pool(name="p", devices=block.pool.devices, device="L40S", roles=()))
        assert named.even == block.even
        assert choices.menu("actor_infer", named) == choices.menu("actor_infer", block)


# -- order and ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", [OPEN_PPO, MEGATRON])
def test_the_first_choice_changes_least(flow: str) -> None:
    choices = choices_of(flow, "2x8xH100-80G")
    site = site_of(choices)
    for role in ("actor_train", "actor_infer", "reference" if flow is OPEN_PPO else "reward"):
        found = choices.of(role, site)
        assert len(set(map(repr, found))) == len(found)
        first = found[0]
        assert (first.recompute, first.micro_batch_tokens, first.offloaded) == ("none", None, False)
        order = [choices.menu(role, site).layouts.index(each.layout) for each in found]
        assert order == sorted(order)
        for layout in choices.menu(role, site).layouts:
            ways = [recomputations(choices.graph.role(role)).index(e.recompute) for e in found if e.layout == layout]
            assert ways == sorted(ways)


def test_nothing_is_squeezed_where_half_of_the_device_is_free() -> None:
    flow = OPEN.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B").replace(
        "prompts: 128, samples_per_prompt: 8", "prompts: 32, samples_per_prompt: 2"
    )
    choices = choices_of(flow, "8xB200")
    assert {each.recompute for each in choices.of("actor_train", site_of(choices))} == {"none"}
    tight = choices_of(OPEN, "8xA100-40G")
    assert {each.recompute for each in tight.of("actor_train", site_of(tight))} == {"none", "full"}


def test_what_the_flow_says_is_not_a_choice() -> None:
    flow = OPEN.replace("update: {loss: ppo}", "engine: {recompute: selective, offload: true}, update: {loss: ppo}")
    choices = choices_of(flow, "2x8xH100-80G")
    found = choices.of("actor_train", site_of(choices))
    assert {(each.recompute, each.offloaded) for each in found} == {("selective", True)}


def test_passed_over_layouts_say_how_they_compare() -> None:
    choices = choices_of(MEGATRON.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"), "8x8xH100-80G")
    site = site_of(choices)
    seconds, entry = fastest(choices, "actor_train", site)
    told = choices.passed_over("actor_train", site, entry.layout)
    assert 3 < len(told) <= 6
    assert {each.reason for each in told} == {"does_not_fit", "slower"}
    assert all(each.delta and "GiB" in each.delta for each in told if each.reason == "does_not_fit")
    slower = [float((each.delta or "").split("%")[0]) for each in told if each.reason == "slower"]
    assert slower == sorted(slower)
    assert slower[0] >= 0
    assert seconds < float("inf")
