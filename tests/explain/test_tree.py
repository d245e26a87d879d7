"""Opened numbers: their formulas give them again, parts add up, inputs lead on to decisions and lines."""

from __future__ import annotations

import ast
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.explain.book import book_of
from flowrl.explain.opened import Opened
from flowrl.explain.tree import open_entry, overview
from flowrl.report.opened import render_opened
from tests.explain.plans import small

BOOK = book_of(small())
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def opened(key: str) -> Opened:
    return open_entry(BOOK, BOOK[key])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BOOK)))
def test_every_line_is_its_formula(key: str) -> None:
    found = opened(key)
    if found.formula is None or found.value is None or found.again is None:
        assert BOOK[key].line is None
        return
    assert found.again == pytest.approx(found.value, rel=1e-9, abs=1.0 if found.unit == "bytes" else 1e-12)
    assert set(BOOK[key].line.inputs) == {each.name for each in found.inputs}  # type: ignore[union-attr]


@pytest.mark.parametrize("key", [key for key, entry in BOOK.items() if entry.work or entry.memory])
def test_parts_add_up(key: str) -> None:
    found = opened(key)
    assert found.adds_up
    assert sum(part.value for part in found.parts if part.unit == found.unit) == pytest.approx(found.value)


def test_seconds_of_an_op_are_those_of_its_instruction() -> None:
    durations = small().stages[0].estimate.durations
    assert opened("actor_infer.generate").value == pytest.approx(durations["run actor_infer.generate"])
    assert opened("critic.update").value == pytest.approx(durations["run critic.update 1/2"])


def test_step_is_the_sum_of_what_it_waits_for() -> None:
    stage = small().stages[0]
    step = opened("step")
    assert step.adds_up
    assert sum(part.value for part in step.parts) == pytest.approx(stage.estimate.step_seconds)
    assert all(part.key in BOOK for part in step.parts)


def test_inputs_lead_to_the_line_and_the_decision_they_stand_for() -> None:
    found = opened("critic.update.communication not hidden")
    by_name = {each.name: each for each in found.inputs}
    assert by_name["c"].opens == "critic.update.compute"
    assert by_name["c"].value == opened("critic.update.compute").value
    layout = next(each.id for each in small().stages[0].decisions if each.what == "layout of critic")
    (compute,) = (each for each in found.below if each.key == "critic.update.compute")
    assert {each.key for each in compute.below} == {layout}
    assert opened("run").below[0].key == "step"


def test_device_tells_its_peak() -> None:
    stage = small().stages[0]
    most = max(each.peak_bytes for each in stage.memory if each.pool == "all" and not each.phase.startswith("start"))
    found = opened("node0/1")
    assert found.value == most
    assert found.limit == 85520809984  # 81,559 MiB of an H100-80G


def test_decision_tells_what_was_rejected_and_what_overrides_it() -> None:
    layout = next(each for each in small().stages[0].decisions if each.what == "layout of actor_infer")
    assert opened(layout.id).decision == layout
    text = render_opened(opened(layout.id))
    assert "override  placement.pools.all.layouts.actor_infer" in text


def test_edge_tells_its_seconds_and_its_memory() -> None:
    keys = {part.key for part in opened("actor_train => actor_infer").parts}
    edge = "actor_train => actor_infer"
    assert {f"send_weights {edge}", f"receive_weights {edge}", f"all.receive_weights {edge}"} <= keys


@pytest.mark.parametrize("width", [60, 100])
def test_text_keeps_its_width_and_can_be_worked_out_by_hand(width: int) -> None:
    """The line with the numbers in it is arithmetic whose value is the line below."""
    text = render_opened(opened("all.actor_train.update.activations"), width)
    assert max(map(len, text.splitlines())) <= width
    _, filled, result = (line.removeprefix("  = ") for line in text.splitlines() if line.startswith("  = "))
    assert worked(ast.parse(filled, mode="eval").body) == float(result.removesuffix(" bytes"))


def test_overview_lists_pools_and_ops_but_not_every_device() -> None:
    keys = {part.key for part in overview(BOOK, "plan.json").parts}
    assert {"step", "all", "host", "actor_infer.generate", "actor_train => actor_infer"} <= keys
    assert "node0/0" not in keys


def worked(node: ast.expr) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.BinOp)
    return OPERATORS[type(node.op)](worked(node.left), worked(node.right))
