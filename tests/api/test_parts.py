"""How many parts a plan takes: as many as shorten the step, told as a decision."""

from __future__ import annotations

from functools import cache

import pytest

from flowrl.api.compile import compile_spec
from flowrl.plan.io import dumps
from flowrl.plan.io import loads as read_plan
from flowrl.plan.plan import Decision, StagePlan
from flowrl.program.program import InstructionKind
from flowrl.spec import loads
from tests.placement.flows import GRPO, with_placement

SLOW_REWARD = with_placement(GRPO, "disaggregated").replace("prompts: 128", "prompts: 512")


@cache
def planned(flow: str, takes: int | None) -> StagePlan:
    key = "" if takes is None else f"schedule: {{takes: {takes}}}\n"
    return compile_spec(loads(flow + key, folder=".")).stages[0]


def decision_of(stage: StagePlan) -> Decision:
    (found,) = (each for each in stage.decisions if each.what == "parts of generation")
    return found


def takes_of(stage: StagePlan) -> int:
    return sum(i.kind is InstructionKind.TAKE for i in stage.programs.instructions)


def test_scoring_on_other_devices_overlaps_generation() -> None:
    whole, parts = planned(SLOW_REWARD, None), planned(SLOW_REWARD, 4)
    assert parts.pools == whole.pools
    assert takes_of(parts) == 4
    assert parts.estimate.step_seconds < 0.95 * whole.estimate.step_seconds
    told = decision_of(parts)
    assert (told.chosen, told.reason, told.override) == ("4 parts", "fastest", "schedule.takes")
    rejected = {each.option: each for each in told.rejected}
    assert rejected["all at once"].reason == "slower"
    more = whole.estimate.step_seconds / parts.estimate.step_seconds - 1.0
    assert rejected["all at once"].delta == f"{more:+.1%} step time"


def test_more_parts_are_never_slower() -> None:
    seconds = [planned(SLOW_REWARD, takes).estimate.step_seconds for takes in (1, 2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True)


def test_what_no_part_can_shorten_stays_whole() -> None:
    """On one pool everything follows generation; the step is the sum, and parts only cost."""
    flow = with_placement(GRPO, "colocated")
    whole, parts = planned(flow, None), planned(flow, 8)
    assert takes_of(parts) == 0
    assert parts.programs == whole.programs
    assert parts.estimate.step_seconds == pytest.approx(whole.estimate.step_seconds)
    assert decision_of(parts).chosen == "all at once"


def test_a_plan_in_parts_is_read_back_as_it_was_written() -> None:
    plan = compile_spec(loads(SLOW_REWARD + "schedule: {takes: 4}\n", folder="."))
    assert read_plan(dumps(plan)) == plan


def test_a_flow_that_does_not_ask_has_no_such_decision() -> None:
    assert not [each for each in planned(SLOW_REWARD, None).decisions if each.what == "parts of generation"]
    assert not [each for each in planned(SLOW_REWARD, 1).decisions if each.what == "parts of generation"]
