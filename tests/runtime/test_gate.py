"""Gates on numbers by hand."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from flowrl.diag.diagnostic import FlowError
from flowrl.plan.plan import Gate, StagePlan
from flowrl.runtime.gate import holds, leaves_stage, require_passed
from tests.conftest import Told
from tests.runtime.plans import sft_graph, stage_plan
from tests.runtime.written import TEXTS, place

GATE = Gate(metric="reward.rewards@val", at_least=0.3, at_most=0.9, span=place("reward.rewards@val"))


def _stage(gate: Gate | None) -> StagePlan:
    return structs.replace(stage_plan(sft_graph()), gate=gate)


@pytest.mark.parametrize(
    ("value", "passes"), [(0.3, True), (0.9, True), (0.29, False), (0.91, False), (math.nan, False)]
)
def test_both_bounds_count_and_are_included(value: float, passes: bool) -> None:
    assert holds(GATE, value) is passes


def test_only_first_leaves_a_stage_early() -> None:
    first = structs.replace(GATE, when="first")
    assert leaves_stage(_stage(first), {"reward.rewards@val": 0.5})
    assert not leaves_stage(_stage(first), {"reward.rewards@val": 0.1})
    assert not leaves_stage(_stage(first), {"actor_train.loss": 0.5})
    assert not leaves_stage(_stage(GATE), {"reward.rewards@val": 0.5})
    assert not leaves_stage(_stage(None), {"reward.rewards@val": 0.5})


def test_the_last_value_counts_at_the_end(told: Told) -> None:
    assert require_passed(_stage(None), [])
    assert require_passed(_stage(GATE), [{"reward.rewards@val": 0.1}, {"reward.rewards@val": 0.4}, {"other": 1.0}])
    with pytest.raises(FlowError) as raised:
        require_passed(_stage(GATE), [{"reward.rewards@val": 0.4}, {"reward.rewards@val": 0.1}])
    told(raised.value, "FR0909", texts=TEXTS)
    assert not require_passed(_stage(structs.replace(GATE, otherwise="continue")), [{"reward.rewards@val": 0.1}])


def test_a_metric_that_no_step_had_is_told_with_those_there_are(told: Told) -> None:
    with pytest.raises(FlowError) as raised:
        require_passed(_stage(GATE), [{"step": 1, "actor_train.loss": 0.5}])
    assert raised.value.diagnostics[0].why == "its metrics are `actor_train.loss`"
    told(raised.value, "FR0910", texts=TEXTS)
