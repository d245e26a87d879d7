"""Numbers that are slips of the hand are refused where they stand, before anything is counted with them."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.spec import loads
from tests.placement.flows import GRPO


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
