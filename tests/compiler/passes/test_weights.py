"""Weights edges: tokens, who is reached, and what lag asks of a loss."""

from __future__ import annotations

import pytest

from flowrl.graph.graph import Edge, EdgeKind, Graph
from tests.compiler.flows import GRPO, PPO, compiled, refused, warnings

SYNC = "- actor_train => actor_infer"


def _weights(graph: Graph) -> Edge:
    return next(e for e in graph.edges if e.kind is EdgeKind.WEIGHTS)


@pytest.mark.parametrize(
    ("schedule", "edge", "tokens"),
    [("", "", 1), ("max_lag: 2", "", 3), ("max_lag: 2", "max_lag: 0", 1), ("", "max_lag: 1", 2)],
)
def test_tokens_are_lag_and_one(schedule: str, edge: str, tokens: int) -> None:
    text = GRPO.replace("step:", f"schedule: {{{schedule}}}\nstep:") if schedule else GRPO
    text = text.replace(SYNC, f"- {{edge: actor_train => actor_infer, {edge}}}") if edge else text
    assert _weights(compiled(text)).tokens == tokens


def test_attributes_and_origin_of_a_weights_edge() -> None:
    edge = _weights(
        compiled(GRPO.replace(SYNC, "- {edge: actor_train => actor_infer, every_steps: 2, transport: disk}"))
    )
    assert (edge.every_steps, edge.transport, edge.origin) == (2, "disk", ("actor_train => actor_infer",))


def test_generator_without_weights_is_told_unless_frozen() -> None:
    text = GRPO.replace(f"  {SYNC}\n", "")
    assert warnings(text) == ["FR0305"]
    assert warnings(text.replace("backend: hf,", "backend: hf, frozen: true,")) == []


def test_every_reader_of_trained_weights_comes_before_their_update() -> None:
    state = {(e.source, e.target, e.tokens) for e in compiled(PPO).edges if e.kind is EdgeKind.STATE}
    assert state == {
        ("actor_train.log_probs", "actor_train.update", 0),
        ("critic.values", "critic.update", 0),
        ("actor_train.update", "actor_train.update", 1),
        ("critic.update", "critic.update", 1),
    }


@pytest.mark.parametrize(
    ("update", "lag", "told"),
    [
        ("loss: ppo", 0, []),
        ("loss: ppo", 1, ["FR0604"]),
        ("loss: ppo, correction: {name: tis, cap: 2.0}", 1, []),
        ("loss: ppo, old_log_probs: rollout", 1, []),
        ("loss: topr", 2, []),
        ("loss: reinforce", 2, ["FR0604"]),
    ],
)
def test_stale_samples_need_a_correction(update: str, lag: int, told: list[str]) -> None:
    text = GRPO.replace("loss: ppo", update).replace("step:", f"schedule: {{max_lag: {lag}}}\nstep:")
    assert warnings(text) == told


def test_a_critic_is_not_warned_of_lag() -> None:
    assert warnings(PPO.replace("step:", "schedule: {max_lag: 1}\nstep:")) == ["FR0604"]


def test_partial_rollout_needs_lag() -> None:
    partial = "schedule: {{partial_rollout: true, max_lag: {}}}\nstep:"
    assert [d.code for d in refused(GRPO.replace("step:", partial.format(0)))] == ["FR0601"]
    assert refused(GRPO.replace("step:", partial.format(1))) == []
