"""Numbers that are slips of the hand are refused where they stand, before anything is counted with them."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.spec import loads
from tests.placement.flows import GRPO, PPO


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("updates: 2", "updates: 1000000"),
        ("updates: 2", "epochs: 1000000"),
        ("update: {loss: ppo}", "update: {loss: ppo, epochs: 1000000}"),
        ("gpus_per_node: 8}", "gpus_per_node: 8, links: {node_bytes_per_second: 1.0e-300}}"),
        ("gpus_per_node: 8}", "gpus_per_node: 8, links: {network_bytes_per_second: 0.5}}"),
    ],
)
def test_what_would_not_end_or_not_be_finite_is_refused(old: str, new: str) -> None:
    with pytest.raises(FlowError) as caught:
        loads(GRPO.replace(old, new))
    assert [each.code for each in caught.value.diagnostics] == ["FR0104"]


@pytest.mark.parametrize(
    ("updates", "epochs", "fits"), [(64, 8, True), (64, 9, False), (512, 1, True), (1024, 1, False), (6, 100, False)]
)
def test_updates_times_epochs_of_all_trainers_have_a_bound(updates: int, epochs: int, fits: bool) -> None:
    """PPO has two trainers: of 1,024 updates each may make 512."""
    written = PPO.replace("prompts: 128", "prompts: 3072").replace(
        "updates: 4", f"updates: {updates}, epochs: {epochs}"
    )
    assert codes(written) == ([] if fits else ["FR0034"])


def test_updates_of_a_trainer_count_in_the_place_of_the_steps() -> None:
    written = GRPO.replace("update: {loss: ppo}", "update: {loss: ppo, updates: 128, epochs: 8}")
    assert codes(written) == []
    assert codes(written.replace("epochs: 8", "epochs: 9")) == ["FR0034"]


def codes(flow: str) -> list[str]:
    try:
        loads(flow)
    except FlowError as error:
        return [each.code for each in error.diagnostics]
    return []
