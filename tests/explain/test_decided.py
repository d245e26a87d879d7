"""An opened decision: its codes in words, and lines of a flow that settle it by hand and can be pasted."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest

from flowrl.api.compile import compile_spec
from flowrl.api.explain import open_number
from flowrl.explain.decided import REASONS, layout_keys, search_notes, to_write
from flowrl.plan.plan import Plan, SearchReport
from flowrl.report.opened import render_opened
from flowrl.spec import loads
from tests.placement.flows import GRPO, PPO, with_placement

PLACEMENT = Path(__file__).parents[2] / "flowrl" / "placement"


@lru_cache(maxsize=8)
def plan_of(text: str) -> Plan:
    return compile_spec(loads(text))


def test_every_code_of_a_decision_has_words() -> None:
    """All that placement can say, read from its source: reasons are literals there."""
    text = "".join((PLACEMENT / name).read_text() for name in ("decisions.py", "chosen.py", "choices.py"))
    found = set(re.findall(r'reason(?:=| = |, )"([a-z_]+)"', text))
    found |= set(re.findall(r'return "([a-z_]+)"(?:,|\n)', text)) | set(re.findall(r'else "([a-z_]+)"', text))
    found |= set(re.findall(r': "([a-z_]+)"', re.findall(r"_BEST = {.*}", text)[0]))
    assert {"fastest", "does_not_fit", "slower", "cheapest", "asked_for", "needed_to_fit"} <= found
    assert found - set(REASONS) <= {"micro_batch_tokens"}, "all but a key"


def test_the_pools_that_are_written_give_the_same_plan() -> None:
    plan = plan_of(PPO)
    (stage,) = plan.stages
    decision = next(each for each in stage.decisions if each.what == "pools")
    again = plan_of(f"{PPO}\n" + "\n".join(to_write(stage, decision)) + "\n")
    assert again.stages[0].estimate.step_seconds == pytest.approx(stage.estimate.step_seconds)
    mine, theirs = ({p.name: [r.role for r in p.roles] for p in each.stages[0].pools} for each in (plan, again))
    assert mine == theirs


@pytest.mark.parametrize("flow", [PPO, GRPO, with_placement(PPO, "colocated")])
def test_what_is_written_of_a_layout_is_what_is_then_planned(flow: str) -> None:
    (stage,) = plan_of(flow).stages
    base = flow.partition("placement:")[0]
    for decision in (each for each in stage.decisions if each.what.startswith("layout of ")):
        if not decision.rejected:
            continue
        role = decision.what.removeprefix("layout of ")
        lines = to_write(stage, decision)
        (again,) = plan_of(f"{base}\n" + "\n".join(lines) + "\n").stages
        entry = next(entry for pool in again.pools for entry in pool.roles if entry.role == role)
        wanted = next(each.option for each in decision.rejected if each.option.startswith("dp"))
        sizes = dict(re.findall(r"(tp|pp|cp|ep)(\d+)", wanted))
        axes = ("tp", "pp", "cp", "ep")
        assert [getattr(entry.layout, axis) for axis in axes] == [int(sizes.get(axis, 1)) for axis in axes]


def test_keys_with_one_value_are_written_with_the_other() -> None:
    (stage,) = plan_of(with_placement(PPO, "colocated")).stages
    told = {each.what: to_write(stage, each) for each in stage.decisions}
    stays = next(each for each in stage.decisions if each.what.startswith("offload of "))
    value = "true" if stays.chosen.startswith("stays") else "false"
    assert told[stays.what] == (f"roles.{stays.what.removeprefix('offload of ')}.engine.offload: {value}",)


def test_layouts_as_keys() -> None:
    assert layout_keys("dp4 tp2") == "{tp: 2}"
    assert layout_keys("dp2 tp4 pp2 ep8") == "{tp: 4, pp: 2, ep: 8}"
    assert layout_keys("dp16") == "{tp: 1}"


def test_the_search_tells_what_it_looked_at_and_what_it_has_proven() -> None:
    assert search_notes(SearchReport()) == ()
    proven = search_notes(SearchReport(looked_at=1200, exhaustive=True, space="all sizes"))
    assert proven == (
        "searched all sizes: 1,200 bounds and choices worked out",
        "proven: no placement of this space is better",
    )
    short = search_notes(SearchReport(looked_at=9, exhaustive=False, gap=0.0123, bound=7.5, space="sizes thinned"))
    assert short[1] == "not proven: at most 1.23% over the best of this space (bound 7.5)"


def test_a_decision_is_shown_whole() -> None:
    plan = plan_of(PPO)
    text = render_opened(open_number(plan, "D1"), 100)
    assert f"searched {plan.stages[0].search.space}" in text
    decision = plan.stages[0].decisions[0]
    assert f"({decision.reason}: {REASONS[decision.reason]})" in " ".join(text.split())
    for each in decision.rejected:
        assert each.reason in text
    assert "  write     placement:\n" in text
    assert max(map(len, text.splitlines())) <= 100
    assert open_number(plan, "D2").search is None
