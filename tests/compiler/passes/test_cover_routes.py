"""Routers: which reward a value goes to, what is refused, and that inner calls are shown as derived."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import Diagnostic
from flowrl.graph.graph import EdgeKind
from flowrl.graph.routes import route_of
from tests.compiler.flows import compiled, inputs, refused

HEAD = """
flowrl: 1
name: routed
models: {policy: {source: some/model}}
data:
  math: {source: math.jsonl, prompt: question, keep: [entry]}
  logic: {source: logic.jsonl, prompt: question, keep: [entry]}
  code: {source: code.jsonl, prompt: question, keep: [tests]}
  train: {mix: {math: 0.4, logic: 0.4, code: 0.2}, tag: domain}
  val: {mix: {math: 1.0}, tag: domain}
  plain: {source: plain.jsonl, prompt: question, keep: [entry, tests, domain]}
roles:
  actor_train: {model: policy, backend: fsdp, update: {loss: ppo}}
  actor_infer: {model: policy, backend: hf, generate: {max_response_tokens: 5}}
  exact: {kind: reward, function: "arithmetic.py:reward"}
  near: {kind: reward, function: "arithmetic.py:partial_credit"}
  box: {kind: reward, sandbox: {image: py311, tests: tests}}
"""
EDGES = """
  advantage: {estimator: grpo}
edges:
  - data.train -> actor_infer.generate
  - actor_infer.generate -> reward.score
  - reward.score -> advantage.estimate
  - advantage.estimate -> actor_train.update
  - actor_train => actor_infer
