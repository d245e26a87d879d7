"""Every construct of LANGUAGE.md lowers to what its tables say; bound producers are written by hand from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.params import DataParams, EnvParams, FilterParams, ScoreParams
from flowrl.graph.text import graph_digest
from flowrl.spec import loads
from tests.compiler.flows import inputs

CODE = """
def exact(response, answer): ...
def style(prompt, response): ...
def process(turn_rewards): ...
def solver(response, transcript, answer): ...
def winner(prompt, response, hint=None): ...
def rewrite(prompt): ...
def weigh(tokens, advantages): ...
def lengths(response): ...
def whole(rewards): ...
def hard(rewards, limit): ...
def verdict(reply): ...
def old(old_log_probs): ...
def spread(rewards, entropy=None, old_log_probs=None): ...
async def slow(response): ...
def drafts(response, draft): ...
"""
HEAD = """
flowrl: 1
name: any
models:
  policy: {source: some/model}
  value: {source: some/model, head: scalar}
  teacher: {source: big/model}
  judge_lm: {source: big/judge}
  adapted: {source: some/model, lora: {rank: 8, alpha: 16}}
  painter: {source: some/painter, head: denoiser}
data:
  train: {source: rows.jsonl, prompt: question, keep: [answer]}
  val: {source: val.jsonl, prompt: question, keep: [answer]}
  pictures: {source: pictures.jsonl, prompt: question, images: photos, keep: [answer]}
  pairs: {source: pairs.jsonl, prompt: question, chosen: good, rejected: bad}
  seeds: {seeds: 100}
