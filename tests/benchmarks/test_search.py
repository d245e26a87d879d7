"""A few cases of benchmarks/search.py in each run of the tests: the search beside the oracle, chains whose last stage
is best on one device, simulated periods beside cycle ratios. The whole is `python benchmarks/search.py`."""

from __future__ import annotations

from benchmarks.searching import cycles
from benchmarks.searching.chains import cases, has_one
from benchmarks.searching.instances import instance
from benchmarks.searching.optimum import SAME, SEED, compared

NUMBERS = (3, 4, 6, 7, 8, 13, 19, 20, 142)
"""Of instances: one kind of device and two, nodes with little memory, one on which nothing fits, and the one with the
longest proof."""


def test_the_search_finds_what_the_oracle_finds() -> None:
    found = [compared(instance(SEED, number)) for number in NUMBERS]
    assert [each.faults for each in found] == [()] * len(NUMBERS)
    assert max(each.gap for each in found) <= SAME
    placed = [each for each in found if each.best is not None]
    assert len(placed) > len(NUMBERS) / 2
    assert any(each.instance.mixed for each in placed)
    assert any(each.binding for each in placed)


def test_other_objectives_and_bounds_on_the_step() -> None:
    for number in (8, 20):
        found = compared(instance(SEED, number), others=True)
        assert found.faults == ()
        assert found.objectives == 5


def test_last_stages_on_one_device_are_found() -> None:
    """RLinf's planner never gives the last stage of a chain one device."""
    found = [compared(case) for case in list(cases("judge"))[75::42]]
    assert all(each.gap <= SAME and each.faults == () for each in found)
    assert any(has_one(each, "reward") for each in found)


def test_simulated_periods_are_cycle_ratios() -> None:
    found = [cycles.checked(*program) for program in cycles.programs(6)]
    assert all(each.period is not None for each in found)
    assert max(each.worst for each in found) <= SAME
