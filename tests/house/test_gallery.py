"""The gallery shows what the code says now, and its first screens answer what a reader asks first."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api
from flowrl.report.text import render_plan
from tests.report.test_text import assert_first_screen_answers
from tools import gallery


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gallery.ROOT)


def test_the_gallery_is_as_the_code() -> None:
    assert gallery.stale() == [], "run `python tools/gallery.py`"


@pytest.mark.parametrize("name", gallery.FLOWS)
def test_first_screens_have_the_four_answers(name: str) -> None:
    plan = gallery.planned(name)
    assert plan.verdict == "fits"
    assert_first_screen_answers(render_plan(plan, width=80), plan)


def test_the_first_screen_of_the_one_that_does_not_fit_says_what_would() -> None:
    plan = gallery.planned("ppo-70b", "16xH100-80G")
    assert plan.verdict == "infeasible"
    assert_first_screen_answers(render_plan(plan, width=80), plan)


def test_the_run_that_is_shown_had_the_instructions_of_the_plan() -> None:
    plan = api.plan(Path("examples") / "quickstart.yaml")
    known = {each.id for stage in plan.stages for each in stage.programs.instructions}
    lines = (gallery.ROOT / gallery.RAN).read_text(encoding="utf-8").splitlines()
    rows = [
        line[1:].split("  ")[0].strip() for line in lines if line.startswith((" run ", " send", " receive", " save"))
    ]
    assert rows
    assert set(rows) <= known
