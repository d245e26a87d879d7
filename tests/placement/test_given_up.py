"""What FR0501 proposes where a flow gives up what saves memory: keys at the values of published reports."""

from __future__ import annotations

import pytest

from tests.placement.flows import PPO
from tests.placement.told import told_text

ZERO_2 = PPO.replace("backend: fsdp", "backend: deepspeed").replace("engine: {recompute: full}", "engine: {ENGINE}")
SMALL = "{gpu: A40, nodes: 1, gpus_per_node: 4}"


def helps(flow: str, cluster: str) -> str:
    placed = told_text(flow.replace("{gpu: H100-80G, nodes: 2, gpus_per_node: 8}", cluster)).placement
    (fault,) = [each for each in placed.diagnostics if each.code == "FR0501"]
    return "\n".join(each.text for each in fault.helps)


def test_shards_of_all_roles_that_have_none() -> None:
    """OpenRLHF issue 858: four models of 8B under ZeRO-2 on all of four A40; its maintainers answer with ZeRO-3. With a
    device for each of three pools it would fit."""
    flow = ZERO_2.replace("ENGINE", "recompute: full, zero_stage: 2, offload: true, optimizer_offload: 1.0")
    flow = flow.replace(
        "reference: {model: policy", "reference: {model: policy, engine: {zero_stage: 2, offload: false}"
    )
    flow = flow.replace("update: {loss: ppo}", "update: {loss: ppo, micro_batch_tokens: 3072}")
    assert "zero_stage: 3" in helps(f"{flow}placement: colocated\n", SMALL)


def test_parts_in_place_of_a_broadcast() -> None:
    """verl issue 1517: a state dict that is whole on a device before it is cut."""
    flow = PPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B")
    flow = flow.replace(
        "engine: {recompute: full}, update: {loss: ppo}", "engine: {load: broadcast}, update: {loss: ppo}"
    )
    assert "engine.load: parts" in helps(flow, "{gpu: H100-80G, nodes: 8, gpus_per_node: 8}")


def test_offload_of_all_trainers_that_stay() -> None:
    """siiRL's figure: PPO of 72B on 32 cards, actor and critic resident."""
    flow = PPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-72B").replace(
        "recompute: full", "recompute: full, offload: false"
    )
    for loss in ("ppo", "value"):
        flow = flow.replace(f"{{loss: {loss}}}", f"{{loss: {loss}, micro_batch_tokens: 3072}}")
    flow = flow.replace("reference: {model: policy,", "reference: {model: policy, micro_batch_tokens: 3072,")
    assert "engine.offload: true" in helps(
        f"{flow}placement: colocated\n", "{gpu: H100-80G, nodes: 4, gpus_per_node: 8}"
    )


@pytest.mark.parametrize("key", ["offload", "load", "zero_stage"])
def test_nothing_is_proposed_that_was_not_given_up(key: str) -> None:
    flow = PPO.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-72B")
    assert f"engine.{key}" not in helps(flow, "{gpu: H100-80G, nodes: 1, gpus_per_node: 4}")
