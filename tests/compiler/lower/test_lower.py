"""Flows → graphs: names, places, parameters, periods."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.span import Span
from flowrl.graph.graph import Graph, Kind
from flowrl.graph.params import DataParams, EstimateParams, GenerateParams, ScoreParams, UpdateParams
from flowrl.graph.verify import verify
from flowrl.spec import load
from tests.compiler.flows import EXAMPLES, GRPO, PPO, compiled, inputs, lowered, refused


def _marked(text: str, index: int = 0) -> list[tuple[str, str]]:
    """Code and the source under its primary mark, of every diagnostic."""
    lines = text.split("\n")
    found: list[tuple[str, str]] = []
    for problem in refused(text):
        span = problem.labels[0].span
        found.append((problem.code, lines[span.line - 1][span.column - 1 : span.end_column - 1]))
    return found


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_lower_and_compile_without_a_warning(file: Path) -> None:
    spec = load(file)
    for index in range(len(spec.stages)):
        graph, warnings = run_passes(lower_stage(spec, index))
        assert warnings == ()
        assert verify(graph) == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("- reward.score ->", "- rewards.score ->", ("FR0201", "rewards.score")),
        ("=> actor_infer", "=> actor_inferr", ("FR0201", "actor_inferr")),
        ("- reward.score ->", "- reward.scores ->", ("FR0202", "reward.scores")),
        ("-> actor_train.update", "-> actor_train.values", ("FR0202", "actor_train.values")),
        ("{model: policy, backend: hf", "{model: polcy, backend: hf", ("FR0203", "polcy")),
        ("- data.train ->", "- data.trian ->", ("FR0204", "data.trian")),
        ("- data.train ->", "- data.train@val ->", ("FR0204", "data.train@val")),
        ("loss: ppo", "loss: ppoo", ("FR0215", "ppoo")),
        ("loss: ppo", "loss: value", ("FR0218", "value")),
        ("estimator: grpo", "estimator: gropo", ("FR0216", "gropo")),
        ("estimator: grpo", "estimator: grpo, lam: 0.9", ("FR0217", "lam")),
        ("estimator: grpo", "estimator: best_worst, kl: {coef: 0.1}", ("FR0217", "kl")),
        ("keep: [entry]", "keep: [entry, prompt]", ("FR0205", "prompt")),
        ("max_response_tokens: 5, ", "", ("FR0222", "{temperature: 0.7}")),
        ("temperature: 0.7}", "temperature: 0.7}, generate@val: {top_k: 1}", ("FR0221", "generate@val")),
        ("arithmetic.py:reward", "arithmetics.py:reward", ("FR0210", '"arithmetics.py:reward"')),
        ("arithmetic.py:reward", "arithmetic.py:rewardd", ("FR0211", '"arithmetic.py:rewardd"')),
        ("- actor_train => actor_infer", "- actor_infer => actor_train", ("FR0301", "actor_infer => actor_train")),
        ("- actor_train => actor_infer", "- actor_train => reward", ("FR0301", "actor_train => reward")),
    ],
)  # fmt: skip
def test_names_are_checked_at_their_place(old: str, new: str, expected: tuple[str, str]) -> None:
    assert old in GRPO
    assert _marked(GRPO.replace(old, new)) == [expected]


def test_all_unknown_names_are_told_together() -> None:
    text = GRPO.replace("- reward.score ->", "- rewards.score ->").replace("loss: ppo", "loss: ppoo")
    text = text.replace("estimator: grpo", "estimator: gropo")
    assert sorted(d.code for d in refused(text)) == ["FR0201", "FR0215", "FR0216"]


def test_near_names_are_facts_not_questions() -> None:
    problem = refused(GRPO.replace("- reward.score ->", "- rewards.score ->"))[0]
    assert problem.helps[0].text == "a near name exists: `reward`"
    assert problem.helps[0].replacement == "  - reward.score -> advantage.estimate"
    problem = refused(GRPO.replace("- reward.score ->", "- reward.zzz ->"))[0]
    assert problem.helps[0].text == "name one of its ops: compare, score"


def test_weights_of_another_head_are_refused() -> None:
    text = PPO.replace("- actor_train => actor_infer", "- critic => actor_infer")
    assert [d.code for d in refused(text)] == ["FR0301"]


def test_weights_of_a_trainer_that_nothing_updates_are_refused() -> None:
    text = GRPO.replace("  - advantage.estimate -> actor_train.update\n", "")
    assert [d.code for d in refused(text)] == ["FR0301"]


def _params(graph: Graph, op: str) -> object:
    return graph.op(op).params


def test_parameters_of_every_kind() -> None:
    graph = compiled(PPO.replace("{loss: ppo}", "{loss: ppo, clip_ratio: {low: 0.2, high: 0.28}, epochs: 3}"))
    update = _params(graph, "actor_train.update")
    assert isinstance(update, UpdateParams)
    assert (update.clip_low, update.clip_high, update.updates, update.epochs) == (0.2, 0.28, 2, 3)
    estimate = _params(graph, "advantage.estimate")
    assert isinstance(estimate, EstimateParams)
    assert (estimate.normalize, estimate.gamma, estimate.lam, estimate.extra) == ("batch", 1.0, 1.0, {})
    assert estimate.kl is not None
    assert (estimate.kl.coef, estimate.kl.form) == (0.01, "k1")
    generate = _params(graph, "actor_infer.generate")
    assert isinstance(generate, GenerateParams)
    assert (generate.max_response_tokens, generate.samples_per_prompt) == (5, 4)
    score = _params(graph, "reward.score")
    assert isinstance(score, ScoreParams)
    assert (score.flavour, score.function) == ("function", "arithmetic.py:reward")
    assert {role.name: role.trainable for role in graph.roles if role.kind is Kind.TRAINER} == {
        "actor_train": True,
        "critic": True,
    }


def test_estimators_have_defaults_of_their_own() -> None:
    gigpo = lowered(GRPO.replace("estimator: grpo", "estimator: gigpo")).op("advantage.estimate").params
    assert isinstance(gigpo, EstimateParams)
    assert (gigpo.normalize, gigpo.gamma, gigpo.extra) == ("group", 0.95, {"step_weight": 1.0})
    rloo = lowered(GRPO.replace("estimator: grpo", "estimator: rloo, normalize: batch")).op("advantage.estimate")
    assert isinstance(rloo.params, EstimateParams)
    assert (rloo.params.normalize, rloo.granularity) == ("batch", "step")


def test_temperature_follows_the_tokens() -> None:
    for op in ("actor_train.log_probs", "reference.log_probs", "critic.values", "actor_train.update"):
        text = PPO.replace("max_response_tokens: 5", "max_response_tokens: 5, temperature: 0.6")
        assert getattr(_params(compiled(text), op), "temperature", None) == 0.6
    greedy = PPO.replace("max_response_tokens: 5", "max_response_tokens: 5, temperature: 0.0")
    assert getattr(_params(compiled(greedy), "actor_train.update"), "temperature", None) == 1.0


def test_labelled_calls_override_what_they_name() -> None:
    text = GRPO.replace(
        "temperature: 0.7}", "temperature: 0.7}, generate@val: {temperature: 0.0, samples_per_prompt: 2}"
    )
    text = text.replace(
        "step:", "  - data.train -> actor_infer.generate@val\n  - actor_infer.generate@val -> reward.score@val\nstep:"
    )
    val = _params(compiled(text), "actor_infer.generate@val")
    assert isinstance(val, GenerateParams)
    assert (val.temperature, val.samples_per_prompt, val.max_response_tokens) == (0.0, 2, 5)


SFT = """
flowrl: 1
name: sft
models: {policy: {source: some/model}}
data: {train: {source: "arithmetic.py:problems", args: {seed: 1, size: 9}, prompt: question, response: response}}
roles: {actor_train: {model: policy, backend: fsdp, update: {loss: sft}}}
edges: [data.train -> actor_train.update]
step: {prompts: 8, updates: 2}
"""


def test_supervised_training_reads_text() -> None:
    graph = compiled(SFT)
    assert inputs(graph, "actor_train.update") == {"prompt": "data.train.prompt", "response": "data.train.response"}
    data = graph.op("data.train")
    assert isinstance(data.params, DataParams)
    assert (data.role, data.method, data.params.prompts) == ("data.train", "train", 8)
    assert [d.code for d in refused(SFT.replace(", size: 9", ""))] == ["FR0214"]
    assert [d.code for d in refused(SFT.replace(", response: response", ""))] == ["FR0206"]


def test_a_reward_model_reads_text_and_has_a_scalar_head() -> None:
    text = PPO.replace('{function: "arithmetic.py:reward"}', "{model: value, backend: fsdp}")
    assert inputs(compiled(text), "reward.score") == {
        "prompt": "data.train.prompt",
        "response": "actor_infer.generate.response",
    }
    assert [d.code for d in refused(text.replace("{model: value, backend: fsdp}\n", "{model: policy}\n"))] == ["FR0218"]


def test_start_step_is_warm_up_of_one_update_and_what_it_feeds() -> None:
    text = PPO.replace(
        "  - advantage.estimate -> actor_train.update, critic.update\n",
        "  - advantage.estimate -> critic.update\n"
        "  - {edge: advantage.estimate -> actor_train.update, start_step: 20}\n",
    )
    starts = {op.id: op.start_step for op in compiled(text).ops if op.start_step}
    assert starts == {"actor_train.update": 20}


def test_periods_multiply_along_a_path() -> None:
    text = GRPO.replace(
        "- reward.score -> advantage.estimate", "- {edge: reward.score -> advantage.estimate, every_steps: 2}"
    )
    text = text.replace(
        "- advantage.estimate -> actor_train.update",
        "- {edge: advantage.estimate -> actor_train.update, every_steps: 3}",
    )
    periods = {op.id: op.every_steps for op in compiled(text).ops}
    assert periods["advantage.estimate"] == 2
    assert periods["actor_train.update"] == 6
    assert periods["data.train"] == periods["reward.score"] == 1


def test_stages_have_graphs_of_their_own() -> None:
    spec = load(EXAMPLES / "quickstart.yaml")
    names = [lower_stage(spec, index).name for index in range(len(spec.stages))]
    assert names == [stage.name for stage in spec.stages]
    last = lower_stage(spec, len(names) - 1)
    assert last.model("policy").source.startswith("stages.")


ROUTED = GRPO.replace(
    '  reward: {function: "arithmetic.py:reward"}',
    '  exact: {kind: reward, function: "arithmetic.py:reward"}\n'
    '  near: {kind: reward, function: "arithmetic.py:partial_credit"}\n'
    "  reward: {router: {by: entry, routes: {a: exact, b: near}}}",
)


def test_a_router_draws_its_inner_calls() -> None:
    graph = compiled(ROUTED)
    assert inputs(graph, "reward.score") == {
        "entry": "data.train.entry",
        "exact": "exact.score.rewards",
        "near": "near.score.rewards",
    }
    assert {op.id for op in graph.ops if op.derived} == {"exact.score", "near.score"}


TURNS = """
flowrl: 1
name: turns
models: {policy: {source: some/model}}
data: {train: {seeds: 100}}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: vllm, generate: {max_response_tokens: 64, max_turn_tokens: 8}}
  world: {kind: env, env: "gem:game:Sokoban-v0", max_turns: 4}
  best: {kind: filter, rule: spread, unit: group, keep_top: 0.25, by: world.rewards}
  advantage: {estimator: gigpo}
