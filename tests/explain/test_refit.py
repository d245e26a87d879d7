"""The refit: constants that made the seconds are found again, bounds hold, and what nothing shows stays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.explain.refit import refit, relevant, solved
from flowrl.machine.profile import Constant


def constant(path: str, prior: float, low: float = 1e-6, high: float = 1e6) -> Constant:
    return Constant(path=path, low=low, high=high, prior=prior)


def seconds(values: Mapping[str, float]) -> dict[str, float]:
    """Two ops: work over a rate with a floor of launches, and bytes over a bandwidth."""
    return {
        "update": max(100.0 / values["rate"], 4.0 * values["layer"]),
        "small": max(0.5 / values["rate"], 4.0 * values["layer"]),
        "copy": 20.0 / values["bandwidth"],
    }


ALL = (constant("rate", 10.0), constant("layer", 0.1), constant("bandwidth", 10.0), constant("unused", 1.0))


def test_only_what_some_seconds_depend_on_may_move() -> None:
    assert [each.path for each in relevant(ALL, seconds)] == ["rate", "layer", "bandwidth"]


@settings(max_examples=50, deadline=None)
@given(st.floats(1.0, 40.0), st.floats(0.05, 0.3), st.floats(1.0, 100.0))
def test_constants_are_found_again(rate: float, layer: float, bandwidth: float) -> None:
    true = {"rate": rate, "layer": layer, "bandwidth": bandwidth}
    if 100.0 / rate < 4.0 * layer or 0.5 / rate > 4.0 * layer:
        return  # a floor hides the rate
    found = refit(relevant(ALL, seconds), seconds, seconds({**true, "unused": 1.0}))
    # A tenth of the spread of the measurements stands against a factor of ten of the prior, once or as `copy` weighs.
    assert found["rate"] == pytest.approx(rate, rel=0.02)
    assert found["bandwidth"] == pytest.approx(bandwidth, rel=0.5)


def test_bounds_hold() -> None:
    bounded = (constant("rate", 10.0, 5.0, 20.0), *ALL[1:3])
    found = refit(bounded, seconds, {"update": 100.0 / 80.0, "small": 0.4, "copy": 2.0})
    assert found["rate"] == pytest.approx(20.0)


def test_solution_of_linear_equations() -> None:
    assert solved([[0.0, 2.0], [3.0, 1.0]], [4.0, 5.0]) == pytest.approx([1.0, 2.0])
