"""Training memory of whole pools: pipeline stages have a ledger each, context parallelism cuts the longest sequence."""

from __future__ import annotations

import pytest

from flowrl.plan.plan import Memory
from tests.placement.flows import GRPO, with_placement
from tests.placement.told import told_text


def test_stages_of_a_pipeline_have_their_own_ledger() -> None:
    """28 layers on 3 stages: 9, 10 and 9; the embedding on the first, head, last norm and logits on the last."""
    layouts = "layouts: {actor_train: {pp: 3}}"
    flow = GRPO.replace("backend: fsdp, engine", "backend: megatron, engine").replace("nodes: 2", "nodes: 3")
    section = (
        f"{{pools: {{a: {{gpus: 8, roles: [actor_infer]}}, b: {{gpus: 6, roles: [actor_train, reward], {layouts}}}}}}}"
    )
    told = told_text(with_placement(flow, section))
    update = [entry for entry in told.placement.memory if entry.phase == "actor_train.update"]
    assert [entry.device for entry in update] == ["node1/0 .. node1/1", "node1/2 .. node1/3", "node1/4 .. node1/5"]
    shape = told.shapes["policy"]
    weights = [_weights(e) for e in update]
    layer, ends = shape.layer_parameters, shape.embedding_parameters
    assert weights == [
        pytest.approx(2 * (9 * layer + ends)),
        pytest.approx(2 * 10 * layer),
        pytest.approx(2 * (9 * layer + ends + shape.hidden)),
    ]
    assert [_weights(e) for e in told.placement.memory if e.phase == "load actor_train"] == weights


def _weights(entry: Memory) -> float:
    return next(line.value for line in entry.lines if line.role == "actor_train" and line.what == "weights")


def test_context_parallelism_cuts_a_longest_sequence() -> None:
    """A sequence of 21,024 tokens on cp 4: 5,256 on each device, and as many are a micro-batch at least."""
    flow = GRPO.replace("update: {loss: ppo", "update: {micro_batch_tokens: 512, loss: ppo")
    flow = flow.replace("max_response_tokens: 2048", "max_response_tokens: 20000")
    section = "{pools: {a: {gpus: 8, roles: [actor_infer]}, b: {gpus: 8, roles: [actor_train, reward], "
    found: list[float] = []
    for layout in ("{tp: 1}", "{cp: 4}"):
        told = told_text(with_placement(flow, f"{section}layouts: {{actor_train: {layout}}}}}}}}}"))
        update = next(e for e in told.placement.memory if e.phase == "actor_train.update")
        found.append(next(line.inputs["T"] for line in update.lines if "T" in line.inputs))
    assert found == [21_024, 5_256]
