"""Binding: one producer of a fitting unit and type for every input, or a diagnostic that says what to write."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.types import Unit
from tests.compiler.flows import GRPO, compiled, inputs, refused
from tests.graph.graphs import call, graph, source


def test_missing_field_names_the_op_that_makes_it() -> None:
    text = GRPO.replace("  - reward.score -> advantage.estimate\n", "  - actor_infer.generate -> advantage.estimate\n")
    problem = refused(text)[0]
    assert problem.code == "FR0206"
    assert problem.helps[0].text == "`reward.score` makes it: draw the edge `- reward.score -> advantage.estimate`"


def test_missing_field_names_the_kinds_that_make_it() -> None:
    problem = refused(GRPO.replace("estimator: grpo", "estimator: gae"))[0]
    assert problem.code == "FR0206"
    assert (
        problem.helps[0].text
        == "it is made by `values` of a trainer with head scalar or `values` of a scorer with head scalar: "
        "draw an edge from there"
    )


def test_missing_column_is_to_be_kept() -> None:
    problem = refused(GRPO.replace(", keep: [entry]", ""))[0]
    assert problem.helps[0].text == "keep the column: `data.train: {keep: [entry]}`"


def test_missing_column_with_a_near_name() -> None:
    problem = refused(GRPO.replace("keep: [entry]", "keep: [entri]"))[0]
    assert problem.helps[0].text == "a field with a near name is in scope: `entri`"


TWO_REWARDS = GRPO.replace("-> reward.score\n", "-> reward.score, style.score\n").replace(
    "  advantage:", '  style: {kind: reward, function: "arithmetic.py:reward"}\n  advantage:'
)
JOINED = TWO_REWARDS.replace("- reward.score ->", "- reward.score, style.score ->")


def test_two_unordered_producers_are_refused_with_both_places() -> None:
    problem = refused(JOINED)[0]
    assert problem.code == "FR0207"
    lines = JOINED.split("\n")
    marked = [lines[x.span.line - 1][x.span.column - 1 : x.span.end_column - 1] for x in problem.labels]
    assert marked == ["reward.score", "style.score"]
    assert problem.helps[0].text.endswith("`inputs: {rewards: reward.rewards}`")


@pytest.mark.parametrize("chosen", ["reward", "style"])
def test_inputs_choose_between_producers(chosen: str) -> None:
    text = JOINED.replace("estimator: grpo", f"estimator: grpo, inputs: {{rewards: {chosen}.rewards}}")
    assert inputs(compiled(text), "advantage.estimate")["rewards"] == f"{chosen}.score.rewards"


def test_a_choice_needs_an_edge() -> None:
    text = TWO_REWARDS.replace("estimator: grpo", "estimator: grpo, inputs: {rewards: style.rewards}")
    problem = refused(text)[0]
    assert problem.code == "FR0206"
    assert problem.helps[0].text == "draw the edge `- style.score -> advantage.estimate`"


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ("rewards: reward.rewards", None),
        ("rewards: reward.reward", "FR0219"),
        ("rewards: nobody.rewards", "FR0219"),
        ("rewards: rewards", "FR0219"),
        ("reward: reward.rewards", "FR0220"),
        ("rewards: actor_infer.response", "FR0209"),
        ("rewards: actor_infer.rollout_log_probs", "FR0208"),
        ("rewards: data.train.entry", None),
        ("rewards: data.nothing.entry", "FR0219"),
    ],
)
def test_choices(inputs: str, code: str | None) -> None:
    problems = refused(GRPO.replace("estimator: grpo", f"estimator: grpo, inputs: {{{inputs}}}"))
    assert [d.code for d in problems] == ([] if code is None else [code])


def test_a_response_of_the_data_is_hidden_by_the_generated_one() -> None:
    graph = compiled(GRPO.replace("prompt: question,", "prompt: question, response: answer,"))
    assert inputs(graph, "reward.score")["response"] == "actor_infer.generate.response"


def test_cycle_is_refused_with_the_path_and_all_places() -> None:
    text = GRPO.replace(
        "  - advantage.estimate ->", "  - advantage.estimate -> actor_infer.generate\n  - advantage.estimate ->"
    )
    problem = refused(text)[0]
    assert problem.code == "FR0302"
    assert problem.labels[0].text == (
        "this edge closes the cycle actor_infer.generate -> reward.score -> advantage.estimate -> actor_infer.generate"
    )
    assert [label.text for label in problem.labels[1:]] == [
        "`actor_infer.generate -> reward.score`",
        "`reward.score -> advantage.estimate`",
    ]


def test_all_independent_problems_are_told_at_once() -> None:
    text = GRPO.replace(", keep: [entry]", "").replace("estimator: grpo", "estimator: gae")
    assert sorted(d.code for d in refused(text)) == ["FR0206", "FR0206"]


def test_units_broadcast_from_coarse_to_fine_only() -> None:
    ops = [source("x", "tokens"), call("a.score", ["x"], ["y"])]
    for want in Unit:
        slot = replace(ops[1].inputs[0], unit=want)
        flow = graph([ops[0], replace(ops[1], inputs=(slot,))], [("data.train", "a.score")])
        assert run_passes(flow)[0].op("a.score").inputs[0].source == "data.train"
    fine = replace(ops[1].outputs[0], unit=Unit.TOKEN)
    reader = call("b.score", ["y"], ["z"])
    for want, fits in ((Unit.TOKEN, True), (Unit.TURN, False), (Unit.SAMPLE, False), (Unit.PROMPT, False)):
        slot = replace(reader.inputs[0], unit=want)
        pair = [replace(ops[1], outputs=(fine,)), replace(reader, inputs=(slot,))]
        flow = graph([ops[0], *pair], [("data.train", "a.score"), ("a.score", "b.score")])
        if fits:
            assert run_passes(flow)[0].op("b.score").inputs[0].source == "a.score"
            continue
        with pytest.raises(FlowError, match="FR0208"):
            run_passes(flow)


def test_edge_with_fields_lets_only_those_pass() -> None:
    text = GRPO.replace(
        "- reward.score -> advantage.estimate", "- {edge: reward.score -> advantage.estimate, fields: [rewards]}"
    )
    assert [d.code for d in refused(text)] == ["FR0206"] * len(refused(text))
    assert "loss_mask" in refused(text)[0].labels[0].text
