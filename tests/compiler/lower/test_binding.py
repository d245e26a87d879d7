"""LANGUAGE.md, "Binding" and "Edges": labels, choices, sample spaces, weights, both forms of an edge, mixes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import EdgeKind
from flowrl.graph.params import DataParams
from flowrl.graph.text import graph_digest
from flowrl.spec import loads
from tests.compiler.constructs import EDGES, GEN, HEAD, codes, compiled, flow, units
from tests.compiler.flows import inputs


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
    late = "{edge: actor_infer.generate@greedy -> reward.score@greedy, start_step: 3}"
    warmed = compiled(folder, flow((*edges, late), advantage=remax, actor_infer=greedy))
    assert {op.id for op in warmed.ops if op.start_step == 3} >= {"reward.score@greedy", "advantage.estimate"}
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
    read = {name: f"data.val.{name}" for name in ("prompt_id", "prompt", "answer")}
    assert inputs(graph, "world.reset@val") == read


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
