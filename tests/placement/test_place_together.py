"""Roles that fit on a pool alone and not together: one is cut further; nothing is refused that a layout would fit."""

from __future__ import annotations

import re

import pytest

from flowrl.diag.diagnostic import FlowError
from tests.placement.flows import GRPO, with_placement
from tests.placement.told import Told, told_text

TIGHT = (
    GRPO.replace("backend: fsdp, engine: {recompute: full}", "backend: megatron, engine: {cross_entropy: kernel}")
    .replace(
        "reward: {model: rm, backend: fsdp}",
        'reward: {function: "flowrl:overlong", args: {max_tokens: 2048, buffer_tokens: 512}}',
    )
    .replace("update: {loss: ppo}", "update: {loss: ppo, micro_batch_tokens: 16384}")
)
"""Beside what vLLM leaves behind when it sleeps, dp8 is some 2 GiB over; alone it fits."""


def fits(told: Told) -> bool:
    return all(entry.peak_bytes <= entry.limit_bytes for entry in told.placement.memory)


def cut(told: Told, role: str) -> int:
    entry = next(each for pool in told.placement.pools for each in pool.roles if each.role == role)
    return entry.layout.tp * entry.layout.pp


def with_tp(size: int) -> Told:
    layouts = f"layouts: {{actor_train: {{tp: {size}}}}}"
    section = f"{{pools: {{all: {{gpus: 8, roles: [actor_train, actor_infer], {layouts}}}}}}}"
    return told_text(with_placement(TIGHT, section), "8xH100-80G")


def test_a_trainer_is_cut_as_far_as_it_must_be_beside_an_engine() -> None:
    fitting = [size for size in (1, 2, 4) if fits(with_tp(size))]
    assert fitting == [2, 4]
    told = told_text(with_placement(TIGHT, "colocated"), "8xH100-80G")
    assert fits(told)
    assert cut(told, "actor_train") in fitting


def test_colocation_is_not_passed_over_for_a_split_that_is_slower() -> None:
    told = told_text(with_placement(TIGHT, "auto"), "8xH100-80G")
    assert fits(told)
    assert told.placement.decisions[0].chosen == "colocated: 8 devices"


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_copies_of_states_are_whole_on_every_pool_that_is_chosen(backend: str) -> None:
    flow = GRPO.replace("backend: fsdp, engine: {recompute: full}", f"backend: {backend}, engine: {{shard_devices: 3}}")
    flow = flow.replace("prompts: 128", "prompts: 120").replace("source: Qwen/Qwen2.5-7B", "source: Qwen/Qwen2.5-0.5B")
    told = told_text(flow, "8xH100-80G")
    (layout,) = (each.layout for pool in told.placement.pools for each in pool.roles if each.role == "actor_train")
    assert layout.dp % 3 == 0


def test_copies_that_no_pool_could_hold_are_refused() -> None:
    flow = GRPO.replace("engine: {recompute: full}", "engine: {shard_devices: 3}")
    with pytest.raises(FlowError) as caught:
        told_text(with_placement(flow, "colocated"), "8xH100-80G")
    assert [each.code for each in caught.value.diagnostics] == ["FR0450"]


def test_a_model_that_needs_engines_over_several_nodes_is_told_a_cluster_that_holds_it() -> None:
    flow = TIGHT.replace("policy: {source: Qwen/Qwen2.5-7B}", "policy: {source: meta-llama/Llama-3.1-405B}")
    (fault,) = (each for each in told_text(flow, "8xH100-80G").placement.diagnostics if each.code == "FR0501")
    (named,) = re.findall(r"cluster: (\S+)", fault.helps[0].text)
    assert told_text(flow, named).placement.fits
