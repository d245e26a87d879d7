"""Plans of the examples, made by the whole compiler: their pages keep the promises that the hand-made ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api
from flowrl.plan.plan import Plan
from flowrl.program.check import check
from flowrl.report.text import render_plan
from tests.report.test_text import assert_every_number_is_known, assert_first_screen_answers

EXAMPLES = Path(__file__).parents[2] / "examples"
JOBS = [
    ("quickstart.yaml", None),
    ("grpo_ray.yaml", "3xcpu"),
    ("ppo.yaml", "16xH100-80G"),
    ("ppo_7b.yaml", None),
    ("ppo_7b.yaml", "2xA100-40G"),
]


@pytest.fixture(scope="module", params=JOBS, ids=lambda job: f"{job[0]} on {job[1]}")
def plan(request: pytest.FixtureRequest) -> Plan:
    file, cluster = request.param
    return api.plan(EXAMPLES / file, cluster=cluster)


@pytest.mark.parametrize("width", [60, 100, 120])
def test_page_fits_its_width_and_says_no_number_of_its_own(plan: Plan, width: int) -> None:
    page = render_plan(plan, width=width)
    assert max(map(len, page.splitlines())) <= width
    assert_every_number_is_known(page, plan)
    assert ("DOES NOT FIT" in page) is (plan.verdict == "infeasible")
    for stage in plan.stages:
        assert all(op.id in page for op in stage.graph.ops)
        assert all(role.name in page for role in stage.graph.roles)


def test_the_first_screen_has_the_four_answers(plan: Plan) -> None:
    assert_first_screen_answers(render_plan(plan, width=80), plan)


def test_program_is_right_and_its_estimate_adds_up(plan: Plan) -> None:
    for stage in plan.stages:
        check(stage.programs)
        assert {edge.id for edge in stage.edges} <= {channel.edge for channel in stage.programs.channels}
        assert set(stage.estimate.durations) == {i.id for i in stage.programs.instructions}
        assert all(0 <= share <= 1 + 1e-9 for share in stage.estimate.busy.values())
        starts = [span.start_seconds for span in stage.estimate.timeline]
        assert all(0 <= start < stage.estimate.step_seconds for start in starts)
        assert {i.id for i in stage.programs.instructions if i.every_steps == 1} == {
            span.instruction for span in stage.estimate.timeline
        }
