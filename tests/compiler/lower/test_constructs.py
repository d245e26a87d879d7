"""Every kind and op of LANGUAGE.md lowers to what its table says; bound producers are written by hand from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import EdgeKind
from flowrl.graph.params import EnvParams, FilterParams, ScoreParams
from tests.compiler.constructs import EDGES, GEN, codes, compiled, flow, units
from tests.compiler.flows import inputs


def test_a_generator_writes_the_row_of_the_table(folder: Path) -> None:
    graph = compiled(folder, flow())
    assert inputs(graph, GEN) == {"prompt": "data.train.prompt"}
    assert units(graph, GEN) == {
        "tokens": ("token", "i32"),
        "loss_mask": ("token", "bool"),
        "rollout_log_probs": ("token", "f32"),
        "weight_version": ("token", "i32"),
        "response": ("sample", "str"),
        "finish_reason": ("sample", "i8"),
    }
    assert units(graph, "data.train") == {
        "prompt_id": ("prompt", "i64"),
        "prompt": ("prompt", "messages"),
        "answer": ("prompt", "json"),
    }


def test_images_go_to_every_model_that_reads_the_prompt(folder: Path) -> None:
    edges = (
        "data.pictures -> actor_infer.generate",
        "actor_infer.generate -> reward.score, reference.log_probs, critic.values, judge.score",
        "reward.score, critic.values -> advantage.estimate",
        "advantage.estimate, reference.log_probs -> actor_train.update",
        "advantage.estimate -> critic.update",
        "actor_train => actor_infer",
    )
    graph = compiled(
        folder,
        flow(
            edges,
            actor_train="{model: policy, backend: fsdp, update: {loss: ppo, kl: {coef: 0.1}, updates: 2}}",
            reference="{model: policy, backend: fsdp}",
            critic="{model: value, backend: fsdp, update: {loss: value}}",
            advantage="{estimator: gae}",
            judge='{kind: reward, model: judge_lm, backend: vllm, judge: {template: t.j2, parse: "f.py:verdict"}, '
            "generate: {max_response_tokens: 8}}",
        ),
    )
    readers = ("actor_infer.generate", "reference.log_probs", "critic.values", "critic.update", "actor_train.update")
    for op in (*readers, "actor_train.log_probs", "judge.ask"):
        assert inputs(graph, op)["images"] == "data.pictures.images", op
    assert "images" not in inputs(graph, "reward.score")
    assert "images" not in inputs(graph, "advantage.estimate")


def test_a_process_reward_of_turns_reads_what_the_environment_makes(folder: Path) -> None:
    edges = (
        "data.seeds -> world.reset",
        "actor_infer.generate <-> world.step",
        "actor_infer.generate -> reward.score",
        *EDGES[2:],
    )
    roles = {
        "world": '{kind: env, env: "worlds:Maze", max_turns: 4, args: {size: 3}}',
        "reward": '{function: "f.py:process", unit: turn}',
    }
    graph = compiled(folder, flow(edges, **roles, advantage="{estimator: reinforce}"))
    assert inputs(graph, "world.reset") == {"prompt_id": "data.seeds.prompt_id"}
    assert units(graph, "world.reset") == {"prompt": ("sample", "messages")}
    assert inputs(graph, GEN) == {"prompt": "world.reset.prompt"}
    assert units(graph, "world.step") == {
        "turn_rewards": ("turn", "f32"),
        "done": ("turn", "bool"),
        "state_key": ("turn", "i64"),
        "rewards": ("sample", "f32"),
        "success": ("sample", "bool"),
        "transcript": ("sample", "json"),
    }
    # The mask says where a row's turns are; the function does not read it.
    assert inputs(graph, "reward.score") == {
        "turn_rewards": "world.step.turn_rewards",
        "loss_mask": "actor_infer.generate.loss_mask",
    }
    assert units(graph, "reward.score") == {"rewards": ("turn", "f32")}
    assert inputs(graph, "advantage.estimate")["rewards"] == "reward.score.rewards"
    params = graph.op("world.step").params
    assert isinstance(params, EnvParams)
    assert (params.env, params.max_turns, params.args) == ("worlds:Maze", 4, {"size": 3})
    # GRPO compares one number a sample; rewards of turns are too fine for it.
    assert codes(folder, flow(edges, **roles)) == ["FR0208"]


def test_a_scorer_with_top_k_feeds_distillation(folder: Path) -> None:
    edges = (
        "data.train -> actor_infer.generate",
        "actor_infer.generate -> teacher.log_probs",
        "teacher.log_probs -> actor_train.update",
        "actor_train => actor_infer",
    )
    text = flow(
        edges,
        actor_train="{model: policy, backend: fsdp, update: {loss: distill}}",
        teacher="{kind: scorer, model: teacher, backend: vllm, top_k: 32}",
        reward="",
        advantage="",
    )
    graph = compiled(folder, text)
    assert inputs(graph, "actor_train.update") == {
        "tokens": "actor_infer.generate.tokens",
        "loss_mask": "actor_infer.generate.loss_mask",
        "ref_top_log_probs": "teacher.log_probs.ref_top_log_probs",
        "ref_top_tokens": "teacher.log_probs.ref_top_tokens",
    }
    assert units(graph, "teacher.log_probs")["ref_top_log_probs"] == ("token", "f32[32]")
    without = text.replace(", top_k: 32", "")
    with pytest.raises(FlowError) as refused:
        compiled(folder, without)
    assert "top_k" in refused.value.diagnostics[0].helps[0].text


JUDGE = (
    '{kind: reward, model: judge_lm, backend: vllm, judge: {template: t.j2, parse: "f.py:verdict"}, '
    "generate: {max_response_tokens: 8}}"
)


def test_judges_and_functions_compare_within_a_group(folder: Path) -> None:
    edges = (
        "data.train -> actor_infer.generate",
        "actor_infer.generate -> reward.compare, reference.log_probs",
        "reward.compare -> pairs.estimate",
        "pairs.estimate, reference.log_probs -> actor_train.update",
        "actor_train => actor_infer",
    )
    roles = {
        "actor_train": "{model: policy, backend: fsdp, update: {loss: dpo, beta: 0.1}}",
        "reference": "{model: policy, backend: fsdp}",
        "pairs": "{kind: estimator, estimator: best_worst}",
        "advantage": "",
    }
    graph = compiled(folder, flow(edges, **roles, reward=JUDGE))
    expected = {"prompt": "data.train.prompt", "response": "actor_infer.generate.response"}
    assert (inputs(graph, "reward.ask_pairs"), graph.op("reward.ask_pairs").granularity) == (expected, "group")
    assert inputs(graph, "reward.compare") == {"judge_answers": "reward.ask_pairs.judge_answers"}
    assert graph.op("reward.compare").granularity == "group"
    assert units(graph, "pairs.estimate") == {"pair_sign": ("sample", "i8")}
    assert inputs(graph, "actor_train.update") == {
        "tokens": "actor_infer.generate.tokens",
        "loss_mask": "actor_infer.generate.loss_mask",
        "pair_sign": "pairs.estimate.pair_sign",
        "ref_log_probs": "reference.log_probs.ref_log_probs",
    }
    by_function = compiled(folder, flow(edges, **roles, reward='{function: "f.py:winner"}'))
    assert inputs(by_function, "reward.compare") == expected
    assert codes(folder, flow(edges, **roles, reward="{model: value, backend: fsdp}")) == ["FR0227"]


def test_a_judge_needs_the_function_that_reads_its_answer(folder: Path) -> None:
    assert codes(folder, flow(reward=JUDGE.replace("verdict", "verdicts").replace("kind: reward, ", ""))) == ["FR0211"]


def test_a_sandbox_reads_the_column_of_tests(folder: Path) -> None:
    graph = compiled(folder, flow(reward="{sandbox: {image: py311, tests: answer}}"))
    assert inputs(graph, "reward.score") == {
        "response": "actor_infer.generate.response",
        "answer": "data.train.answer",
    }
    assert codes(folder, flow(reward="{sandbox: {image: py311, tests: tests}}")) == ["FR0206"]


@pytest.mark.parametrize(
    ("keys", "reads", "granularity"),
    [
        ("rule: zero_spread", {"rewards": "reward.score.rewards"}, "group"),
        ("rule: threshold, unit: sample, min: 0.5", {"rewards": "reward.score.rewards"}, "sample"),
        ("rule: spread, keep_top: 0.5", {"rewards": "reward.score.rewards"}, "step"),
        ("rule: truncated, unit: sample", {"finish_reason": "actor_infer.generate.finish_reason"}, "sample"),
        ("rule: threshold, by: data.train.answer, max: 3.0", {"answer": "data.train.answer"}, "group"),
        ('rule: function, function: "f.py:hard", args: {limit: 2}', {"rewards": "reward.score.rewards"}, "group"),
    ],
)
def test_filters(folder: Path, keys: str, reads: dict[str, str], granularity: str) -> None:
    edges = (*EDGES[:2], "reward.score -> sift.select", "sift.select -> advantage.estimate", *EDGES[3:])
    graph = compiled(folder, flow(edges, sift=f"{{kind: filter, {keys}}}"))
    op = graph.op("sift.select")
    assert (inputs(graph, "sift.select"), op.granularity) == (reads, granularity)
    assert units(graph, "sift.select") == {"keep": ("sample", "bool")}
    assert isinstance(op.params, FilterParams)
    verdicts = [e for e in graph.edges if e.kind is EdgeKind.STATE and e.fields]
    assert [(e.source, e.target, e.fields) for e in verdicts] == [("sift.select", "advantage.estimate", ("keep",))]
    assert not graph.removed


UNITS = [
    ("prompt", "before", "rewrite", "prompt: {unit: prompt, dtype: messages}", {"prompt": "data.train.prompt"}),
    ("sample", "beside", "lengths", "length: {unit: sample, dtype: i32}", {"response": f"{GEN}.response"}),
    ("sample", "beside", "slow", "note: {unit: sample, dtype: str}", {"response": f"{GEN}.response"}),
    ("group", "beside", "lengths", "length: {unit: sample, dtype: i32}", {"response": f"{GEN}.response"}),
    (
        "step",
        "behind",
        "weigh",
        "advantages: {unit: token, dtype: f32}",
        {"tokens": f"{GEN}.tokens", "advantages": "advantage.estimate.advantages"},
    ),
    (
        "minibatch",
        "behind",
        "weigh",
        "advantages: {unit: token, dtype: f32}",
        {"tokens": f"{GEN}.tokens", "advantages": "advantage.estimate.advantages"},
    ),
]


@pytest.mark.parametrize(("unit", "place", "name", "outputs", "reads"), UNITS)
def test_functions_of_every_unit_anywhere(
    folder: Path, unit: str, place: str, name: str, outputs: str, reads: dict[str, str]
) -> None:
    between = {
        "before": ("data.train -> extra.call", "extra.call -> actor_infer.generate", *EDGES[1:]),
        "beside": (
            EDGES[0],
            "actor_infer.generate -> reward.score, extra.call, use.score",
            "extra.call -> use.score",
            *EDGES[2:],
        ),
        "behind": (*EDGES[:3], "advantage.estimate -> extra.call", "extra.call -> actor_train.update", EDGES[4]),
    }[place]
    column = outputs.partition(":")[0]
    (folder / "use.py").write_text(f"def use({column}): ...\n", encoding="utf-8")
    use = {"use": '{kind: reward, function: "use.py:use"}'} if place == "beside" else {}
    role = f'{{kind: function, function: "f.py:{name}", unit: {unit}, outputs: {{{outputs}}}}}'
    graph = compiled(folder, flow(between, extra=role, **use))
    op = graph.op("extra.call")
    assert (inputs(graph, "extra.call"), op.granularity) == (reads, unit)
    reader = {"before": GEN, "beside": "use.score", "behind": "actor_train.update"}[place]
    assert inputs(graph, reader)[column] == f"extra.call.{column}"


def test_two_actors_of_one_model_have_weights_of_their_own(folder: Path) -> None:
    edges = (
        "data.train -> debate.reset",
        "actor_infer.generate, other_infer.generate <-> debate.step",
        "actor_infer.generate -> reward.score",
        "other_infer.generate -> other_reward.score",
        "reward.score -> advantage.estimate",
        "other_reward.score -> other_advantage.estimate",
        "advantage.estimate -> actor_train.update",
        "other_advantage.estimate -> other_train.update",
        "actor_train => actor_infer",
        "other_train => other_infer",
    )
    graph = compiled(
        folder,
        flow(
            edges,
            debate='{kind: env, env: "worlds:Debate", max_turns: 3}',
            other_train="{kind: trainer, model: policy, backend: fsdp, update: {loss: ppo}}",
            other_infer="{kind: generator, model: policy, backend: vllm, generate: {max_response_tokens: 64}}",
            reward='{function: "f.py:solver"}',
            other_reward='{kind: reward, function: "f.py:solver"}',
            other_advantage="{kind: estimator, estimator: grpo}",
        ),
    )
    read = {name: f"data.train.{name}" for name in ("prompt_id", "prompt", "answer")}
    assert inputs(graph, "debate.reset") == read
    for mine, reward, advantage in (
        ("actor_infer", "reward", "advantage"),
        ("other_infer", "other_reward", "other_advantage"),
    ):
        assert inputs(graph, f"{mine}.generate") == {"prompt": "debate.reset.prompt"}
        assert inputs(graph, f"{reward}.score") == {
            "response": f"{mine}.generate.response",
            "transcript": "debate.step.transcript",
            "answer": "data.train.answer",
        }
        trainer = mine.replace("infer", "train")
        assert inputs(graph, f"{trainer}.update")["tokens"] == f"{mine}.generate.tokens"
        assert inputs(graph, f"{trainer}.update")["advantages"] == f"{advantage}.estimate.advantages"
    weights = {(e.source, e.target) for e in graph.edges if e.kind is EdgeKind.WEIGHTS}
    assert weights == {("actor_train", "actor_infer"), ("other_train", "other_infer")}
    assert all(role.shares is None for role in graph.roles)


def test_an_ensemble_is_a_weighted_sum_that_hides_its_parts(folder: Path) -> None:
    edges = (
        EDGES[0],
        "actor_infer.generate -> right.score, style.score",
        "right.score, style.score -> reward.score",
        *EDGES[2:],
    )
    graph = compiled(
        folder,
        flow(
            edges,
            right='{kind: reward, function: "f.py:exact"}',
            style='{kind: reward, function: "f.py:style"}',
            reward="{combine: {right: 1.0, style: 0.25}}",
        ),
    )
    assert inputs(graph, "reward.score") == {"right": "right.score.rewards", "style": "style.score.rewards"}
    assert inputs(graph, "advantage.estimate")["rewards"] == "reward.score.rewards"
    params = graph.op("reward.score").params
    assert isinstance(params, ScoreParams)
    assert params.extra["combine"] == {"right": 1.0, "style": 0.25}


def test_gigpo_and_best_of_groups(folder: Path) -> None:
    edges = ("data.seeds -> world.reset", f"{GEN} <-> world.step", f"{GEN} -> advantage.estimate", *EDGES[3:])
    world = '{kind: env, env: "worlds:Maze", max_turns: 4}'
    graph = compiled(folder, flow(edges, world=world, reward="", advantage="{estimator: gigpo}"))
    assert inputs(graph, "advantage.estimate") == {
        "rewards": "world.step.rewards",
        "loss_mask": f"{GEN}.loss_mask",
        "turn_rewards": "world.step.turn_rewards",
        "state_key": "world.step.state_key",
    }


def test_a_denoiser_has_latents_and_sigmas_for_tokens(folder: Path) -> None:
    graph = compiled(
        folder,
        flow(
            actor_train="{model: painter, backend: fsdp, update: {loss: ppo, updates: 2}}",
            actor_infer="{model: painter, backend: diffusers, generate: {denoise_steps: 16}}",
            reward='{function: "f.py:style"}',
        ),
    )
    made = units(graph, GEN)
    assert "tokens" not in made
    assert (made["latents"], made["sigmas"], made["response"]) == (
        ("token", "f16[C,H,W]"),
        ("token", "f32"),
        ("sample", "image"),
    )
    assert inputs(graph, "actor_train.log_probs") == {
        "latents": f"{GEN}.latents",
        "sigmas": f"{GEN}.sigmas",
        "step_noise": f"{GEN}.step_noise",
        "text_states": f"{GEN}.text_states",
        "text_pooled": f"{GEN}.text_pooled",
        "loss_mask": f"{GEN}.loss_mask",
        "rollout_log_probs": f"{GEN}.rollout_log_probs",
    }
    assert inputs(graph, "actor_train.update")["latents"] == f"{GEN}.latents"


def test_offline_pairs_train_a_reward_model(folder: Path) -> None:
    graph = compiled(
        folder,
        flow(
            ("data.pairs -> rm.update",),
            rm="{kind: trainer, model: value, backend: fsdp, update: {loss: bradley_terry}}",
            actor_train="",
            actor_infer="",
            reward="",
            advantage="",
            step="{prompts: 8}",
        ),
    )
    assert inputs(graph, "rm.update") == {
        "prompt": "data.pairs.prompt",
        "response": "data.pairs.response",
        "pair_sign": "data.pairs.pair_sign",
    }
