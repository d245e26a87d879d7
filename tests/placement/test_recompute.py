"""Recomputation of activations as a decision: what fits and is fastest, what the flow says, what is told of it."""

from __future__ import annotations

import re
from itertools import product

import pytest

from flowrl.placement.time.step import step_seconds
from flowrl.plan.plan import Decision
from tests.placement.flows import GRPO, PPO, with_placement
from tests.placement.told import Told, told_text

ASKED = ", engine: {recompute: full}"
SIZE = ", micro_batch_tokens: 16384"
"""As it is by default, and not to be chosen."""
OPEN_GRPO, OPEN_PPO = (
    re.sub(r"update: {loss: (\w+)}", rf"update: {{loss: \1{SIZE}}}", flow.replace(ASKED, "")) for flow in (GRPO, PPO)
)
FEW = OPEN_GRPO.replace("backend: vllm,", "backend: vllm, engine: {kv_fraction: 0.5},").replace(
    "prompts: 128", "prompts: 16"
)
"""On 16 H200 either fits; keeping activations costs moves of state."""


def recompute(told: Told) -> dict[str, str]:
    return {entry.role: entry.recompute for pool in told.placement.pools for entry in pool.roles if pool.devices}


def decision(told: Told, role: str = "actor_train") -> Decision:
    return next(each for each in told.placement.decisions if each.what == f"recompute of {role}")


def seconds(told: Told) -> float:
    return step_seconds(told.graph, told.placement.pools, told.shapes, told.cluster, told.request)


def written(flow: str, values: tuple[str, ...]) -> str:
    """An open flow with a value for each of its trainers, in the order they stand."""
    for name, value in zip((f"loss: ppo{SIZE}", f"loss: value{SIZE}"), values, strict=False):
        flow = flow.replace(f"update: {{{name}}}", f"engine: {{recompute: {value}}}, update: {{{name}}}")
    return flow


def test_a_trainer_that_does_not_fit_otherwise_recomputes() -> None:
    told = told_text(with_placement(OPEN_PPO, "colocated"))
    assert told.placement.fits
    assert recompute(told) == {"actor_train": "full", "actor_infer": "none", "critic": "full", "reference": "none"}
    for role in ("actor_train", "critic"):
        found = decision(told, role)
        assert (found.chosen, found.reason) == ("full", "needed_to_fit")
        assert found.override == f"roles.{role}.engine.recompute"
        (passed,) = found.rejected
        assert (passed.option, passed.reason) == ("none", "does_not_fit")
        assert f"of 79.6 GiB in {role}.update" in (passed.delta or "")


def test_a_trainer_with_room_keeps_its_activations() -> None:
    flow = OPEN_GRPO.replace(SIZE, ", micro_batch_tokens: 4096")
    told = told_text(with_placement(flow, "colocated"))
    found = decision(told)
    assert (found.chosen, found.reason) == ("none", "fits")
    asked = told_text(with_placement(flow.replace("update: {", "engine: {recompute: full}, update: {"), "colocated"))
    slower = seconds(asked) / seconds(told) - 1
    assert slower > 0
    assert [(each.option, each.reason, each.delta) for each in found.rejected] == [
        ("full", "slower", f"{slower:+.0%} step time")
    ]


def test_a_flow_that_saves_devices_is_told_the_seconds_of_the_other_choice() -> None:
    """Recomputing takes no more devices, so their number says nothing."""
    pools = "{rollout: {gpus: 8, roles: [actor_infer]}, train: {gpus: 8, roles: [actor_train]}}"
    flow = OPEN_GRPO.replace(SIZE, ", micro_batch_tokens: 4096")
    flow += f"placement: {{objective: gpus, pools: {pools}}}\n"
    told = told_text(flow)
    asked = told_text(flow.replace("update: {", "engine: {recompute: full}, update: {"))
    slower = seconds(asked) / seconds(told) - 1
    assert slower > 0
    assert [(each.option, each.reason, each.delta) for each in decision(told).rejected] == [
        ("full", "slower", f"{slower:+.0%} step time")
    ]


@pytest.mark.parametrize(
    ("flow", "trainers", "cluster"),
    [(OPEN_PPO, 2, "16xH100-80G"), (OPEN_PPO, 2, "16xH200"), (OPEN_GRPO, 1, "8xB200"), (FEW, 1, "16xH200")],
)
@pytest.mark.parametrize("mode", ["colocated", "auto"])
def test_the_choice_is_the_fastest_that_fits(flow: str, trainers: int, cluster: str, mode: str) -> None:
    """Brute force: every way of writing it into the flow, each placed on its own. Where a value is forced that does not
    fit, placement cuts what it cuts nowhere else (docs/adr/0085): those are left out."""
    ways = [written(flow, values) for values in product(("none", "full"), repeat=trainers)]
    every = [told_text(with_placement(way, mode), cluster) for way in ways]
    told = told_text(with_placement(flow, mode), cluster)
    fitting = [each for each in every if each.placement.fits and plain(each)]
    assert fitting
    assert told.placement.fits
    assert seconds(told) == min(map(seconds, fitting))


def plain(told: Told) -> bool:
    """Whether its trainers are cut by data alone."""
    entries = [each for pool in told.placement.pools for each in pool.roles if told.graph.role(each.role).trainable]
    return all(each.layout.tp * each.layout.cp == 1 for each in entries)


def test_recomputing_is_taken_where_it_saves_more_time_than_it_takes() -> None:
    told = told_text(with_placement(FEW, "colocated"), "16xH200")
    found = decision(told)
    assert (found.chosen, found.reason, found.rejected[0].reason) == ("full", "fastest", "slower")
    assert told_text(with_placement(written(FEW, ("none",)), "colocated"), "16xH200").placement.fits


@pytest.mark.parametrize("value", ["none", "selective", "full"])
def test_a_written_value_is_obeyed(value: str) -> None:
    told = told_text(with_placement(written(OPEN_GRPO, (value,)), "colocated"))
    found = decision(told)
    assert recompute(told)["actor_train"] == value == found.chosen
    assert (found.reason, found.rejected) == ("asked_for", ())


def test_one_written_value_leaves_the_other_open() -> None:
    told = told_text(with_placement(written(OPEN_PPO, ("full",)), "colocated"))
    assert [decision(told, role).reason for role in ("actor_train", "critic")] == ["asked_for", "needed_to_fit"]


@pytest.mark.parametrize("value", [None, "full"])
def test_no_edit_proposes_what_is_tried_already(value: str | None) -> None:
    """A flow that forbids it is told to allow it: test_place.py and the golden FR0501-asked."""
    flow = OPEN_GRPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B")
    told = told_text(with_placement(flow if value is None else written(flow, (value,)), "colocated"), "8xH100-80G")
    (fault,) = told.placement.diagnostics
    assert "engine.recompute" not in fault.helps[0].text
    assert decision(told).reason == ("asked_for" if value else "nearest_to_fitting")


def test_what_is_decided_is_decided_again() -> None:
    assert told_text(OPEN_PPO).placement == told_text(OPEN_PPO).placement
