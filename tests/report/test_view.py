"""The value that drawn views show: its ids are the plan's, its arrows the graph's, its numbers those of the JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from flowrl.explain.pairs import Event
from flowrl.explain.ran import ran
from flowrl.graph.graph import EdgeKind
from flowrl.plan.plan import Plan
from flowrl.report.exports import render_dot, render_mermaid
from flowrl.report.markdown import render_markdown
from flowrl.report.ran import render_ran
from flowrl.report.svg import render_svg
from flowrl.report.view import plan_view
from tests.report import plans
from tests.report.test_text import assert_every_number_is_known

PLANS = {"colocated": plans.colocated, "split": plans.split, "two_stages": plans.two_stages, "bad": plans.infeasible}


@pytest.mark.parametrize("name", PLANS)
def test_every_instruction_op_role_and_device_of_the_plan_is_in_the_view_once(name: str) -> None:
    plan = PLANS[name]()
    for stage, shown in zip(plan.stages, plan_view(plan).stages, strict=True):
        bars = [bar.id for pool in shown.pools for bar in pool.bars]
        assert sorted(bars) == sorted(span.instruction for span in stage.estimate.timeline)
        assert [node.id for node in shown.graphs[-1].nodes] == [op.id for op in stage.graph.ops]
        placed = [living.role for pool in shown.pools for living in pool.roles]
        assert sorted(placed) == sorted(entry.role for pool in stage.pools for entry in pool.roles)
        critical = {bar.id for pool in shown.pools for bar in pool.bars if bar.critical}
        assert critical == set(stage.estimate.critical) & set(bars)
        phases = [(phase.phase, phase.peak_bytes) for pool in shown.pools for phase in pool.phases]
        assert sorted(phases) == sorted((memory.phase, memory.peak_bytes) for memory in stage.memory)


def test_a_phase_goes_on_while_the_instructions_of_its_op_do() -> None:
    stage = plans.colocated().stages[0]
    shown = plan_view(plans.colocated()).stages[0]
    phase = next(p for pool in shown.pools for p in pool.phases if p.phase == "actor_train.update")
    expected = [
        (span.start_seconds, span.seconds)
        for span in stage.estimate.timeline
        if span.instruction.startswith("run actor_train.update ")
    ]
    assert len(expected) == 4
    assert list(phase.spans) == expected


@pytest.mark.parametrize("name", PLANS)
def test_weights_and_data_have_arrows_and_nothing_else_does(name: str) -> None:
    plan = PLANS[name]()
    for stage, shown in zip(plan.stages, plan_view(plan).stages, strict=True):
        data = {(a.source, a.target) for a in shown.graphs[-1].arrows if a.kind == "data"}
        assert data <= {(e.source, e.target) for e in (*stage.graph.edges, *stage.graph.declared)}
        weights = [a for a in shown.graphs[-1].arrows if a.kind == "weights"]
        assert len(weights) == sum(e.kind is EdgeKind.WEIGHTS for e in stage.graph.edges)


VIEWS: dict[str, Callable[[Plan], str]] = {
    "markdown": render_markdown,
    "mermaid": render_mermaid,
    "dot": lambda plan: "\n".join(re.findall(r"label=(\"[^\"]*\")", render_dot(plan))),
    "svg": lambda plan: "\n".join(re.findall(r">([^<>]+)<", render_svg(plan).partition("</style>")[2])),
    "page": lambda plan: "\n".join(_words(msgspec.to_builtins(plan_view(plan)))),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PLANS)
def test_every_number_of_a_view_is_in_the_plan(name: str, view: str) -> None:
    plan = PLANS[name]()
    told = VIEWS[view](plan)
    assert re.search(r"\d", told)
    # How full devices are in percent is a quotient of two numbers of the plan; codes are no numbers.
    shares = {f"({100 * m.peak_bytes / m.limit_bytes:.0f} %)" for stage in plan.stages for m in stage.memory}
    for word in (*shares, *(d.code for d in plan.diagnostics)):
        told = told.replace(word, "")
    assert_every_number_is_known(told, plan)


def _words(value: Any) -> Iterator[str]:
    """The texts of a view: its numbers are the plan's own."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for below in value.values():
            yield from _words(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _words(below)


def _events(plan: Plan) -> list[Event]:
    """Three steps of 10 s: generate takes 4, then 2, then 3 s from the step's second second on."""
    stage = plan.stages[0].name
    generate = "run actor_infer.generate"
    return [
        event
        for step, took in ((1, 4.0), (2, 2.0), (3, 3.0))
        for event in (
            Event(stage, "run data.train", step, 0.5, 10.0 * step),
            Event(stage, generate, step, took, 10.0 * step + 2.0),
        )
    ]


def test_measured_times_are_medians_without_the_first_step() -> None:
    plan = plans.colocated()
    stage = plan.stages[0]
    lines = [
        {"stage": stage.name, "step": s, "seconds": t, "reward.rewards": s / 4}
        for s, t in ((1, 20.0), (2, 9.0), (3, 11.0))
    ]
    found = ran(plan, _events(plan), lines, "runs/x")
    row = next(row for row in found.stages[0].rows if row.instruction == "run actor_infer.generate")
    assert (row.measured_seconds, row.start_seconds, row.repeats) == (2.5, 2.0, 2)
    assert row.estimated_seconds == stage.estimate.durations["run actor_infer.generate"]
    assert found.stages[0].measured_step_seconds == 10.0
    assert found.curves == {"reward.rewards": ((1.0, 0.25), (2.0, 0.5), (3.0, 0.75))}
    shown = plan_view(plan, measured=found)
    bar = next(b for p in shown.stages[0].pools for b in p.bars if b.id == "run actor_infer.generate")
    assert (bar.measured, bar.measured_start) == (2.5, 2.0)
    off = [abs(r.measured_seconds - r.estimated_seconds) for r in found.stages[0].rows]
    assert off == sorted(off, reverse=True)
    assert "10.0 s measured" in render_ran(found)


def test_the_page_has_every_row_of_a_run_that_the_text_has() -> None:
    """Also of an instruction that no steady step has: the last save, what only a first step does."""
    plan = plans.colocated()
    stage = plan.stages[0]
    some = next(i.id for i in stage.programs.instructions if i.id not in {r.instruction for r in _events(plan)})
    timeline = tuple(span for span in stage.estimate.timeline if span.instruction != some)
    durations = {id: took for id, took in stage.estimate.durations.items() if id != some}
    estimate = replace(stage.estimate, timeline=timeline, durations=durations)
    plan = replace(plan, stages=(replace(stage, estimate=estimate),))
    events = [*_events(plan), Event(stage.name, some, 2, 0.75, 25.0)]
    found = ran(plan, events, [{"stage": stage.name, "step": s, "seconds": 8.0} for s in (1, 2)], "runs/x")
    shown = plan_view(plan, measured=found).stages[0]
    told = [line.split("  ")[0].strip() for line in render_ran(found, 200).splitlines() if "  " in line.strip()]
    rows = [row.id for row in shown.rows]
    assert some in rows
    assert rows == [each for each in told if each in rows]
    assert [(row.seconds, row.measured) for row in shown.rows if row.id == some] == [(0.0, 0.75)]


def test_figures_of_a_run_are_measured_or_said_to_be_estimated() -> None:
    plan = plans.colocated()
    stage = plan.stages[0]
    lines = [{"stage": stage.name, "step": s, "seconds": t} for s, t in ((1, 20.0), (2, 9.0), (3, 11.0))]
    shown = plan_view(plan, measured=ran(plan, _events(plan), lines, "runs/x")).stages[0]
    planned, measured = dict(shown.figures), dict(shown.measured_figures)
    assert list(planned) == list(measured)
    assert measured["step"].startswith("10.0 s")
    each_step = stage.estimate.samples_per_second * stage.estimate.step_seconds
    assert float(measured["samples/s"].replace(",", "")) == pytest.approx(each_step / 10.0, rel=0.01)
    assert measured["tightest"] == f"{planned['tightest']} (estimated)"
    assert plan_view(plan).stages[0].measured_figures == ()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_run_is_told_within_the_width(width: int) -> None:
    plan = plans.colocated()
    text = render_ran(ran(plan, _events(plan), [], "runs/" + "x" * 90), width, ascii=True)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()


def test_the_page_says_why_a_plan_does_not_fit() -> None:
    plan = plans.infeasible()
    told = replace(plan.diagnostics[0], why="`actor_train.update` needs 81.0 GiB of 79.6 GiB on a device")
    (message,) = plan_view(replace(plan, diagnostics=(told,))).messages
    assert message.text == "placement does not fit: actor_train.update needs 81.0 GiB of 79.6 GiB on a device"
    assert "`" not in "".join(message.helps)
