"""The builder says the whole language: every kind, joins, columns, interactions, pools, what a preset has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.spec import FlowBuilder
from flowrl.spec.schema import FlowDocument

HERE = "tests/spec/test_builder_language.py"


class Maze:
    def reset(self, seed: int) -> str:
        return "start"


def count(response: list[str]) -> list[int]:
    return [len(text) for text in response]


def begin(**keys: Any) -> FlowBuilder:
    flow = FlowBuilder("demo", **keys)
    flow.step(prompts=4, samples_per_prompt=2)
    return flow


def edges(document: FlowDocument) -> list[str]:
    return [edge.text for edge in document.edges]


def faults(flow: FlowBuilder) -> list[Diagnostic]:
    with pytest.raises(FlowError) as caught:
        flow.spec()
    return list(caught.value.diagnostics)


def marked(diagnostic: Diagnostic) -> str:
    """The source text under the primary label."""
    span = diagnostic.labels[0].span
    line = Path(__file__).read_text(encoding="utf-8").split("\n")[span.line - 1]
    assert (span.file, span.line) == (HERE, span.end_line)
    return line[span.column - 1 : span.end_column - 1]


def test_every_kind_has_its_ops() -> None:
    flow = begin()
    policy = flow.model("policy", "x")
    batch = flow.generator("g", policy, max_response_tokens=8).generate(flow.data("train", seeds=4))
    kept = flow.filter("f", "threshold", min=0.5).select(flow.reward("r", count).compare(batch))
    counted = flow.function("n", count, outputs={"length": {"unit": "sample", "dtype": "i64"}}).call(kept)
    known = flow.scorer("s", "policy").values(batch)
    trainer = flow.trainer("t", policy, loss="ppo")
    trainer.update(flow.estimator("e", "grpo").estimate(counted, known) & trainer.values(batch))
    document = flow.spec().document
    kinds = {name: role.kind for name, role in document.roles.items()}
    assert kinds == {
        "g": "generator", "f": "filter", "r": "reward", "n": "function", "s": "scorer", "t": "trainer", "e": "estimator"
    }  # fmt: skip
    assert edges(document) == [
        "data.train -> g.generate",
        "g.generate -> r.compare",
        "r.compare -> f.select",
        "f.select -> n.call",
        "g.generate -> s.values",
        "n.call, s.values -> e.estimate",
        "g.generate -> t.values",
        "e.estimate, t.values -> t.update",
    ]


def test_joins_keep_their_order_however_they_are_written() -> None:
    flow = begin()
    a, b, c, d = (flow.op(f"r{name}.score") for name in "abcd")
    target = flow.estimator("e", "grpo")
    target.estimate(a & b & c, d)
    target.estimate(a & (b & c), d, label="x")
    first, second = edges(flow.spec().document)
    assert first == "ra.score, rb.score, rc.score, rd.score -> e.estimate"
    assert second == f"{first}@x"


def test_columns_choose_inputs_filters_and_gates() -> None:
    """LANGUAGE.md, rule 3: ReMax's baseline crosses sample spaces; metrics put the label last."""
    flow = FlowBuilder("demo")
    stage = flow.stage("only")
    infer = stage.generator("actor_infer", "policy", max_response_tokens=8)
    train = stage.data("train", "t.jsonl", keep=["answer"])
    reward = stage.reward("reward", count)
    greedy = reward.score(infer.generate(train, label="greedy", temperature=0.0))
    scored = reward.score(infer.generate(train))
    advantage = stage.estimator("advantage", "remax")
    advantage.estimate(scored, inputs={"baseline_rewards": greedy["rewards"], "answer": train["answer"]})
    stage.filter("f", "threshold", by=scored["rewards"], min=0)
    stage.gate(greedy["rewards"], at_least=0.5)
    stage.step(prompts=4)
    made = flow.spec().stages[0]
    chosen = {"baseline_rewards": "reward@greedy.rewards", "answer": "data.train.answer"}
    assert made.roles["advantage"].inputs == chosen
    assert made.roles["f"].by == "reward.rewards"  # type: ignore[union-attr]
    assert made.gate is not None
    assert made.gate.metric == "reward.rewards@greedy"


def test_interaction() -> None:
    flow = begin()
    one, two = (flow.generator(name, "policy", max_response_tokens=8) for name in ("one", "two"))
    maze = flow.env("maze", Maze, max_turns=3)
    maze.reset(flow.data("train", seeds=4))
    left, right = maze.interact(one, two, timeout_seconds=30, on_timeout="drop")
    held_out = one.interact(maze, label="val", temperature=0.0)
    assert (left.source, right.source, held_out.source) == ("one.generate", "two.generate", "one.generate@val")
    document = flow.spec().document
    assert edges(document)[1:] == [
        "one.generate, two.generate <-> maze.step",
        "one.generate@val <-> maze.step@val",
    ]
    assert (document.edges[1].timeout_seconds, document.edges[1].on_timeout) == (30, "drop")
    assert document.roles["one"].labelled["val"].temperature == 0.0  # type: ignore[union-attr]
    assert document.roles["maze"].env == "test_builder_language.py:Maze"  # type: ignore[union-attr]


def test_sampling_keys_follow_the_label_of_the_batches() -> None:
    flow = begin()
    infer = flow.generator("actor_infer", "policy", max_response_tokens=8, temperature=1.0)
    held_out = flow.function("f", count, outputs={}).call(flow.data("val", "v.jsonl"), label="val")
    infer.generate(held_out, temperature=0.0)
    role = flow.spec().document.roles["actor_infer"]
    assert role.generate.temperature == 1.0  # type: ignore[union-attr]
    assert role.labelled["val"].temperature == 0.0  # type: ignore[union-attr]