"""
STEP = "step: {prompts: 8, samples_per_prompt: 4}\n"


def flow(routes: str, more: str = "", edges: str = "", by: str = "domain", data: str = "train") -> str:
    reward = f"  reward: {{router: {{by: {by}, routes: {{{routes}}}}}}}\n"
    return HEAD + reward + more + EDGES.replace("data.train", f"data.{data}") + edges + STEP


def told(text: str) -> list[tuple[str, str]]:
    """Code and the text at the primary place of each diagnostic."""
    lines = text.split("\n")

    def marked(problem: Diagnostic) -> str:
        span = problem.labels[0].span
        return lines[span.line - 1][span.column - 1 : span.end_column - 1]

    return [(problem.code, marked(problem)) for problem in refused(text)]


GOOD = "math: exact, logic: near, code: box"


def test_inner_calls_are_fed_what_the_router_is_fed_and_are_derived() -> None:
    graph = compiled(flow(GOOD))
    assert inputs(graph, "reward.score") == {
        "domain": "data.train.domain",
        "exact": "exact.score.rewards",
        "near": "near.score.rewards",
        "box": "box.score.rewards",
    }
    inner = {"exact.score", "near.score", "box.score"}
    assert {op.id for op in graph.ops if op.derived} == inner
    derived = {(e.source, e.target) for e in graph.declared if e.derived}
    assert derived == {("actor_infer.generate", id) for id in inner} | {(id, "reward.score") for id in inner}
    assert inputs(graph, "box.score") == {"response": "actor_infer.generate.response", "tests": "data.train.tests"}
    assert inputs(graph, "advantage.estimate")["rewards"] == "reward.score.rewards"
    assert not graph.removed


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        (GOOD, []),
        ('"math, logic": exact, code: box', []),
        ('code: box, "*": exact', []),
        ("math: exact, code: box", [("FR0235", "{math: exact, code: box}")]),
        ("math: exact", [("FR0235", "{math: exact}")]),
        ('"math, logic": exact, logic: near, code: box', [("FR0236", "logic")]),
        ('code: box, "*": exact, "math, *": near', [("FR0236", '"math, *"')]),
        (GOOD + ", chess: near", [("FR0237", "chess")]),
        (GOOD + ', "*": near', [("FR0237", '"*"')]),
        ("math: exact, logic: near, code: near, chess: box", [("FR0237", "chess"), ("FR0238", "near")]),
        ('"*": exact', [("FR0238", "exact")]),
        ("math: exact, logic: nobody, code: box", [("FR0201", "nobody")]),
        ("math: exact, logic: advantage, code: box", [("FR0226", "advantage")]),
        ("math: exact, logic: reward, code: box", [("FR0233", "reward")]),
        ("", [("FR0234", "{}")]),
    ],
)
def test_coverage_of_the_tag_of_a_mix_is_exact(routes: str, expected: list[tuple[str, str]]) -> None:
    assert told(flow(routes)) == expected


def test_a_column_of_one_data_set_is_covered_when_it_is_read() -> None:
    text = flow("math: exact, chess: near", data="plain")
    assert inputs(compiled(text), "reward.score")["domain"] == "data.plain.domain"
    assert told(flow('"math, chess": exact, chess: near', data="plain")) == [("FR0236", "chess")]


def test_the_column_must_be_in_the_record() -> None:
    (problem,) = refused(flow(GOOD, by="subject"))
    assert problem.code == "FR0206"
    assert problem.helps[0].text == "keep the column: `data.math: {keep: [subject]}`"
    assert refused(flow(GOOD, by="data.train.domain")) == []


def test_each_call_has_its_own_sources() -> None:
    val = "  - data.val -> actor_infer.generate@val\n  - actor_infer.generate@val -> reward.score@val\n"
    graph = compiled(flow(GOOD, edges=val))
    # Of the validation set no sample goes to the others, so only what it takes is called.
    assert inputs(graph, "reward.score@val") == {
        "domain": "data.val.domain",
        "exact": "exact.score@val.rewards",
    }
    assert inputs(graph, "exact.score@val")["response"] == "actor_infer.generate@val.response"
    assert {op.id for op in graph.ops if op.derived and op.label == "val"} == {"exact.score@val"}
    # Both calls miss a route for the one source that only the first of them has.
    assert told(flow("math: exact, code: box", edges=val)) == [("FR0235", "{math: exact, code: box}")]


def test_a_function_that_rewrites_the_column_ends_what_is_known_of_it() -> None:
    more = '  sort: {kind: function, function: "arithmetic.py:reward", outputs: {domain: {unit: sample, dtype: str}}}\n'
    text = flow("math: exact, chess: near", more=more).replace(
        "  - actor_infer.generate -> reward.score\n",
        "  - actor_infer.generate -> sort.call\n  - sort.call -> reward.score\n",
    )
    graph = compiled(text)
    assert inputs(graph, "reward.score") == {
        "domain": "sort.call.domain",
        "exact": "exact.score.rewards",
        "near": "near.score.rewards",
    }


def test_routers_lead_to_routers() -> None:
    inner = "  words: {kind: reward, router: {by: domain, routes: {math: exact, logic: near}}}\n"
    graph = compiled(flow('code: box, "*": words', more=inner))
    assert inputs(graph, "reward.score") == {
        "domain": "data.train.domain",
        "box": "box.score.rewards",
        "words": "words.score.rewards",
    }
    assert inputs(graph, "words.score") == {
        "domain": "data.train.domain",
        "exact": "exact.score.rewards",
        "near": "near.score.rewards",
    }
    assert told(flow('code: box, "*": words', more=inner.replace(", logic: near", ""))) == [("FR0235", "{math: exact}")]
    assert told(flow('code: box, "*": words', more=inner.replace("logic: near", "logic: near, code: box"))) == [
        ("FR0237", "code")
    ]


def test_a_routed_reward_may_be_fed_and_read_besides() -> None:
    edges = "  - actor_infer.generate -> exact.score\n"
    graph = compiled(flow(GOOD, edges=edges))
    assert not graph.op("exact.score").derived
    assert [e.derived for e in graph.declared if e.id == "actor_infer.generate -> exact.score"] == [False]
    assert inputs(graph, "reward.score")["exact"] == "exact.score.rewards"
    lowered = [e for e in graph.edges if e.kind is EdgeKind.DATA and e.target == "exact.score"]
    assert sorted(e.source for e in lowered) == ["actor_infer.generate", "data.train"]


def test_inner_calls_rest_with_their_router() -> None:
    text = flow(GOOD).replace(
        "  - actor_infer.generate -> reward.score\n",
        "  - {edge: actor_infer.generate -> reward.score, every_steps: 5}\n",
    )
    periods = {op.id: op.every_steps for op in compiled(text).ops}
    assert [periods[id] for id in ("exact.score", "near.score", "box.score", "reward.score")] == [5, 5, 5, 5]


def test_one_reward_of_several_routes_is_called_once() -> None:
    graph = compiled(flow("math: exact, logic: exact, code: box"))
    assert inputs(graph, "reward.score") == {
        "domain": "data.train.domain",
        "exact": "exact.score.rewards",
        "box": "box.score.rewards",
    }


@pytest.mark.parametrize(
    ("value", "reward"), [("math", "a"), ("logic", "a"), ("code", "b"), ("chess", "rest"), ("*", "rest")]
)
def test_route_of_a_value(value: str, reward: str) -> None:
    assert route_of({"math, logic": "a", "code": "b", "*": "rest"}, value) == reward


MIXES = [
    ("train: {mix: {math: 0.5, chess: 0.5}}", [("FR0204", "chess")]),
    ("train: {mix: {math: 0.5, code: 0.6}}", [("FR0230", "{math: 0.5, code: 0.6}")]),
    ("train: {mix: {math: 5, code: 3}}", [("FR0230", "{math: 5, code: 3}")]),
    ("train: {mix: {math: 0.33, logic: 0.33, code: 0.33}}", []),
    ("train: {mix: {}}", [("FR0230", "{}")]),
    ("train: {mix: {train: 1.0}}", [("FR0231", "train")]),
    ("train: {mix: {math: 0.5, other: 0.5}}\n  other: {mix: {train: 1.0}}", [("FR0231", "train")]),
    ("train: {mix: {math: 0.5, other: 0.5}}\n  other: {mix: {code: 1.0}}", []),
    ("train: {mix: {math: 0.5, code: 0.5}, tag: entry}", [("FR0205", "entry")]),
    ("train: {mix: {math: 0.5, code: 0.5}, tag: prompt}", [("FR0205", "prompt")]),
    ("train: {mix: {math: 0.5, numbers: 0.5}}\n  numbers: {seeds: 10}", [("FR0228", "numbers")]),
    ("train: {mix: {math: 0.5, code: 0.5}, keep: [prompt]}", [("FR0205", "prompt")]),
    ("train: {mix: {math: 0.5, code: 0.5}, prompt: question}", [("FR0240", "prompt")]),
    ("math: {source: m.jsonl, prompt: question, keep: [entry], tag: domain}", [("FR0240", "tag")]),
]


@pytest.mark.parametrize(("line", "expected"), MIXES)
def test_mixes(line: str, expected: list[tuple[str, str]]) -> None:
    name = line.partition(":")[0]
    text = flow(GOOD).replace("  reward: {router: {by: domain, routes: {" + GOOD + "}}}\n", "")
    text = text.replace(
        "  exact: {kind: reward", '  reward: {function: "arithmetic.py:reward"}\n  exact: {kind: reward'
    )
    lines = [f"  {line}" if each.startswith(f"  {name}: ") else each for each in text.split("\n")]
    lines = [each for each in lines if name == "val" or not each.startswith("  val: ")]
    assert told("\n".join(lines)) == expected
