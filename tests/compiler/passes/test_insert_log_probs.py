"""When old log-probs are the rollout's own, when they are recomputed, and that both spellings are one graph."""

from __future__ import annotations

import pytest

from flowrl.graph.graph import Graph
from flowrl.graph.text import graph_digest
from tests.compiler.flows import GRPO, PPO, compiled, inputs, refused

ROLLOUT = "actor_infer.generate.rollout_log_probs"
RECOMPUTED = "actor_train.log_probs.old_log_probs"


def _old(graph: Graph) -> str:
    return inputs(graph, "actor_train.update")["old_log_probs"]


def _with(text: str, **changes: str) -> str:
    """The flow with another step, schedule, update or weights edge."""
    swaps = {
        "updates": ("updates: 1", "updates: {}"),
        "update": ("update: {loss: ppo}", "update: {{loss: ppo, {}}}"),
        "sync": ("- actor_train => actor_infer", "- {{edge: actor_train => actor_infer, {}}}"),
        "schedule": ("step:", "schedule: {{{}}}\nstep:"),
    }
    for key, value in changes.items():
        old, new = swaps[key]
        assert old in text
        text = text.replace(old, new.format(value))
    return text


DRAWN = (
    ("- actor_infer.generate -> reward.score", "- actor_infer.generate -> reward.score, actor_train.log_probs"),
    ("- advantage.estimate ->", "- advantage.estimate, actor_train.log_probs ->"),
)


def _drawn(text: str) -> str:
    for old, new in DRAWN:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ROLLOUT),
        ({"updates": "2"}, RECOMPUTED),
        ({"update": "epochs: 2"}, RECOMPUTED),
        ({"schedule": "max_lag: 1"}, RECOMPUTED),
        ({"sync": "max_lag: 1"}, RECOMPUTED),
        ({"sync": "every_steps: 2"}, RECOMPUTED),
        ({"update": "old_log_probs: recompute"}, RECOMPUTED),
        ({"update": "old_log_probs: rollout", "updates": "2"}, ROLLOUT),
        ({"update": "old_log_probs: rollout", "schedule": "max_lag: 3"}, ROLLOUT),
    ],
)
def test_auto_rule_and_one_digest_of_both_spellings(changes: dict[str, str], expected: str) -> None:
    text = _with(GRPO, **changes)
    short, long = compiled(text), compiled(_drawn(text))
    assert _old(short) == _old(long) == expected
    assert graph_digest(short) == graph_digest(long)
    reasons = {r.id: r.reason for r in long.removed}
    assert (reasons.get("actor_train.log_probs") == "log_probs_not_needed") == (expected == ROLLOUT)


def test_none_reads_no_old_log_probs() -> None:
    graph = compiled(_with(GRPO, update="old_log_probs: none"))
    assert "old_log_probs" not in inputs(graph, "actor_train.update")


def test_a_generator_that_gets_no_weights_is_off_policy() -> None:
    assert _old(compiled(GRPO.replace("  - actor_train => actor_infer\n", ""))) == RECOMPUTED


def test_estimator_and_update_mean_the_same_old_policy() -> None:
    text = PPO.replace(", actor_train.log_probs\n", "\n").replace(", actor_train.log_probs ->", " ->")
    assert text.count("actor_train.log_probs") == 0
    short, long = compiled(text), compiled(PPO)
    assert graph_digest(short) == graph_digest(long)
    assert inputs(short, "advantage.estimate")["old_log_probs"] == _old(short) == RECOMPUTED
    on_policy = compiled(text.replace("updates: 2", "updates: 1"))
    assert inputs(on_policy, "advantage.estimate")["old_log_probs"] == _old(on_policy) == ROLLOUT


def test_derived_op_takes_the_rows_and_temperature_of_the_update() -> None:
    op = compiled(_with(GRPO, updates="2")).op("actor_train.log_probs")
    assert op.derived
    assert {i.slot: i.source for i in op.inputs} == {
        "tokens": "actor_infer.generate",
        "loss_mask": "actor_infer.generate",
        "rollout_log_probs": "actor_infer.generate",  # only to measure how far the engine is off
    }
    assert getattr(op.params, "temperature", None) == 0.7


def test_a_choice_by_inputs_stands() -> None:
    chosen = "update: {loss: ppo}, inputs: {old_log_probs: actor_train.old_log_probs}"
    graph = compiled(_drawn(GRPO).replace("update: {loss: ppo}", chosen))
    assert _old(graph) == RECOMPUTED
    assert not graph.removed


def test_two_trainers_of_one_estimator_are_ambiguous() -> None:
    text = PPO.replace(
        "  critic: {", "  other: {kind: trainer, model: policy, backend: fsdp, update: {loss: ppo}}\n  critic: {"
    )
    text = text.replace("-> actor_train.update, critic.update", "-> actor_train.update, other.update, critic.update")
    text = text.replace(", actor_train.log_probs\n", "\n").replace(", actor_train.log_probs ->", " ->")
    assert [d.code for d in refused(text)] == ["FR0207"]
