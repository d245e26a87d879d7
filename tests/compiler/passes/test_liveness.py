"""Steps that cannot come to their end, and keys about age that change nothing."""

from __future__ import annotations

import pytest

from flowrl.graph import rates
from flowrl.graph.lag import path_lags
from tests.compiler.flows import GRPO, PPO, compiled, refused, warnings

SYNC = "- actor_train => actor_infer"
DUEL = """
flowrl: 1
name: duel
models: {policy: {source: some/model}}
data: {train: {source: rows.jsonl, prompt: question, keep: [entry]}}
roles:
  alice_train: {kind: trainer, model: policy, backend: fsdp, update: {loss: ppo}}
  bob_train: {kind: trainer, model: policy, backend: fsdp, update: {loss: ppo}}
  alice: {kind: generator, model: policy, backend: hf, generate: {max_response_tokens: 5}}
  bob: {kind: generator, model: policy, backend: hf, generate: {max_response_tokens: 5}}
  duel: {kind: env, env: "flows/debate.py:Debate", max_turns: 2}
  alice_adv: {kind: estimator, estimator: grpo}
  bob_adv: {kind: estimator, estimator: grpo}
edges:
  - data.train -> duel.reset
  - alice.generate, bob.generate <-> duel.step
  - alice.generate -> alice_adv.estimate
  - bob.generate -> bob_adv.estimate
  - alice_adv.estimate -> alice_train.update
  - bob_adv.estimate -> bob_train.update
  - alice_train => alice
  - {edge: bob_train => bob, max_lag: 2}
step: {prompts: 8, samples_per_prompt: 4}
"""


def test_two_policies_train_on_each_others_episodes() -> None:
    """Their weights go round two cycles; both have tokens. The one may be older than the other."""
    lags = {(lag.update, lag.generate): (lag.versions, lag.drift_minibatches) for lag in path_lags(compiled(DUEL))}
    assert lags[("alice_train.update", "alice.generate")] == (0, 0)
    assert lags[("bob_train.update", "bob.generate")] == (2, 0)


CRITIQUE = DUEL.replace(
    "bob: {kind: generator, ", "bob: {kind: generator, inputs: {prompt: hint.prompt}, "
).replace("  alice_adv:", "  hint: {kind: function, function: \"hints.py:hint\", unit: sample, "
    "outputs: {prompt: {unit: sample, dtype: messages}}}\n  alice_adv:", 1)  # fmt: skip


def test_a_member_of_an_interaction_cannot_wait_for_another() -> None:
    text = CRITIQUE.replace("hints.py:hint", "arithmetic.py:reward").replace(
        "edges:\n", "edges:\n  - alice.generate -> hint.call\n"
    )
    (problem,) = refused(text)
    assert problem.code == "FR0316"
    told = " ".join(label.text for label in problem.labels)
    assert "`hint.call` waits for 32 rows of `alice.generate`, which has made 0" in told
    assert "`bob.generate` waits for 32 rows of `hint.call`, which has made 0" in told
    assert "`alice.generate` and `bob.generate` begin at once" in (problem.why or "")


def test_a_buffer_too_small_is_refused_with_the_counter_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key sets the room of an edge, so a smaller house stands for it: room for one version of the state."""
    monkeypatch.setattr(rates, "READ_AND_MADE", 1)
    (problem,) = refused(PPO)
    assert problem.code == "FR0316"
    assert "waits for room for 1 rows" in (problem.why or "")
    assert "0 of 1 are free" in (problem.why or "")


@pytest.mark.parametrize(
    ("edge", "update", "schedule", "codes"),
    [
        ("max_lag: 0", "loss: ppo", "max_lag: 0", []),
        ("every_steps: 3", "loss: ppo", "max_lag: 0", ["FR0606"]),
        ("every_steps: 3", "loss: ppo", "max_lag: 1", ["FR0604"]),
        ("every_steps: 3", "loss: topr", "max_lag: 0", []),
        ("every_steps: 3", "loss: ppo, correction: {name: tis, cap: 2.0}", "max_lag: 0", []),
        ("start_step: 2", "loss: ppo", "max_lag: 0", ["FR0606"]),
        ("every_updates: 1", "loss: ppo, updates: 2", "max_lag: 0", ["FR0607"]),
        ("every_updates: 2", "loss: ppo, updates: 2", "max_lag: 0", []),
        ("every_updates: 1", "loss: ppo, updates: 2", "max_lag: 1", ["FR0604"]),
        ("max_lag: 0", "loss: ppo, correction: {name: tis, cap: 2.0}", "max_lag: 0", ["FR0603"]),
        ("max_lag: 0", "loss: ppo, correction: {name: tis, cap: 2.0}, old_log_probs: recompute", "max_lag: 0", []),
        ("max_lag: 1", "loss: ppo, correction: {name: tis, cap: 2.0}", "max_lag: 0", []),
    ],
)
def test_what_is_likely_not_meant(edge: str, update: str, schedule: str, codes: list[str]) -> None:
    text = GRPO.replace(SYNC, f"- {{edge: actor_train => actor_infer, {edge}}}").replace("loss: ppo", update)
    assert warnings(text.replace("\nstep:", f"\nschedule: {{{schedule}}}\nstep:")) == codes


def test_a_version_of_every_update_at_lag_zero_is_not_partial_rollout() -> None:
    """With several versions a step the lag is what the tokens have beyond them."""
    text = GRPO.replace(SYNC, "- {edge: actor_train => actor_infer, every_updates: 1}")
    text = text.replace("loss: ppo", "loss: topr, updates: 4")
    partial = "schedule: {{partial_rollout: true, max_lag: {}}}\nstep:"
    assert [d.code for d in refused(text.replace("step:", partial.format(0)))] == ["FR0601"]
    assert refused(text.replace("step:", partial.format(1))) == []


def test_refill_needs_something_that_drops() -> None:
    text = GRPO.replace("updates: 1", "updates: 1, refill: {max_rounds: 2}")
    assert warnings(text) == ["FR0602"]
    stale = text.replace("step:", "schedule: {when_stale: drop, max_lag: 1}\nstep:").replace("loss: ppo", "loss: topr")
    assert warnings(stale) == []


def test_lag_needs_a_weights_edge() -> None:
    text = GRPO.replace(f"  {SYNC}\n", "").replace("backend: hf,", "backend: hf, frozen: true,")
    assert warnings(text.replace("step:", "schedule: {max_lag: 2}\nstep:")) == ["FR0605"]
