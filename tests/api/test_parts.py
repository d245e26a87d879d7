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


def decision_of(stage: StagePlan, what: str = "parts of generation") -> Decision:
    (found,) = (each for each in stage.decisions if each.what == what)
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


POOLS = "{pools: {rollout: {gpus: 6, roles: [actor_infer]}, train: {gpus: 10, roles: [actor_train, reward]}}}"
ARRIVING = (
    with_placement(GRPO, POOLS)
    .replace("prompts: 128", "prompts: 512")
    .replace("loss: ppo", "loss: ppo, old_log_probs: rollout")
    .replace("estimator: grpo", "estimator: reinforce_pp, normalize: none")
    .replace("updates: 2", "updates: 4")
)
"""Samples, not groups, are handed on, and no reader needs the trainer's weights. The pools are written, so that all
ways of making minibatches have the same."""


@cache
def arriving(flow: str, takes: int = 8) -> StagePlan:
    return compile_spec(loads(flow + f"schedule: {{takes: {takes}, minibatches: arrival}}\n", folder=".")).stages[0]


def test_updates_begin_with_what_is_done_first() -> None:
    whole, fixed, parts = planned(ARRIVING, None), planned(ARRIVING, 8), arriving(ARRIVING)
    assert parts.estimate.step_seconds < 0.95 * fixed.estimate.step_seconds < 0.95 * whole.estimate.step_seconds
    told = decision_of(parts, "minibatches")
    assert (told.chosen, told.reason, told.override) == ("arrival", "fastest", "schedule.minibatches")
    assert told.text == "actor_train.update begins with the first part, on the prompts that are done first"
    (rejected,) = told.rejected
    more = fixed.estimate.step_seconds / parts.estimate.step_seconds - 1.0
    assert (rejected.option, rejected.reason, rejected.delta) == ("fixed", "slower", f"{more:+.1%} step time")


def test_parts_take_together_what_the_whole_takes() -> None:
    """Early minibatches are short and late ones long; the sum is that of minibatches of the mean."""
    fixed, parts = planned(ARRIVING, 8), arriving(ARRIVING)
    runs = [[s for id, s in stage.estimate.durations.items() if ".update" in id] for stage in (fixed, parts)]
    assert sum(runs[1]) == pytest.approx(sum(runs[0]), rel=1e-6)
    assert runs[1] == sorted(runs[1])
    assert runs[1][0] < 0.8 * runs[0][0] < runs[0][-1] < 0.8 * runs[1][-1]
    scores = [s for id, s in parts.estimate.durations.items() if ".score" in id]
    assert scores == sorted(scores)


def test_an_update_that_has_to_wait_says_why() -> None:
    stage = arriving(ARRIVING.replace(", old_log_probs: rollout", ""))
    told = decision_of(stage, "minibatches")
    reads = "actor_train.log_probs reads its weights before they change"
    assert (told.chosen, told.reason) == ("fixed", "only_option")
    assert told.text == f"actor_train.update waits for the last part: {reads}"
    assert not any(i.rows.arrived for i in stage.programs.instructions)


def test_minibatches_are_fixed_where_nobody_asks() -> None:
    assert not [each for each in planned(ARRIVING, 8).decisions if each.what == "minibatches"]


def test_a_placement_that_wins_by_its_parts_is_found() -> None:
    """With whole steps everything shares all devices; trainers that begin early are better off with their own."""
    flow = ARRIVING.replace(f"placement: {POOLS}\n", "").replace("nodes: 2", "nodes: 8")
    flow = flow.replace("updates: 4", "updates: 8")
    whole, fixed, parts = planned(flow, None), planned(flow, 8), arriving(flow)
    assert [len([pool for pool in each.pools if pool.devices]) for each in (whole, fixed, parts)] == [1, 1, 2]
    assert parts.estimate.step_seconds < 0.95 * fixed.estimate.step_seconds
    pools = decision_of(parts, "pools")
    assert pools.text.endswith("compared with generation in parts")
    colocated = next(each for each in pools.rejected if each.option.startswith("colocated"))
    more = whole.estimate.step_seconds / parts.estimate.step_seconds - 1.0
    assert colocated.reason == "slower"
    assert abs(float((colocated.delta or "").removesuffix("% step time")) / 100 - more) < 0.01
    assert arriving.__wrapped__(flow) == parts


def test_what_is_placed_with_parts_is_never_slower() -> None:
    for flow in (SLOW_REWARD, ARRIVING, ARRIVING.replace(f"placement: {POOLS}\n", "")):
        seconds = [planned(flow, None), planned(flow, 8), arriving(flow)]
        found = [each.estimate.step_seconds for each in seconds]
        assert found == sorted(found, reverse=True)
