"""What makes each algorithm what it is, by its paper: loss, estimator, aggregation, KL, clipping, filters, inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import (
    CallParams,
    EstimateParams,
    FilterParams,
    GenerateParams,
    ScoreParams,
    UpdateParams,
)
from flowrl.graph.rates import rows_per_step
from flowrl.spec.presets import preset_names
from tests.spec.preset_flows import compiled, sources


@dataclass(frozen=True)
class Facts:
    """Of the policy's update and its advantages."""

    loss: str
    aggregate: str
    estimator: str
    normalize: str
    kl: tuple[str, str] | None = None
    """Where it stands (loss or reward) and its form."""
    clip: tuple[float, float] | None = None
    on_policy: bool = False
    """One update a step is part of the method."""


PAPERS = {
    "ppo": Facts("ppo", "token_mean", "gae", "batch", ("reward", "k1"), (0.2, 0.2)),
    "grpo": Facts("ppo", "sequence_mean", "grpo", "group", ("loss", "k3"), (0.2, 0.2)),
    "dr_grpo": Facts("ppo", "sequence_sum_fixed", "dr_grpo", "none", None, (0.2, 0.2)),
    "dapo": Facts("ppo", "token_mean", "grpo", "group", None, (0.2, 0.28)),
    "rloo": Facts("reinforce", "sequence_sum_fixed", "rloo", "none", ("reward", "k1"), on_policy=True),
    "reinforce": Facts("reinforce", "sequence_sum_fixed", "reinforce", "none", on_policy=True),
    "reinforce_pp": Facts("ppo", "token_mean", "reinforce_pp", "batch", ("reward", "k1"), (0.2, 0.2)),
    "reinforce_pp_baseline": Facts("ppo", "token_mean", "reinforce_pp_baseline", "batch", ("loss", "k2"), (0.2, 0.2)),
    "remax": Facts("reinforce", "sequence_sum_fixed", "remax", "none", ("reward", "k1"), on_policy=True),
    "gspo": Facts("gspo", "sequence_mean", "grpo", "group", None, (3e-4, 4e-4)),
    "cispo": Facts("cispo", "token_mean", "grpo", "group", None, (1.0, 4.0)),
    "topr": Facts("topr", "sequence_sum_fixed", "reinforce", "none"),
    "opo": Facts("reinforce", "sequence_sum_fixed", "opo", "none", on_policy=True),
    "on_policy_distill": Facts("ppo", "token_mean", "reverse_kl", "none", None, (0.2, 0.2)),
}
OTHERS = {"sft", "rm", "raft", "online_dpo", "safe_rlhf"}
GROUPED = {"grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp_baseline", "gspo", "cispo", "opo", "raft", "online_dpo"}


def update_of(graph: Graph, role: str = "actor_train") -> UpdateParams:
    params = graph.op(f"{role}.update").params
    assert isinstance(params, UpdateParams)
    return params


def estimate_of(graph: Graph, role: str = "advantage") -> EstimateParams:
    params = graph.op(f"{role}.estimate").params
    assert isinstance(params, EstimateParams)
    return params


def generate_of(op: Op) -> GenerateParams:
    assert isinstance(op.params, GenerateParams)
    return op.params


def test_every_preset_is_looked_at() -> None:
    assert set(PAPERS) | OTHERS == set(preset_names())


@pytest.mark.parametrize("name", sorted(PAPERS))
def test_policy_gradient(name: str) -> None:
    facts, graph = PAPERS[name], compiled(name)
    update, estimate = update_of(graph), estimate_of(graph)
    assert (update.loss, update.aggregate) == (facts.loss, facts.aggregate)
    assert (estimate.estimator, estimate.normalize) == (facts.estimator, facts.normalize)
    kls = [(where, kl.form) for where, kl in (("loss", update.kl), ("reward", estimate.kl)) if kl and kl.coef > 0]
    assert kls == ([facts.kl] if facts.kl else [])
    if facts.clip:
        assert (update.clip_low, update.clip_high) == facts.clip
    assert sources(graph.op("actor_train.update"))["advantages"] == "advantage.estimate"
    if facts.on_policy:
        assert (update.updates, update.epochs) == (1, 1)


@pytest.mark.parametrize("name", preset_names())
def test_who_is_there(name: str) -> None:
    """A reference only where a KL or a preference loss reads it; groups only where a baseline needs them."""
    graph = compiled(name)
    kl = PAPERS[name].kl if name in PAPERS else None
    has_reference = any(role.name == "reference" for role in graph.roles)
    assert has_reference == (kl is not None or name in ("online_dpo", "safe_rlhf"))
    if name in GROUPED:
        assert graph.step.samples_per_prompt > 1
    trained = {op.role for op in graph.ops if op.method == "update"}
    critics = {"ppo": {"critic"}, "safe_rlhf": {"critic", "cost_critic"}}.get(name, set())
    assert trained == critics | ({"reward_train"} if name == "rm" else {"actor_train"})


@pytest.mark.parametrize("name", preset_names())
def test_weights_reach_the_generator(name: str) -> None:
    graph = compiled(name)
    generates = any(op.method == "generate" for op in graph.ops)
    weights = [edge.id for edge in graph.edges if edge.id == "actor_train => actor_infer"]
    assert bool(weights) == generates == (name not in ("sft", "rm"))


def test_ppo_has_one_critic_that_its_estimator_reads() -> None:
    graph = compiled("ppo")
    assert sources(graph.op("advantage.estimate"))["values"] == "critic.values"
    assert sources(graph.op("critic.update"))["returns"] == "advantage.estimate"
    assert sources(graph.op("actor_train.update"))["old_log_probs"] == "actor_train.log_probs"
    assert update_of(graph, "critic").loss == "value"


