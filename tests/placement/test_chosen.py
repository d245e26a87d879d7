"""What is told of the layout and the micro-batch of one role."""

from __future__ import annotations

import pytest

from flowrl import api
from flowrl.placement.chosen import layout_decision, micro_batch_decision
from flowrl.placement.layouts import change_text
from flowrl.plan.plan import Decision, Layout, RolePlacement
from tests.house.tree import ROOT
from tests.placement.test_choices import MEGATRON, OPEN, choices_of, fastest, site_of

LLAMA = MEGATRON.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B")


def of_size(flow: str, cluster: str, size: int | None, recompute: str = "none") -> Decision | None:
    choices = choices_of(flow, cluster)
    site = site_of(choices)
    layout = choices.menu("actor_train", site).layouts[0]
    entry = RolePlacement(role="actor_train", layout=layout, recompute=recompute, micro_batch_tokens=size)
    return micro_batch_decision(choices, site, entry, fits=True)


def test_a_layout_says_what_was_passed_over_and_what_was_left_out() -> None:
    choices = choices_of(LLAMA, "8x8xH100-80G")
    site = site_of(choices)
    entry = fastest(choices, "actor_train", site)[1]
    found = layout_decision(choices, site, "train", entry, asked=False, fits=True)
    menu = choices.menu("actor_train", site)
    assert (found.reason, found.override) == ("fastest", "placement.pools.train.layouts.actor_train")
    assert found.text.endswith(f"of other layouts {len(menu.over)} do not fit, {menu.untried} cut more than need be")
    assert found.rejected == choices.passed_over("actor_train", site, entry.layout)


def test_a_layout_that_nothing_was_chosen_for_says_so() -> None:
    choices = choices_of(OPEN, "2x8xH100-80G")
    site = site_of(choices)
    entry = RolePlacement(role="actor_train", layout=Layout(dp=16))
    assert layout_decision(choices, site, "all", entry, asked=False, fits=True).reason == "only_option"
    asked = layout_decision(choices, site, "all", entry, asked=True, fits=True)
    assert (asked.reason, asked.rejected) == ("asked_for", ())
    engine = RolePlacement(role="actor_infer", layout=Layout(dp=16))
    assert layout_decision(choices, site, "all", engine, asked=False, fits=False).reason == "nearest_to_fitting"


def test_the_only_layout_that_fits_is_told_with_those_that_do_not() -> None:
    choices = choices_of(OPEN.replace("Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-70B"), "8xH100-80G")
    site = site_of(choices)
    entry = RolePlacement(role="actor_infer", layout=Layout(dp=1, tp=8))
    found = layout_decision(choices, site, "all", entry, asked=False, fits=True)
    assert {each.reason for each in found.rejected} >= {"does_not_fit"}


def test_a_micro_batch_is_told_where_it_was_chosen() -> None:
    found = of_size(OPEN, "2x8xH100-80G", 8192)
    assert found is not None
    assert (found.what, found.chosen) == ("micro-batch of actor_train", "8,192 tokens")
    assert found.override == "roles.actor_train.update.micro_batch_tokens"
    assert [each.option for each in found.rejected] == ["16,384 tokens", "4,096 tokens"]


def test_a_micro_batch_that_is_needed_to_fit_says_what_the_default_needs() -> None:
    found = of_size(OPEN, "8xA100-40G", 4096, "full")
    assert found is not None
    assert found.reason == "needed_to_fit"
    (default,) = (each for each in found.rejected if each.option == "16,384 tokens")
    assert default.reason == "does_not_fit"
    assert "of 40" in (default.delta or "")


def test_a_written_micro_batch_is_no_decision() -> None:
    flow = OPEN.replace("update: {loss: ppo", "update: {loss: ppo, micro_batch_tokens: 8192")
    assert of_size(flow, "2x8xH100-80G", None) is None


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.123, 0, "+12%"),
        (0.003, 0, "+0.3%"),
        (-0.0349, 1, "−3.5%"),
        (-0.00001, 1, "±0%"),
        (0.0, 0, "±0%"),
        (0.01, 0, "+1%"),
    ],
)
def test_a_change_never_reads_as_none_with_a_sign(share: float, digits: int, text: str) -> None:
    assert change_text(share, digits) == text


def test_a_size_that_is_faster_alone_makes_no_step_shorter() -> None:
    """Written into the flow, with everything else chosen anew."""
    file = ROOT / "examples" / "flows" / "02-ppo-reward-model-split.yaml"
    (stage,) = api.plan(file).stages
    tried = [
        (decision.override, each.option.split()[0].replace(",", ""))
        for decision in stage.decisions
        for each in decision.rejected
        if decision.what.startswith("micro-batch") and each.reason == "no_shorter_step"
    ]
    assert tried
    for key, size in tried:
        assert api.plan(file, [f"{key}={size}"]).stages[0].estimate.step_seconds >= stage.estimate.step_seconds
