"""Whatever edges a user draws between ops: a sound graph or a diagnostic with a place, never a fault of ours."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.text import parse_graph, print_graph, without_spans
from flowrl.graph.verify import verify
from tests.compiler.flows import PPO, lowered

OPS = (
    "data.train",
    "actor_infer.generate",
    "actor_infer.generate@val",
    "reward.score",
    "reward.score@val",
    "reward.compare",
    "reference.log_probs",
    "critic.values",
    "critic.update",
    "actor_train.log_probs",
    "actor_train.log_probs@again",
    "actor_train.update",
    "advantage.estimate",
)
DRAWN = (
    "data.train -> actor_infer.generate",
    "actor_infer.generate -> reward.score, reference.log_probs, critic.values, actor_train.log_probs",
    "reward.score, reference.log_probs, critic.values, actor_train.log_probs -> advantage.estimate",
    "advantage.estimate -> actor_train.update, critic.update",
)
PAIRS = st.tuples(st.sampled_from(OPS), st.sampled_from(OPS[1:])).map(" -> ".join)
WEIGHTS = ("actor_train => actor_infer", "actor_train => reference", "critic => actor_infer")
CHOICES = (
    "reward.rewards",
    "reward@val.rewards",
    "actor_train.entropy",
    "data.train.entry",
    "actor_train@again.old_log_probs",
)


@given(
    kept=st.sampled_from((DRAWN, DRAWN, DRAWN[:3], DRAWN[1:])),
    more=st.lists(PAIRS, max_size=2),
    weights=st.sampled_from((WEIGHTS[:1], WEIGHTS[:1], WEIGHTS[:2], (), WEIGHTS)),
    estimator=st.sampled_from(("gae", "grpo", "remax", "reverse_kl")),
    slot=st.sampled_from((None, None, "rewards", "baseline_rewards", "old_log_probs")),
    choice=st.sampled_from(CHOICES),
    lag=st.integers(0, 1),
    updates=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_edges(
    kept: tuple[str, ...],
    more: list[str],
    weights: tuple[str, ...],
    estimator: str,
    slot: str | None,
    choice: str,
    lag: int,
    updates: int,
) -> None:
    head = PPO[: PPO.index("edges:")].replace("estimator: gae", f"estimator: {estimator}")
    head = head.replace(", kl: {coef: 0.01}", "") if estimator == "reverse_kl" else head
    if slot is not None:
        head = head.replace(f"estimator: {estimator}", f"estimator: {estimator}, inputs: {{{slot}: {choice}}}")
    edges = "".join(f"  - {edge}\n" for edge in (*kept, *more, *weights)) or "  []\n"
    tail = f"step: {{prompts: 8, samples_per_prompt: 4, updates: {updates}}}\nschedule: {{max_lag: {lag}}}\n"
    refusal: FlowError | None = None
    try:
        graph, warnings = run_passes(lowered(f"{head}edges:\n{edges}{tail}"))
    except FlowError as error:
        refusal = error
    if refusal is not None:
        assert refusal.diagnostics
        assert all(d.labels for d in refusal.diagnostics)
        return
    assert verify(graph) == ()
    assert parse_graph(print_graph(graph)) == without_spans(graph)
    assert all(d.labels for d in warnings)