"""
ROLES = {
    "actor_train": "{model: policy, backend: fsdp, update: {loss: ppo}}",
    "actor_infer": "{model: policy, backend: vllm, generate: {max_response_tokens: 64}}",
    "reward": '{function: "f.py:exact"}',
    "advantage": "{estimator: grpo}",
}
EDGES = (
    "data.train -> actor_infer.generate",
    "actor_infer.generate -> reward.score",
    "reward.score -> advantage.estimate",
    "advantage.estimate -> actor_train.update",
    "actor_train => actor_infer",
)
GEN = "actor_infer.generate"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow")
    (folder / "f.py").write_text(CODE, encoding="utf-8")
    return folder


def flow(edges: tuple[str, ...] = EDGES, head: str = HEAD, step: str = "", **roles: str) -> str:
    written = {**ROLES, **roles}
    lines = [f"  {name}: {role}" for name, role in written.items() if role]
    drawn = [f"  - {edge}" for edge in edges]
    size = step or "{prompts: 8, samples_per_prompt: 4}"
    return "\n".join([head, "roles:", *lines, "edges:", *drawn, f"step: {size}", ""])


def compiled(folder: Path, text: str) -> Graph:
    return run_passes(lower_stage(loads(text, folder=str(folder)), 0))[0]


def codes(folder: Path, text: str) -> list[str]:
    try:
        compiled(folder, text)
    except FlowError as error:
        return [diagnostic.code for diagnostic in error.diagnostics]
    return []


def units(graph: Graph, op: str) -> dict[str, tuple[str, str]]:
    return {field.name: (str(field.unit), field.dtype) for field in graph.op(op).outputs}


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
    for op in (*readers, "actor_train.log_probs", "judge.score"):
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
    assert inputs(graph, "reward.score") == {"turn_rewards": "world.step.turn_rewards"}
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
    assert (inputs(graph, "reward.compare"), graph.op("reward.compare").granularity) == (expected, "group")
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
    assert inputs(graph, "debate.reset") == {"prompt_id": "data.train.prompt_id", "answer": "data.train.answer"}
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


def test_any_op_has_labelled_calls(folder: Path) -> None:
    edges = (
        *EDGES,
        "{edge: data.val -> actor_infer.generate@val, every_steps: 20}",
        "actor_infer.generate@val -> reward.score@val, reference.log_probs@val, actor_train.log_probs@val",
        "reward.score@val, reference.log_probs@val, actor_train.log_probs@val -> advantage.estimate@val",
        "advantage.estimate@val -> report.score@val",
    )
    (Path(folder) / "report.py").write_text("def report(advantages): ...\n", encoding="utf-8")
    graph = compiled(
        folder,
        flow(
            edges,
            reference="{model: policy, backend: fsdp}",
            report='{kind: reward, function: "report.py:report"}',
            actor_infer="{model: policy, backend: vllm, generate: {max_response_tokens: 64}, "
            "generate@val: {samples_per_prompt: 2, temperature: 0.0}}",
        ),
    )
    assert inputs(graph, "reward.score") == {"response": f"{GEN}.response", "answer": "data.train.answer"}
    assert inputs(graph, "reward.score@val") == {"response": f"{GEN}@val.response", "answer": "data.val.answer"}
    assert inputs(graph, "report.score@val") == {"advantages": "advantage.estimate@val.advantages"}
    periods = {op.id: op.every_steps for op in graph.ops}
    assert {periods[id] for id in periods if "val" in id} == {20}
    assert periods["actor_train.update"] == 1


def test_choices_name_role_label_and_field(folder: Path) -> None:
    edges = (
        "data.train -> actor_infer.generate, actor_infer.generate@greedy",
        "actor_infer.generate -> reward.score",
        "actor_infer.generate@greedy -> reward.score@greedy",
        *EDGES[2:],
    )
    remax = "{estimator: remax, inputs: {baseline_rewards: reward@greedy.rewards}}"
    greedy = "{model: policy, backend: vllm, generate: {max_response_tokens: 64}, generate@greedy: {temperature: 0.0}}"
    graph = compiled(folder, flow(edges, advantage=remax, actor_infer=greedy))
    assert inputs(graph, "advantage.estimate") == {
        "rewards": "reward.score.rewards",
        "baseline_rewards": "reward.score@greedy.rewards",
        "loss_mask": f"{GEN}.loss_mask",
    }
    two = greedy.replace("temperature: 0.0", "samples_per_prompt: 2")
    assert codes(folder, flow(edges, advantage=remax, actor_infer=two)) == ["FR0308"]
    nobody = remax.replace("reward@greedy", "reward@gready")
    assert codes(folder, flow(edges, advantage=nobody, actor_infer=greedy)) == ["FR0219"]


def test_a_labelled_reader_never_takes_the_samples_of_another_call(folder: Path) -> None:
    edges = (
        "data.train -> actor_infer.generate",
        "actor_infer.generate -> right.score",
        "right.score -> reward.score",
        *EDGES[2:],
        "data.val -> actor_infer.generate@val",
        "actor_infer.generate@val -> reward.score@val",
    )
    roles = {"right": '{kind: reward, function: "f.py:exact"}', "reward": "{combine: {right: 1.0}}"}
    with pytest.raises(FlowError) as refused:
        compiled(
            folder, flow(edges, step="{prompts: 8, samples_per_prompt: 1}", **roles, advantage="{estimator: reinforce}")
        )
    (problem,) = refused.value.diagnostics
    assert problem.code == "FR0206"
    assert problem.helps[0].text == "draw the edge `- right.score@val -> reward.score@val`"
    drawn = (*edges[:-1], "actor_infer.generate@val -> right.score@val", "right.score@val -> reward.score@val")
    graph = compiled(folder, flow(drawn, **roles))
    assert inputs(graph, "reward.score@val") == {"right": "right.score@val.rewards"}


def test_a_chain_of_generators_is_two_sample_spaces(folder: Path) -> None:
    second = "{kind: generator, model: policy, backend: vllm, frozen: true, generate: {max_response_tokens: 64}}"
    edges = (
        "data.train -> first.generate, actor_infer.generate",
        "actor_infer.generate -> reward.score",
        *EDGES[2:],
    )
    draft = '{function: "f.py:drafts", inputs: {draft: first.response}}'
    good = flow(
        edges,
        first=second,
        reward=draft,
        step="{prompts: 8, samples_per_prompt: 1}",
        advantage="{estimator: reinforce}",
    )
    assert inputs(compiled(folder, good), "reward.score") == {
        "response": f"{GEN}.response",
        "draft": "first.generate.response",
    }
    joined = (*edges, "first.generate -> reward.score")
    assert codes(folder, flow(joined, first=second, reward=draft)) == ["FR0334"]
    chained = (*edges, "first.generate -> actor_infer.generate")
    assert codes(folder, flow(chained, first=second)) == ["FR0334"]


def test_fields_of_an_edge_let_only_the_named_pass(folder: Path) -> None:
    edges = (*EDGES[:2], f"{{edge: {GEN} -> reward.score, fields: [response, answer]}}", *EDGES[2:])
    # The same edge twice is one edge with the attribute.
    graph = compiled(
        folder,
        flow((EDGES[0], edges[2], "reward.score -> advantage.estimate", f"{GEN} -> advantage.estimate", *EDGES[3:])),
    )
    assert inputs(graph, "reward.score") == {"response": f"{GEN}.response", "answer": "data.train.answer"}
    assert (
        codes(folder, flow((EDGES[0], f"{{edge: {GEN} -> reward.score, fields: [answer]}}", *EDGES[2:])))[0] == "FR0206"
    )


def test_weights_refresh_a_reference_every_so_often(folder: Path) -> None:
    edges = (
        EDGES[0],
        f"{GEN} -> reward.score, reference.log_probs",
        EDGES[2],
        "advantage.estimate, reference.log_probs -> actor_train.update",
        EDGES[4],
        "{edge: actor_train => reference, every_steps: 50}",
    )
    roles = {
        "actor_train": "{model: policy, backend: fsdp, update: {loss: ppo, kl: {coef: 0.1}}}",
        "reference": "{model: policy, backend: fsdp}",
    }
    graph = compiled(folder, flow(edges, **roles))
    refresh = next(e for e in graph.edges if e.kind is EdgeKind.WEIGHTS and e.target == "reference")
    assert (refresh.every_steps, refresh.tokens, refresh.origin) == (50, 1, ("actor_train => reference",))


def test_a_reward_model_may_be_refreshed_and_a_function_may_not(folder: Path) -> None:
    edges = (*EDGES, "data.pairs -> rm.update", "rm => reward")
    rm = "{kind: trainer, model: value, backend: fsdp, update: {loss: bradley_terry}}"
    graph = compiled(folder, flow(edges, rm=rm, reward="{model: value, backend: fsdp}"))
    assert {e.target for e in graph.edges if e.kind is EdgeKind.WEIGHTS} == {"actor_infer", "reward"}
    assert codes(folder, flow(edges, rm=rm)) == ["FR0301"]


def test_long_form_is_the_short_form(folder: Path) -> None:
    short = compiled(folder, flow())
    long = compiled(folder, flow(tuple(f'{{edge: "{edge}"}}' for edge in EDGES)))
    assert graph_digest(short) == graph_digest(long)
    fanned = (
        EDGES[0],
        f"{GEN} -> reward.score, style.score",
        "reward.score, style.score -> advantage.estimate",
        *EDGES[3:],
    )
    single = (
        EDGES[0],
        f"{GEN} -> reward.score",
        f"{GEN} -> style.score",
        "reward.score -> advantage.estimate",
        "style.score -> advantage.estimate",
        *EDGES[3:],
    )
    roles = {
        "style": '{kind: reward, function: "f.py:style"}',
        "advantage": "{estimator: grpo, inputs: {rewards: reward.rewards}}",
    }
    assert graph_digest(compiled(folder, flow(fanned, **roles))) == graph_digest(
        compiled(folder, flow(single, **roles))
    )


def test_labelled_interactions_rest_together(folder: Path) -> None:
    edges = (
        "data.seeds -> world.reset",
        f"{GEN} <-> world.step",
        f"{GEN} -> advantage.estimate",
        *EDGES[3:],
        "{edge: data.val -> world.reset@val, every_steps: 10}",
        f"{GEN}@val <-> world.step@val",
        f"{GEN}@val -> reward.score@val",
    )
    world = '{kind: env, env: "worlds:Maze", max_turns: 4}'
    graph = compiled(folder, flow(edges, world=world))
    periods = {op.id: op.every_steps for op in graph.ops}
    ops = ("data.val", "world.reset@val", f"{GEN}@val", "reward.score@val")
    assert [periods[id] for id in ops] == [10, 10, 10, 10]
    assert inputs(graph, f"{GEN}@val") == {"prompt": "world.reset@val.prompt"}
    assert inputs(graph, "world.reset@val") == {"prompt_id": "data.val.prompt_id", "answer": "data.val.answer"}


def test_old_log_probs_reach_over_functions_and_into_metrics(folder: Path) -> None:
    kl = "{estimator: grpo, kl: {coef: 0.1}}"
    edges = (
        EDGES[0],
        f"{GEN} -> reward.score, reference.log_probs",
        "reward.score, reference.log_probs -> advantage.estimate",
        "advantage.estimate -> weigh.call",
        "weigh.call -> actor_train.update",
        EDGES[4],
    )
    weigh = '{kind: function, function: "f.py:weigh", outputs: {advantages: {unit: token, dtype: f32}}}'
    step = "{prompts: 8, samples_per_prompt: 4, updates: 2}"
    roles = {"reference": "{model: policy, backend: fsdp}", "weigh": weigh, "advantage": kl}
    graph = compiled(folder, flow(edges, step=step, **roles))
    for op in ("advantage.estimate", "actor_train.update"):
        assert inputs(graph, op)["old_log_probs"] == "actor_train.log_probs.old_log_probs"
    metric = (*EDGES, f"{GEN} -> actor_train.log_probs, drift.score", "actor_train.log_probs -> drift.score")
    graph = compiled(folder, flow(metric, drift='{kind: reward, function: "f.py:old"}'))
    assert inputs(graph, "drift.score") == {"old_log_probs": "actor_train.log_probs.old_log_probs"}
    graph = compiled(
        folder, flow((*EDGES, "reward.score -> drift.score"), drift='{kind: reward, function: "f.py:spread"}')
    )
    assert inputs(graph, "drift.score") == {"rewards": "reward.score.rewards"}


def test_frozen_generators_and_unread_rewards_stay(folder: Path) -> None:
    frozen = "{model: policy, backend: vllm, frozen: true, generate: {max_response_tokens: 64}}"
    graph, warnings = run_passes(
        lower_stage(loads(flow((*EDGES[:2],), actor_infer=frozen, actor_train="", advantage=""), folder=str(folder)), 0)
    )
    assert {op.id for op in graph.ops} == {"data.train", GEN, "reward.score"}
    assert warnings == ()
    assert graph.role("actor_infer").frozen


def test_two_trainers_learn_from_one_batch(folder: Path) -> None:
    other = "{kind: trainer, model: policy, backend: fsdp, update: {loss: ppo}}"
    edges = (*EDGES[:3], "advantage.estimate -> actor_train.update, other.update", EDGES[4])
    graph = compiled(folder, flow(edges, other=other))
    mine, theirs = inputs(graph, "actor_train.update"), inputs(graph, "other.update")
    assert {slot: mine[slot] for slot in ("tokens", "loss_mask", "advantages")} == {
        slot: theirs[slot] for slot in ("tokens", "loss_mask", "advantages")
    }
    assert mine["old_log_probs"] == f"{GEN}.rollout_log_probs"  # it made the samples, and has not moved
    assert theirs["old_log_probs"] == "other.log_probs.old_log_probs"
    two_losses = flow((*EDGES[:3], "advantage.estimate -> actor_train.update, actor_train.update@sft", EDGES[4]))
    assert codes(folder, two_losses) == ["FR0311"]


def test_data_of_a_mix_is_typed_by_its_sources(folder: Path) -> None:
    head = HEAD + (
        "  code: {source: code.jsonl, prompt: task, images: shots, keep: [tests], max_prompt_tokens: 40}\n"
        "  math: {source: math.jsonl, prompt: problem, keep: [answer], max_prompt_tokens: 30}\n"
        "  both: {mix: {code: 1.0}, tag: inner}\n"
        "  mixed: {mix: {math: 0.66, both: 0.33}, tag: domain}\n"
    )
    graph = compiled(folder, flow(("data.mixed -> actor_infer.generate", *EDGES[1:]), head=head))
    params = graph.op("data.mixed").params
    assert isinstance(params, DataParams)
    assert units(graph, "data.mixed") == {
        "prompt_id": ("prompt", "i64"),
        "prompt": ("prompt", "messages"),
        "images": ("prompt", "bytes[]"),
        "answer": ("prompt", "json"),
        "tests": ("prompt", "json"),
        "inner": ("prompt", "str"),
        "domain": ("prompt", "str"),
    }
    assert params.mix == {"math": pytest.approx(2 / 3), "both": pytest.approx(1 / 3)}
    assert {name: source.prompt for name, source in params.sources.items()} == {"math": "problem", "both": "prompt"}
    assert params.sources["both"].sources["code"].prompt == "task"
    assert params.max_prompt_tokens == 40
    plain = replace(params, sources={}, mix={})
    assert (params.has("answer"), params.sources["math"].has("answer"), plain.has("answer")) == (False, True, True)
