"""The text of plans: goldens, widths, ASCII, colour, and that it says no number that the JSON does not have.

`python -m tests.report.test_text` writes the goldens anew; read them before you keep them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from flowrl.plan.plan import Plan
from flowrl.report.numbers import seconds
from flowrl.report.text import render_plan
from flowrl.report.when import bound_by
from tests.report import plans

GOLDEN = Path(__file__).with_name("golden")
PLANS = {
    "colocated": plans.colocated(),
    "split": plans.split(),
    "infeasible": plans.infeasible(),
    "two_stages": plans.two_stages(),
    "crowded": plans.crowded(),
}
PAGES = [
    ("colocated", 100, False),
    ("colocated", 120, False),
    ("colocated", 60, True),
    ("split", 100, False),
    ("infeasible", 100, False),
    ("two_stages", 100, False),
    ("crowded", 80, False),
]


def _golden(name: str, width: int, ascii: bool) -> Path:
    return GOLDEN / f"{name}-{width}{'-ascii' if ascii else ''}.txt"


@pytest.mark.parametrize(("name", "width", "ascii"), PAGES)
def test_page_is_as_in_the_golden(name: str, width: int, ascii: bool) -> None:
    page = render_plan(PLANS[name], width=width, ascii=ascii)
    assert page == _golden(name, width, ascii).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [60, 72, 80, 100, 120])
def test_no_line_is_wider_than_asked(name: str, width: int) -> None:
    for ascii in (False, True):
        page = render_plan(PLANS[name], width=width, ascii=ascii)
        assert max(map(len, page.splitlines())) <= width
        assert page.isascii() or not ascii
        assert all(line == line.rstrip() for line in page.splitlines())


@pytest.mark.parametrize("name", PLANS)
def test_ascii_moves_nothing(name: str) -> None:
    drawn, plain = (render_plan(PLANS[name], ascii=ascii).splitlines() for ascii in (False, True))
    assert list(map(len, drawn)) == list(map(len, plain))
    assert "?" not in "".join(plain)


@pytest.mark.parametrize("name", PLANS)
def test_colour_only_colours(name: str) -> None:
    colored = render_plan(PLANS[name], color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[\d+m", "", colored) == render_plan(PLANS[name])


def test_questions_come_in_order() -> None:
    page = render_plan(PLANS["colocated"])
    titles = re.findall(r"^ ([A-Z]{3,5})  ", page, re.MULTILINE)
    assert titles == ["WHAT", "WHERE", "WHEN", "FITS", "WHY"]


def test_infeasible_plan_says_so_first_with_what_binds() -> None:
    lines = render_plan(PLANS["infeasible"]).splitlines()
    assert lines[2] == (" DOES NOT FIT  actor_train.update needs 88.6 of 80.0 GiB in pool all on node0/0 .. node1/7")
    assert "activations 60.0" in lines[3]
    assert "micro_batch_tokens: 8192" in render_plan(PLANS["infeasible"])


@pytest.mark.parametrize("name", PLANS)
def test_the_first_screen_has_the_four_answers(name: str) -> None:
    assert_first_screen_answers(render_plan(PLANS[name], width=80), PLANS[name])


def assert_first_screen_answers(page: str, plan: Plan) -> None:
    """Of 24 lines of 80 columns: which devices hold what, what the step waits for, what to change to make it fit, what
    it costs."""
    screen = " ".join(line.strip() for line in page.splitlines()[:24])
    for stage in plan.stages:
        for pool in stage.pools:
            if pool.devices:
                ends = " .. ".join(dict.fromkeys((pool.devices[0], pool.devices[-1])))
                roles = ", ".join(placed.role for placed in pool.roles)
                assert f"{len(pool.devices):,} × {pool.device} ({ends}): {roles}" in screen
        assert f"step ≈ {seconds(stage.estimate.step_seconds)}" in screen
        assert bound_by(stage).replace("bound by ", "for ", 1) in screen
    if plan.verdict == "infeasible":
        texts = [help_.text for d in plan.diagnostics for help_ in d.helps]
        edits = [line.split("  ")[1] for text in texts for line in text.splitlines() if re.match(r"\s*\d  ", line)]
        assert "DOES NOT FIT" in screen
        assert all(edit in screen for edit in edits)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [60, 100, 120])
def test_every_number_is_in_the_plan(name: str, width: int) -> None:
    assert_every_number_is_known(render_plan(PLANS[name], width=width), PLANS[name])


def assert_every_number_is_known(page: str, plan: Plan) -> None:
    """Rounded, in percent, GiB, milliseconds, minutes or hours; or the length of a list; or in a text of the plan."""
    known = _numbers(plan)
    texts = msgspec.json.encode(plan).decode()
    for word in re.split(r"[\s·◀─]+", page):
        bare = word.strip(".,;:()×")
        if not re.search(r"\d", bare) or bare in texts:
            continue
        for number in re.findall(r"\d[\d,]*\.?\d*", bare):
            assert _is_known(number, known), f"{number} of {word!r}"


def _is_known(number: str, known: list[float]) -> bool:
    text = number.rstrip(",.").replace(",", "")
    decimals = len(text.partition(".")[2])
    return any(abs(value - float(text)) <= 0.5 * 10**-decimals + 1e-9 for value in known)


def _numbers(plan: Plan) -> list[float]:
    found: list[float] = []
    for value in _leaves(json.loads(msgspec.json.encode(plan))):
        found += [value, value * 100, value * 1000, value / 2**30, value / 60, value / 3600]
    return found


def _leaves(value: object) -> Iterator[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield float(value)
        return
    assert isinstance(value, dict | list)
    yield float(len(value))
    for inner in value.values() if isinstance(value, dict) else value:
        yield from _leaves(inner)


def write_goldens() -> None:
    for name, width, ascii in PAGES:
        _golden(name, width, ascii).write_text(render_plan(PLANS[name], width=width, ascii=ascii), encoding="utf-8")


if __name__ == "__main__":
    write_goldens()


def test_marks_of_the_bars_are_explained_where_all_is_told() -> None:
    plan = plans.colocated()
    assert "moves weights or state" not in render_plan(plan)
    told = render_plan(plan, every=True, ascii=True)
    assert "# works" in told
    assert "~ moves weights or state" in told