edges:
  - data.train -> world.reset
  - actor_infer.generate <-> world.step
  - actor_infer.generate -> best.select
  - best.select -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
step: {prompts: 8, samples_per_prompt: 16}
"""


def test_an_interaction_hands_on_the_fields_of_both_sides() -> None:
    graph = compiled(TURNS)
    assert inputs(graph, "actor_infer.generate") == {"prompt": "world.reset.prompt"}
    assert inputs(graph, "best.select") == {"rewards": "world.step.rewards"}
    assert inputs(graph, "advantage.estimate") == {
        "rewards": "world.step.rewards",
        "loss_mask": "actor_infer.generate.loss_mask",
        "turn_rewards": "world.step.turn_rewards",
        "state_key": "world.step.state_key",
    }
    assert graph.op("best.select").granularity == "step"
    assert not graph.removed


def _text_at(text: str, span: Span | None) -> str:
    assert span is not None
    return text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]


def test_a_model_is_blamed_at_its_source_and_at_what_else_is_written() -> None:
    (model,) = lowered(GRPO).models
    assert (_text_at(GRPO, model.span), model.spans) == ("some/model", {})
    text = GRPO.replace("{source: some/model}", "{source: some/model, dtype: float32, head: lm}")
    (model,) = lowered(text).models
    assert {key: _text_at(text, span) for key, span in model.spans.items()} == {"dtype": "float32", "head": "lm"}
    inline = "{architecture: qwen2, tokenizer: characters, hidden_size: 64, layers: 2, heads: 2, ffn_size: 128, "
    inline += "max_positions: 64}"
    text = GRPO.replace("some/model", inline)
    (model,) = lowered(text).models
    assert _text_at(text, model.span) == "policy"


@pytest.mark.parametrize("value", [None, "none", "full"])
def test_recomputation_is_left_open_unless_it_is_written(value: str | None) -> None:
    engine = "" if value is None else f", engine: {{recompute: {value}}}"
    graph = lowered(GRPO.replace("backend: fsdp", f"backend: fsdp{engine}"))
    assert graph.role("actor_train").engine.recompute == value
