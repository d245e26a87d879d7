"""Models that no node holds are placed in mode auto on the GPUs that published recipes take for them."""

from __future__ import annotations

import pytest

from flowrl.machine.models import CARDS
from flowrl.machine.traits import TRAITS, layout_fault
from tests.placement.test_choices import LARGE, MEGATRON
from tests.placement.told import told_text


@pytest.mark.parametrize("model", LARGE)
def test_a_model_that_no_node_holds_is_placed(model: str) -> None:
    flow = MEGATRON.replace("Qwen/Qwen2.5-7B", model).replace("prompts: 128", "prompts: 512")
    told = told_text(flow, LARGE[model])
    assert told.placement.fits
    assert all(each.peak_bytes <= each.limit_bytes for each in told.placement.memory)
    placed = {entry.role: (entry, pool) for pool in told.placement.pools for entry in pool.roles if pool.devices}
    for role in ("actor_train", "actor_infer"):
        entry, pool = placed[role]
        layout = entry.layout
        assert layout.devices == len(pool.devices)
        assert layout.tp * layout.pp * layout.ep > 8
        assert layout_fault(TRAITS[told.graph.role(role).backend or ""], CARDS[model], layout.tp, layout.pp) is None
    assert {f"layout of {role}" for role in placed} <= {each.what for each in told.placement.decisions}
    trainer = next(each for each in told.placement.decisions if each.what == "layout of actor_train")
    assert "of other layouts" in trainer.text
    assert any(each.reason == "does_not_fit" for each in trainer.rejected)