def test_weights_with_attributes_and_edges_as_text() -> None:
    flow = begin()
    actor = flow.trainer("a", "policy", loss="ppo")
    infer = flow.generator("b", "policy", max_response_tokens=8)
    flow.weights(actor, infer, every_updates=2, max_lag=1, transport="nccl")
    flow.edge("b.generate -> a.update", start_step=3, fields=["tokens"])
    weights, data = flow.spec().document.edges
    assert (weights.every_updates, weights.max_lag, weights.transport) == (2, 1, "nccl")
    assert (data.text, data.start_step, data.fields) == ("b.generate -> a.update", 3, ("tokens",))


def test_pools_groups_and_wishes() -> None:
    flow = begin()
    infer = flow.generator("b", "policy", max_response_tokens=8)
    actor = flow.trainer("a", "policy", loss="ppo")
    fast = flow.group("fast", "H100-80G", nodes=2, gpus_per_node=8)
    rollout = flow.pool("rollout", 16, [infer], group=fast, layouts={infer: {"tp": 2}})
    flow.placement(pin={actor: rollout}, apart=[[actor, infer]])
    document = flow.spec().document
    assert document.cluster.groups["fast"].nodes == 2  # type: ignore[union-attr]
    placement: Any = document.placement
    assert placement.pools["rollout"].model_dump(exclude_unset=True) == {
        "gpus": 16, "roles": ("b",), "group": "fast", "layouts": {"b": {"tp": 2}}
    }  # fmt: skip
    assert (placement.pin, placement.apart) == ({"a": "rollout"}, (("a", "b"),))


def test_what_a_preset_has_need_not_be_said_again() -> None:
    flow = FlowBuilder("demo", use="grpo")
    flow.model("policy", "x")
    infer = flow.generator("actor_infer")
    flow.reward("reward", count)
    infer.generate(flow.data("train", "t.jsonl"), remove=True)
    flow.edge("reward.score -> advantage.estimate", remove=True)
    document = flow.spec().document
    assert document.roles["actor_infer"].generate.max_response_tokens == 1024  # type: ignore[union-attr]
    assert "data.train -> actor_infer.generate" not in edges(document)
    assert "reward.score -> advantage.estimate" not in edges(document)


def test_variables_and_included_files(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text('roles:\n  t: {kind: trainer, model: policy, update: {loss: "{{ name }}"}}\n')
    flow = begin(folder=str(tmp_path))
    flow.include("base.yaml")
    flow.vars(name="ppo")
    flow.trainer("t", clip_ratio=0.3)
    update = flow.spec().document.roles["t"].update  # type: ignore[union-attr]
    assert (update.loss, update.clip_ratio) == ("ppo", 0.3)


def test_a_stage_reads_the_data_of_the_flow() -> None:
    flow = FlowBuilder("demo")
    train = flow.data("train", "t.jsonl", response="answer")
    stage = flow.stage("sft", use="sft")
    stage.model("policy", "x")
    stage.trainer("actor_train").update(train, every_steps=2)
    assert flow.spec().stages[0].edges[0].every_steps == 2


def test_what_is_no_batch_is_told_at_the_call() -> None:
    flow = begin()
    reward = flow.reward("reward", count)
    other = begin().generator("g", "policy")
    reward.score("data.train")  # type: ignore[arg-type]
    reward.score(reward)  # type: ignore[arg-type]
    flow.env("maze", Maze, max_turns=1).interact()
    flow.env("other", Maze, max_turns=1).interact(other)
    assert [(found.code, found.labels[0].text, marked(found)) for found in faults(flow)] == [
        ("FR0127", "the text 'data.train' is not what an op or a data set gives", 'reward.score("data.train")'),
        ("FR0127", "`reward` is a role; give what one of its ops gave", "reward.score(reward)"),
        (
            "FR0127",
            "nobody plays in `maze` here; give it a generator",
            'flow.env("maze", Maze, max_turns=1).interact()',
        ),
        ("FR0127", "`g` belongs to another flow or stage", 'flow.env("other", Maze, max_turns=1).interact(other)'),
    ]


def test_faults_are_at_the_words_of_the_call() -> None:
    flow = begin()
    flow.edge("a.x -> b.y, .z")
    flow.allow("FR0604", "FR0001")
    flow.pool("a", 4)
    flow.pool("a", gpus=0)
    found = [(d.code, marked(d)) for d in faults(flow)]
    assert found == [("FR0125", '"a"')]
    flow = begin()
    flow.edge("a.x -> b.y, .z")
    flow.allow("FR0604", "FR0001")
    flow.pool("b", gpus=0)
    assert sorted((d.code, marked(d)) for d in faults(flow)) == [
        ("FR0104", "0"), ("FR0110", ".z"), ("FR0129", '"FR0001"')
    ]  # fmt: skip


def test_what_no_yaml_can_hold() -> None:
    itself: list[Any] = []
    itself.append(itself)
    flow = begin()
    flow.data("a", "t.py:rows", args={"": 1})
    flow.data("b", "t.py:rows", args={"text": "\ud800"})
    flow.data("c", "t.py:rows", args={"list": itself})
    flow.data("d", "t.py:rows", args={"number": float("nan")})
    assert [(d.code, marked(d)) for d in faults(flow)] == [
        ("FR0013", '{"": 1}'), ("FR0017", r'{"text": "\ud800"}'), ("FR0005", '{"list": itself}')
    ]  # fmt: skip
