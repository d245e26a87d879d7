"""Sentences of LANGUAGE.md that a flow can break silently: beside each refusal the flow that means what it says."""

from __future__ import annotations

import pytest

from tests.compiler.flows import GRPO, compiled, refused, warnings

SCORE = "  - reward.score -> advantage.estimate\n"
SYNC = "  - actor_train => actor_infer\n"
TALK = """
flowrl: 1
name: talk
models: {policy: {source: some/model}}
data: {train: {seeds: 9}, val: {seeds: 3}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 8}}
  world: {kind: env, env: "gem:game:Sokoban-v0", max_turns: 2}
  reward: {function: "arithmetic.py:reward", inputs: {entry: world.transcript}}
  advantage: {estimator: grpo}
edges:
  - data.train -> world.reset
  - actor_infer.generate <-> world.step
  - actor_infer.generate -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 4}
"""


def changed(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def codes(text: str) -> list[str]:
    return [problem.code for problem in refused(text)]


def with_filter(keys: str, estimator: str = "grpo") -> str:
    sifted = "  - reward.score -> sift.select\n  - sift.select -> advantage.estimate\n"
    role = f"  sift: {{kind: filter, {keys}}}\n  advantage: {{estimator: {estimator}}}"
    return changed(GRPO, (SCORE, sifted), ("  advantage: {estimator: grpo}", role))


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ("rule: threshold, min: 0.1, max: 0.9", None),
        ("rule: threshold, min: 0.5, max: 0.5", None),
        ("rule: threshold, min: 0.9, max: 0.1", "FR0265"),
        ("rule: threshold", "FR0265"),
        ("rule: spread", "FR0265"),
        ("rule: spread, min: 0.1", None),
        ("rule: spread, min: 0.1, unit: sample", "FR0265"),
        ("rule: zero_spread, unit: sample", "FR0265"),
        ("rule: threshold, keep_top: 0.5, max: 0.9", "FR0265"),
        ("rule: function", "FR0265"),
        ("rule: threshold, min: 0.1, by: reward.rewards", None),
        ("rule: threshold, min: 0.1, by: data.train.entry", None),
        ("rule: threshold, min: 0.1, by: actor_infer.finish_reason", None),
        ("rule: threshold, min: 0.1, by: actor_infer.response", "FR0209"),
        ("rule: threshold, min: 0.1, by: actor_infer.tokens", "FR0208"),
    ],
)
def test_a_filter_has_one_range_and_numbers_to_compare(keys: str, code: str | None) -> None:
    assert codes(with_filter(keys)) == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("keep", "estimator", "fits"),
    [("0.25", "grpo", False), ("0.5", "grpo", True), ("0.25", "reinforce", True), ("0.25", "rloo", False)],
)
def test_a_group_estimator_has_a_group_left(keep: str, estimator: str, fits: bool) -> None:
    """Of 4 samples a quarter is one, which no other one can be compared with."""
    keys = f"rule: threshold, unit: sample, keep_top: {keep}, within: group"
    assert codes(with_filter(keys, estimator)) == ([] if fits else ["FR0304"])


@pytest.mark.parametrize(("samples", "found"), [(1, ["FR0304"]), (2, [])])
def test_one_sample_has_no_spread(samples: int, found: list[str]) -> None:
    text = with_filter("rule: zero_spread", "reinforce").replace(
        "samples_per_prompt: 4", f"samples_per_prompt: {samples}"
    )
    assert codes(text) == found


REMAX = changed(
    GRPO,
    ("{estimator: grpo}", "{estimator: remax, inputs: {baseline_rewards: reward@greedy.rewards}}"),
    (
        SYNC,
        "  - data.train -> actor_infer.generate@greedy\n"
        f"  - actor_infer.generate@greedy -> reward.score@greedy\n{SYNC}",
    ),
)
OTHER_SET = ("data: {train", "data: {val: {source: v.jsonl, prompt: question, keep: [entry]}, train")


def test_a_field_crosses_between_calls_on_the_same_prompts_only() -> None:
    assert codes(REMAX) == []
    assert codes(
        changed(REMAX, OTHER_SET, ("data.train -> actor_infer.generate@", "data.val -> actor_infer.generate@"))
    ) == ["FR0334"]


def test_token_columns_of_one_op_are_of_one_response() -> None:
    """advantages are as long as the mask that they were made with."""
    assert codes(
        changed(REMAX, ("reward@greedy.rewards}", "reward@greedy.rewards, loss_mask: actor_infer@greedy.loss_mask}"))
    ) == ["FR0351"]
    both = "inputs: {tokens: actor_infer@greedy.tokens, loss_mask: actor_infer@greedy.loss_mask}"
    assert codes(changed(REMAX, ("update: {loss: ppo}}", f"update: {{loss: ppo}}, {both}}}"))) == ["FR0351"]


def test_a_reset_is_gone_on_with_by_the_step_of_its_own_call() -> None:
    """A label on one end only would let validation play in the episodes of training."""
    call = "  - data.val -> world.reset@val\n  - actor_infer.generate@val <-> world.step{}\n" + SYNC
    assert codes(changed(TALK, (SYNC, call.format("")))) == ["FR0331"]
    scored = call.format("@val") + "  - actor_infer.generate@val -> reward.score@val\n"
    assert codes(changed(TALK, (SYNC, scored))) == []


