"""Filters beside a second implementation by plain loops, hand-worked cases, and what must hold of any of them."""

from __future__ import annotations

import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.algos.filters import RULES, kept
from flowrl.graph.params import FilterParams

PROMPTS = np.asarray([3, 3, 3, 5, 5, 5, 8, 8, 8], dtype=np.int64)
REWARDS = np.asarray([0, 0, 0, 1, 0, 1, 1, 1, 1], dtype=np.float64)


def _kept(values: np.ndarray, prompts: np.ndarray = PROMPTS, **keys: Any) -> list[bool]:
    return kept(np.asarray(values, dtype=np.float64), prompts, FilterParams(**keys)).tolist()


def test_dynamic_sampling_keeps_the_groups_that_are_right_and_wrong() -> None:
    """DAPO equation 11: 0 < correct answers < group size."""
    assert _kept(REWARDS, rule="zero_spread") == [False] * 3 + [True] * 3 + [False] * 3
    assert _kept(REWARDS, rule="zero_spread", unit="sample") == [False] * 3 + [True] * 3 + [False] * 3


def test_the_groups_of_widest_spread_stay() -> None:
    """StarPO-S: a share of the prompts, those whose rewards deviate most."""
    values = np.asarray([0, 1, 0, 5, 0, 5, 2, 2, 2], dtype=np.float64)
    assert _kept(values, rule="spread", keep_top=0.34) == [False] * 3 + [True] * 3 + [False] * 3
    assert _kept(values, rule="spread", keep_top=0.67) == [True] * 6 + [False] * 3
    assert _kept(values, rule="spread", min=2.0) == [False] * 3 + [True] * 3 + [False] * 3


def test_thresholds_look_at_samples_or_at_the_mean_of_a_group() -> None:
    assert _kept(REWARDS, rule="threshold", unit="sample", min=0.5) == (REWARDS > 0).tolist()
    assert _kept(REWARDS, rule="threshold", min=0.2, max=0.8) == [False] * 3 + [True] * 3 + [False] * 3


def test_the_best_of_each_group_and_of_the_step() -> None:
    """RAFT keeps the best of each prompt's samples; of equal ones the first."""
    best = {"rule": "threshold", "unit": "sample", "keep_top": 0.34}
    assert _kept(REWARDS, within="group", **best) == [True, False, False, True, False, False, True, False, False]
    assert _kept(REWARDS, within="step", **best) == [False, False, False, True, False, True, True, False, False]


def test_what_was_cut_off_goes_alone_or_with_its_group() -> None:
    cut = np.asarray([0, 1, 0, 0, 0, 0, 1, 1, 1], dtype=np.float64)
    assert _kept(cut, rule="truncated", unit="sample") == (cut == 0).tolist()
    assert _kept(cut, rule="truncated") == [False] * 3 + [True] * 3 + [False] * 3


def test_no_rows_are_no_fault() -> None:
    assert _kept(np.zeros(0), np.zeros(0, dtype=np.int64), rule="spread", keep_top=0.5) == []


@st.composite
def samples(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    prompts = [prompt for prompt, size in enumerate(sizes) for _ in range(size)]
    few = st.sampled_from([0.0, 0.25, 0.5, 1.0, -2.0])
    return draw(st.lists(few, min_size=len(prompts), max_size=len(prompts))), prompts


filters = st.builds(
    FilterParams,
    rule=st.sampled_from(["zero_spread", "spread", "threshold"]),
    unit=st.sampled_from(["sample", "group"]),
    within=st.sampled_from(["step", "group"]),
    keep_top=st.none() | st.sampled_from([0.1, 0.25, 0.5, 0.9]),
    min=st.none() | st.sampled_from([-1.0, 0.1, 0.5]),
    max=st.none() | st.sampled_from([0.3, 0.9]),
)


@given(samples(), filters)
def test_as_by_plain_loops(rows: tuple[list[float], list[int]], params: FilterParams) -> None:
    values, prompts = rows
    found = kept(np.asarray(values), np.asarray(prompts, dtype=np.int64), params)
    assert found.tolist() == _by_loops(values, prompts, params)


@given(samples(), filters)
def test_groups_stay_or_go_whole(rows: tuple[list[float], list[int]], params: FilterParams) -> None:
    values, prompts = rows
    found = kept(np.asarray(values), np.asarray(prompts, dtype=np.int64), params)
    if params.unit == "group":
        assert all(len({bool(f) for f, p in zip(found, prompts, strict=True) if p == each}) == 1 for each in prompts)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_gives_one_answer_a_row(rule: str) -> None:
    assert len(_kept(REWARDS, rule=rule)) == len(REWARDS)


def _by_loops(values: list[float], prompts: list[int], params: FilterParams) -> list[bool]:
    """The language's words, spelt out: units with a score, a bound on it, then the highest share."""
    groups: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(prompt, []).append(place)
    units = list(groups.values()) if params.unit == "group" else [[place] for place in range(len(values))]

    def score(unit: list[int]) -> float:
        group = [values[place] for place in groups[prompts[unit[0]]]]
        if params.rule == "threshold":
            return statistics.fmean(values[place] for place in unit)
        return max(group) - min(group) if params.rule == "zero_spread" else statistics.pstdev(group)

    def fits(unit: list[int]) -> bool:
        if params.rule == "zero_spread" and score(unit) == 0:
            return False
        low = params.min is None or score(unit) >= params.min
        return low and (params.max is None or score(unit) <= params.max)

    stay = {place for unit in units if fits(unit) for place in unit}
    if params.keep_top is not None:
        ranked = [[u for u in units if u[0] in group] for group in groups.values()]
        pools = ranked if params.unit == "sample" and params.within == "group" else [units]
        best: set[int] = set()
        for pool in pools:
            exact = Fraction(str(params.keep_top)) * len(pool)
            count = round(exact) if abs(round(exact) - exact) <= Fraction(1, 100) else int(exact)
            for unit in sorted(pool, key=lambda u: (-score(u), u[0]))[:count]:
                best.update(unit)
        stay &= best
    return [place in stay for place in range(len(values))]