def test_dapo_drops_groups_without_spread_and_draws_new_prompts() -> None:
    graph = compiled("dapo")
    select = graph.op("informative.select")
    assert isinstance(select.params, FilterParams)
    assert (select.params.rule, select.params.unit, select.params.action) == ("zero_spread", "group", "drop")
    assert sources(select) == {"rewards": "reward.score"}, "spread of the answers' scores, before the length penalty"
    assert graph.step.refill is not None
    assert rows_per_step(graph, graph.op("actor_train.update")).fixed == 512 * 16
    shaped = graph.op("shaped.score")
    assert isinstance(shaped.params, ScoreParams)
    assert shaped.params.extra["combine"] == {"reward": 1.0, "overlong": 1.0}
    assert sources(graph.op("advantage.estimate"))["rewards"] == "shaped.score"


def test_dapo_s_penalty_follows_the_longest_response() -> None:
    graph = compiled("dapo", "vars: {max_response_tokens: 8192}\n")
    overlong = graph.op("overlong.score").params
    assert isinstance(overlong, ScoreParams)
    assert overlong.args == {"max_tokens": 8192, "buffer_tokens": 4096, "penalty": 1.0}
    assert generate_of(graph.op("actor_infer.generate")).max_response_tokens == 8192


def test_remax_s_baseline_is_the_greedy_response() -> None:
    graph = compiled("remax")
    estimate = sources(graph.op("advantage.estimate"))
    assert (estimate["rewards"], estimate["baseline_rewards"]) == ("reward.score", "reward.score@greedy")
    assert sources(graph.op("reward.score@greedy"))["response"] == "actor_infer.generate@greedy"
    greedy = generate_of(graph.op("actor_infer.generate@greedy"))
    assert (greedy.temperature, greedy.samples_per_prompt) == (0.0, 1)
    assert generate_of(graph.op("actor_infer.generate")).temperature == 1.0


def test_topr_weighs_against_the_policy_that_sampled() -> None:
    graph = compiled("topr")
    assert update_of(graph).old_log_probs == "rollout"
    assert sources(graph.op("actor_train.update"))["old_log_probs"] == "actor_infer.generate"


def test_raft_trains_on_the_best_of_each_group() -> None:
    graph = compiled("raft")
    best = graph.op("best.select").params
    assert isinstance(best, FilterParams)
    assert (best.unit, best.within, best.keep_top, best.action) == ("sample", "group", 1 / 8, "drop")
    assert (update_of(graph).loss, graph.step.samples_per_prompt) == ("sft", 8)
    assert rows_per_step(graph, graph.op("actor_train.update")).fixed == graph.step.prompts
    assert sources(graph.op("actor_train.update"))["response"] == "actor_infer.generate"


def test_online_dpo_compares_two_responses() -> None:
    graph = compiled("online_dpo")
    assert (update_of(graph).loss, update_of(graph).beta) == ("dpo", 0.1)
    assert graph.step.samples_per_prompt == 2
    update = sources(graph.op("actor_train.update"))
    assert (update["pair_sign"], update["ref_log_probs"]) == ("pairs.estimate", "reference.log_probs")
    assert sources(graph.op("pairs.estimate"))["rewards"] == "reward.compare"
    assert estimate_of(graph, "pairs").estimator == "best_worst"


def test_safe_rlhf_has_two_of_everything_and_one_multiplier() -> None:
    graph = compiled("safe_rlhf")
    reward, safety = (sources(graph.op(f"{name}.estimate")) for name in ("advantage", "safety_advantage"))
    assert (reward["rewards"], reward["values"]) == ("reward.score", "critic.values")
    assert (safety["rewards"], safety["values"]) == ("safety.score", "cost_critic.values")
    for each in ("advantage", "safety_advantage"):
        estimate = estimate_of(graph, each)
        assert (estimate.estimator, estimate.normalize) == ("gae", "none")
        assert estimate.kl is not None
        assert (estimate.kl.coef, estimate.kl.form) == (0.01, "k1"), "half of 0.02 each"
    negated = graph.op("safety.score").params
    assert isinstance(negated, ScoreParams)
    assert negated.extra["combine"] == {"cost": -1.0}
    lagrange = graph.op("lagrange.call")
    assert isinstance(lagrange.params, CallParams)
    assert lagrange.params.function == "flowrl:lagrange"
    assert sources(lagrange) == {
        "reward_advantages": "advantage.estimate",
        "safety_advantages": "safety_advantage.estimate",
        "costs": "cost.score",
    }
    assert sources(graph.op("actor_train.update"))["advantages"] == "lagrange.call"
    assert sources(graph.op("critic.update"))["returns"] == "advantage.estimate"
    assert sources(graph.op("cost_critic.update"))["returns"] == "safety_advantage.estimate"


def test_distillation_reads_the_teacher_and_no_reward() -> None:
    graph = compiled("on_policy_distill")
    estimate = sources(graph.op("advantage.estimate"))
    assert estimate["ref_log_probs"] == "teacher.log_probs"
    assert estimate_of(graph).extra == {"coef": 1.0}
    assert not [op for op in graph.ops if op.method == "score"]


def test_rm_reads_both_texts_of_a_pair() -> None:
    graph = compiled("rm")
    update = graph.op("reward_train.update")
    assert update_of(graph, "reward_train").loss == "bradley_terry"
    assert sources(update) == dict.fromkeys(("prompt", "response", "pair_sign"), "data.train")
    assert rows_per_step(graph, update).fixed == 2 * graph.step.prompts


def test_sft_reads_the_given_response() -> None:
    graph = compiled("sft")
    assert sources(graph.op("actor_train.update")) == dict.fromkeys(("prompt", "response"), "data.train")
