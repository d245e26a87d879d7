"""The machine view is the plan file."""

from __future__ import annotations

import pytest

from flowrl.plan.io import dumps, loads
from flowrl.plan.plan import Plan
from flowrl.report.json import render_json
from flowrl.report.text import render_plan
from tests.report import plans


@pytest.mark.parametrize("plan", [plans.colocated(), plans.split(), plans.two_stages(), plans.infeasible()])
def test_machine_view_is_plan_json_and_enough_for_the_text(plan: Plan) -> None:
    text = render_json(plan)
    assert text.encode() == dumps(plan)
    assert render_plan(loads(text.encode(), "plan.json")) == render_plan(plan)