def test_rewards_of_an_environment_are_metrics_too() -> None:
    """Validation of an agent needs no reward role beside the environment."""
    call = "  - data.val -> world.reset@val\n  - actor_infer.generate@val <-> world.step@val\n"
    text = changed(
        TALK,
        (SYNC, call + SYNC),
        ('  reward: {function: "arithmetic.py:reward", inputs: {entry: world.transcript}}\n', ""),
    )
    assert {op.id for op in compiled(text).ops} >= {"data.val", "actor_infer.generate@val", "world.step@val"}
    assert warnings(text) == []


@pytest.mark.parametrize(("samples", "found"), [(1, ["FR0350"]), (4, [])])
def test_players_of_one_episode_make_as_many_samples(samples: int, found: list[str]) -> None:
    text = changed(
        TALK,
        ("actor_infer.generate <->", "actor_infer.generate, actor_infer.generate@rival <->"),
        ("{max_response_tokens: 8}", f"{{max_response_tokens: 8}}, generate@rival: {{samples_per_prompt: {samples}}}"),
    )
    assert codes(text) == found


@pytest.mark.parametrize(
    ("correction", "found"),
    [
        ("{name: tis}", []),
        ("{name: mis}", ["FR0266"]),
        ("{name: reject, unit: sample}", ["FR0266"]),
        ("{name: reject, floor: 0.5}", []),
        ("{name: mis, floor: 2.0, cap: 0.5}", ["FR0266"]),
        ("[{name: tis, cap: 2.0}, {name: mis}]", ["FR0266"]),
    ],
)
def test_a_correction_leaves_something_out(correction: str, found: list[str]) -> None:
    assert codes(changed(GRPO, ("{loss: ppo}", f"{{loss: ppo, correction: {correction}}}"))) == found


@pytest.mark.parametrize(
    ("trained", "sampled", "found"),
    [("", "", []), ("r8", "", []), ("r8", "r8", []), ("", "r8", ["FR0301"]), ("r8", "r4", ["FR0301"])],
)
def test_a_generator_has_the_adapter_that_is_trained_or_none(trained: str, sampled: str, found: list[str]) -> None:
    models = "policy: {source: some/model}, " + ", ".join(
        f"r{rank}: {{source: some/model, lora: {{rank: {rank}, alpha: 8}}}}" for rank in (4, 8)
    )
    text = changed(
        GRPO,
        ("policy: {source: some/model}", models),
        ("actor_train: {model: policy", f"actor_train: {{model: {trained or 'policy'}"),
        ("actor_infer: {model: policy", f"actor_infer: {{model: {sampled or 'policy'}"),
    )
    assert codes(text) == found


@pytest.mark.parametrize(("setting", "found"), [("auto", []), ("rollout", ["FR0240"]), ("recompute", ["FR0240"])])
def test_old_log_probs_are_chosen_in_one_place(setting: str, found: list[str]) -> None:
    keys = f"{{loss: ppo, old_log_probs: {setting}}}, inputs: {{old_log_probs: actor_infer.rollout_log_probs}}"
    assert codes(changed(GRPO, ("{loss: ppo}", keys), ("updates: 1", "updates: 2"))) == found


def test_a_filter_names_its_column_in_one_place() -> None:
    keys = "rule: threshold, min: 0.1, inputs: {rewards: reward.rewards}"
    assert codes(with_filter(keys)) == []
    assert codes(with_filter(f"{keys}, by: reward.rewards")) == ["FR0240"]


def test_a_preference_loss_says_how_sharp_it_is() -> None:
    pairs = changed(
        GRPO,
        ("{loss: ppo}", "{loss: dpo, beta: 0.1}"),
        ("{estimator: grpo}", "{estimator: best_worst}\n  reference: {model: policy, backend: fsdp}"),
        (
            SYNC,
            f"  - actor_infer.generate -> reference.log_probs\n  - reference.log_probs -> actor_train.update\n{SYNC}",
        ),
    )
    assert codes(pairs) == []
    assert codes(changed(pairs, (", beta: 0.1", ""))) == ["FR0222"]


def test_a_narrow_edge_is_named_where_a_column_stays_behind() -> None:
    narrow = "  - {edge: reward.score -> advantage.estimate, fields: [tokens, loss_mask]}\n"
    (problem,) = refused(changed(GRPO, (SCORE, narrow)))
    assert (problem.code, problem.helps[0].text) == (
        "FR0206",
        "`reward.score -> advantage.estimate` carries only tokens, loss_mask: add `rewards` to its `fields`",
    )


CHAIN = changed(
    GRPO,
    (SCORE, "  - reward.score -> safety.score\n  - safety.score -> advantage.estimate\n"),
    ("  advantage:", '  safety: {kind: reward, function: "arithmetic.py:reward"}\n  advantage:'),
)


def test_a_reward_that_is_hidden_unread_is_told() -> None:
    def told(text: str) -> list[str]:
        return [code for code in warnings(text) if code == "FR0620"]

    assert told(CHAIN) == ["FR0620"]
    assert told(changed(CHAIN, ("{estimator: grpo}", "{estimator: grpo, inputs: {rewards: safety.rewards}}"))) == []
    assert (
        told(changed(CHAIN, ('function: "arithmetic.py:reward"}\n  advantage', "combine: {reward: 1.0}}\n  advantage")))
        == []
    )
    beside = "  - actor_infer.generate -> safety.score\n  - reward.score -> advantage.estimate\n"
    assert (
        told(changed(CHAIN, (CHAIN[CHAIN.index("  - reward.score -> s") : CHAIN.index("  - advantage.est")], beside)))
        == []
    )


def test_the_later_reward_counts() -> None:
    graph = compiled(CHAIN)
    (rewards,) = [i for i in graph.op("advantage.estimate").inputs if i.slot == "rewards"]
    assert rewards.source == "safety.score"
