"""Judges: the inner call of each, its derived edges, and what is told of the judge in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import EdgeKind, Graph
from flowrl.graph.params import AskParams, ScoreParams
from flowrl.graph.rates import RowBounds, rows_per_step, unit_rates
from flowrl.graph.sdf import balance
from flowrl.graph.text import parse_graph, print_graph, without_spans
from flowrl.spec import loads
from tests.compiler.constructs import EDGES, GEN, compiled, flow, units
from tests.compiler.flows import inputs

OWN = (
    '{kind: reward, judge: {template: t.j2, parse: "f.py:verdict"}, model: judge_lm, backend: vllm, '
    "generate: {max_response_tokens: 8, temperature: 0.0}}"
)
SERVED = (
    '{kind: reward, judge: {template: t.j2, parse: "f.py:verdict", endpoint: "https://judge/v1", parallel: 4}, '
    "timeout_seconds: 9, on_error: drop}"
)


def derived(graph: Graph) -> set[tuple[str, str]]:
    return {(e.source, e.target) for e in graph.declared if e.derived}


def lowered_from(graph: Graph, id: str) -> set[str]:
    """The declared edges that a lowered one comes from."""
    return set(next(e for e in graph.edges if e.id == id and e.kind is EdgeKind.DATA).origin)


def told(folder: Path, text: str) -> tuple[list[Diagnostic], tuple[Diagnostic, ...]]:
    """Errors and warnings."""
    try:
        return [], run_passes(lower_stage(loads(text, folder=str(folder)), 0))[1]
    except FlowError as error:
        return list(error.diagnostics), ()


@pytest.mark.parametrize("judge", [OWN, SERVED])
def test_a_judge_asks_by_an_op_that_is_fed_what_the_judge_is_fed(folder: Path, judge: str) -> None:
    graph = compiled(folder, flow(reward=judge))
    assert [op.id for op in graph.ops if op.derived] == ["reward.ask"]
    assert derived(graph) == {(GEN, "reward.ask"), ("reward.ask", "reward.score")}
    assert inputs(graph, "reward.ask") == {"prompt": "data.train.prompt", "response": f"{GEN}.response"}
    assert inputs(graph, "reward.score") == {"judge_answer": "reward.ask.judge_answer"}
    assert units(graph, "reward.ask") == {"judge_answer": ("sample", "str")}
    assert units(graph, "reward.score") == {"rewards": ("sample", "f32")}
    assert lowered_from(graph, f"{GEN} -> reward.ask") == {f"{GEN} -> reward.score", f"{GEN} -> reward.ask"}
    assert lowered_from(graph, "reward.ask -> reward.score") == {"reward.ask -> reward.score"}
    assert not graph.removed
    assert parse_graph(print_graph(graph)) == without_spans(graph)


def test_what_is_asked_and_how_it_is_read_stand_on_two_ops(folder: Path) -> None:
    own, served = (compiled(folder, flow(reward=judge)) for judge in (OWN, SERVED))
    asks = own.op("reward.ask").params
    assert isinstance(asks, AskParams)
    assert (asks.template, asks.endpoint, asks.timeout_seconds) == ("t.j2", None, None)
    assert (asks.sampling["max_response_tokens"], asks.sampling["temperature"]) == (8, 0.0)
    other = AskParams(template="t.j2", endpoint="https://judge/v1", parallel=4, timeout_seconds=9.0)
    assert served.op("reward.ask").params == other
    for graph in (own, served):
        assert graph.op("reward.score").params == ScoreParams(flavour="judge", function="f.py:verdict")


def test_one_role_answers_several_calls_by_samples_and_by_pairs(folder: Path) -> None:
    """8 prompts of 4 samples: 32 rows are asked about one by one, in 8 groups, and in all of a validation set."""
    edges = (
        *EDGES,
        f"{GEN} -> reward.compare",
        '{edge: "data.val -> actor_infer.generate@val", every_steps: 5}',
        f"{GEN}@val -> reward.score@val",
    )
    graph = compiled(folder, flow(edges, reward=OWN))
    inner = {"reward.ask", "reward.ask_pairs", "reward.ask@val"}
    assert {op.id for op in graph.ops if op.derived} == inner
    assert inputs(graph, "reward.ask@val") == {"prompt": "data.val.prompt", "response": f"{GEN}@val.response"}
    assert inputs(graph, "reward.compare") == {"judge_answers": "reward.ask_pairs.judge_answers"}
    assert units(graph, "reward.ask_pairs") == {"judge_answers": ("prompt", "str[]")}
    assert (graph.op("reward.ask@val").every_steps, graph.op("reward.ask").every_steps) == (5, 1)
    for asks, judge in (("ask", "score"), ("ask_pairs", "compare")):
        assert rows_per_step(graph, graph.op(f"reward.{asks}")) == RowBounds(least=32, most=32)
        assert rows_per_step(graph, graph.op(f"reward.{judge}")) == RowBounds(least=32, most=32)
    assert rows_per_step(graph, graph.op("reward.ask@val")).fixed is None
    rates = unit_rates(graph)
    firings = balance(rates.actors, rates.channels).repetitions
    assert (firings["reward.ask"], firings["reward.score"]) == (32, 32)
    assert (firings["reward.ask_pairs"], firings["reward.compare"]) == (8, 8)
    streams = {e.id: e.granularity for e in graph.edges}
    assert streams[f"{GEN} -> reward.ask"] == streams["reward.ask -> reward.score"] == "sample"
    assert streams[f"{GEN} -> reward.ask_pairs"] == streams["reward.ask_pairs -> reward.compare"] == "group"


def test_an_edge_that_only_the_inner_call_reads_is_not_idle(folder: Path) -> None:
    """Nothing below `reward.score@val`, and its rewards are all that it makes of the edge into it."""
    edges = (*EDGES, f"data.val -> {GEN}@val", f"{GEN}@val -> reward.score@val")
    errors, warnings = told(folder, flow(edges, reward=OWN))
    assert (errors, warnings) == ([], ())


def test_a_judge_behind_a_router_asks_for_its_router(folder: Path) -> None:
    router = "{router: {by: answer, routes: {a: rule, b: chat}}}"
    graph = compiled(folder, flow(reward=router, rule='{kind: reward, function: "f.py:exact"}', chat=SERVED))
    assert derived(graph) == {
        (GEN, "rule.score"),
        ("rule.score", "reward.score"),
        (GEN, "chat.score"),
        ("chat.score", "reward.score"),
        (GEN, "chat.ask"),
        ("chat.ask", "chat.score"),
    }
    assert inputs(graph, "chat.score") == {"judge_answer": "chat.ask.judge_answer"}
    assert inputs(graph, "reward.score")["chat"] == "chat.score.rewards"
    written = f"{GEN} -> reward.score"
    assert lowered_from(graph, f"{GEN} -> chat.ask") == {written, f"{GEN} -> chat.score", f"{GEN} -> chat.ask"}


def test_the_nearest_judge_answers_and_others_may_read_what_it_said(folder: Path) -> None:
    """Two judges one after the other, and a reward by a function that reads the answers of the first by name."""
    edges = (EDGES[0], f"{GEN} -> first.score", "first.score -> reward.score, style.score", *EDGES[2:])
    style = '{kind: reward, function: "f.py:style", inputs: {response: first.judge_answer}}'
    graph = compiled(folder, flow(edges, first=OWN, reward=SERVED, style=style))
    assert inputs(graph, "first.score") == {"judge_answer": "first.ask.judge_answer"}
    assert inputs(graph, "reward.score") == {"judge_answer": "reward.ask.judge_answer"}
    assert inputs(graph, "style.score")["response"] == "first.ask.judge_answer"
    assert lowered_from(graph, "first.ask -> style.score") == {
        "first.ask -> first.score",
        "first.score -> style.score",
    }


def test_weights_may_travel_to_a_judge_that_is_its_own_student(folder: Path) -> None:
    judge = OWN.replace("judge_lm", "policy")
    graph = compiled(folder, flow((*EDGES, "actor_train => reward"), reward=judge))
    weights = {(e.source, e.target) for e in graph.edges if e.kind is EdgeKind.WEIGHTS}
    assert weights == {("actor_train", "actor_infer"), ("actor_train", "reward")}
    assert not graph.role("reward").trainable
    # without the edge it stays at the weights of the start, beside the student
    assert "reward.ask" in {op.id for op in compiled(folder, flow(reward=judge)).ops}


@pytest.mark.parametrize(
    ("edges", "roles", "expected"),
    [
        ((*EDGES, "reward.ask -> advantage.estimate"), {}, [("FR0340", "reward.ask")]),
        ((*EDGES, f"{GEN} -> reward.ask_pairs"), {}, [("FR0340", "reward.ask_pairs")]),
        ((*EDGES, f"{GEN}@val -> reward.ask@val"), {}, [("FR0340", "reward.ask@val")]),
        # a reward that is no judge has no such op
        ((*EDGES, f"{GEN} -> reward.ask"), {"reward": '{function: "f.py:exact"}'}, [("FR0202", "reward.ask")]),
        # what the inner call lacks is told once, of the judge
        ((EDGES[0], "data.train -> reward.score", *EDGES[2:]), {}, [("FR0206", "reward.score")]),
        (
            (EDGES[0], f"data.val -> {GEN}@val", f"{GEN}, {GEN}@val -> reward.score", *EDGES[2:]),
            {},
            [("FR0334", f"{GEN}@val")],
        ),
        # its answers are no slot that may be chosen for it
        (EDGES, {"reward": OWN[:-1] + ", inputs: {judge_answer: data.train.answer}}"}, [("FR0220", "judge_answer")]),
    ],
)
def test_what_is_wrong_is_told_of_the_judge(
    folder: Path, edges: tuple[str, ...], roles: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    text = flow(edges, **{"reward": OWN, **roles})
    lines = text.split("\n")
    errors, _ = told(folder, text)
    found: list[tuple[str, str]] = []
    for problem in errors:
        span = problem.labels[0].span
        found.append((problem.code, lines[span.line - 1][span.column - 1 : span.end_column - 1]))
    assert found == expected
    assert all(".ask" not in help.text for problem in errors if problem.code == "FR0206" for help in problem.helps)


def test_inputs_of_a_judge_are_those_of_its_inner_call(folder: Path) -> None:
    reward = OWN[:-1] + ", inputs: {prompt: data.train.answer}}"
    graph = compiled(folder, flow(reward=reward))
    assert inputs(graph, "reward.ask")["prompt"] == "data.train.answer"


def test_edges_that_let_few_columns_pass_let_as_few_to_the_inner_call(folder: Path) -> None:
    narrow = f'{{edge: "{GEN} -> reward.score", fields: [response]}}'
    edges = (EDGES[0], narrow, "data.train -> reward.score", f"{GEN} -> advantage.estimate", *EDGES[2:])
    graph = compiled(folder, flow(edges, reward=OWN))
    assert derived(graph) >= {(GEN, "reward.ask"), ("data.train", "reward.ask")}
    assert lowered_from(graph, "data.train -> reward.ask") == {"data.train -> reward.score", "data.train -> reward.ask"}


def test_a_wait_for_a_served_judge_is_told_of_the_judge_and_its_edge(folder: Path) -> None:
    text = flow(reward=SERVED.replace("timeout_seconds: 9, ", "")) + "schedule: {max_lag: 1}\n"
    lines = text.split("\n")
    _, warnings = told(folder, text)
    places = {each.code: each.labels[0] for each in warnings}
    span = places["FR0614"].span
    assert lines[span.line - 1].strip() == f"- {GEN} -> reward.score"
    assert "`reward.score`" in places["FR0614"].text
    assert "FR0615" in places
    _, of_the_patient = told(folder, flow(reward=SERVED) + "schedule: {max_lag: 1}\n")
    assert {"FR0614", "FR0615"}.isdisjoint(each.code for each in of_the_patient)
