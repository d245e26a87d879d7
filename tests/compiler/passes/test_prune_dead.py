"""What nobody reads goes with a reason; what is wanted for itself stays."""

from __future__ import annotations

from tests.compiler.flows import GRPO, PPO, compiled, inputs, refused, warnings

ZERO_KL = PPO.replace(", kl: {coef: 0.01}", "")


def test_reference_at_zero_kl_goes_with_its_edges() -> None:
    graph = compiled(ZERO_KL)
    assert {r.id for r in graph.removed if r.reason == "unread_at_zero_kl"} == {
        "reference",
        "reference.log_probs",
        "actor_infer.generate -> reference.log_probs",
        "reference.log_probs -> advantage.estimate",
    }
    assert "reference" not in {role.name for role in graph.roles}
    assert not any("reference.log_probs" in id for e in graph.edges for id in e.origin)
    assert warnings(ZERO_KL) == []


def test_kl_of_coefficient_zero_reads_nothing() -> None:
    assert "ref_log_probs" not in inputs(compiled(PPO.replace("coef: 0.01", "coef: 0.0")), "advantage.estimate")


def test_a_reward_nobody_reads_stays_as_a_metric() -> None:
    text = GRPO.replace("-> reward.score", "-> reward.score, style.score", 1)
    text = text.replace("  advantage:", '  style: {kind: reward, function: "arithmetic.py:reward"}\n  advantage:')
    graph = compiled(text)
    assert "style.score" in {op.id for op in graph.ops}
    assert not graph.removed
    assert warnings(text) == []


def test_unread_op_and_role_without_edges_are_told() -> None:
    text = PPO.replace("estimator: gae", "estimator: rloo").replace(
        "-> actor_train.update, critic.update", "-> actor_train.update"
    )
    assert sorted(warnings(text)) == ["FR0307"]
    graph = compiled(text)
    assert {r.id: r.reason for r in graph.removed}["critic"] == "unread"
    lonely = GRPO.replace("  advantage:", "  judge: {kind: scorer, model: policy, backend: fsdp}\n  advantage:")
    assert warnings(lonely) == ["FR0310"]
    assert [(r.id, r.reason) for r in compiled(lonely).removed] == [("judge", "unread")]


def test_edge_that_carries_nothing_is_told() -> None:
    text = GRPO.replace("  - reward.score ->", "  - data.train -> advantage.estimate\n  - reward.score ->")
    assert warnings(text) == ["FR0306"]
    assert [(r.id, r.reason) for r in compiled(text).removed] == [("data.train -> advantage.estimate", "nothing_read")]


def test_a_flow_that_trains_and_scores_nothing_is_refused() -> None:
    text = GRPO[: GRPO.index("  - actor_infer.generate ->")] + GRPO[GRPO.index("step:") :]
    assert [d.code for d in refused(text)] == ["FR0309"]
