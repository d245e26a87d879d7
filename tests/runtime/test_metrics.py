"""Weighted means against exact fractions, and names."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.runtime.metrics import merge, named
from flowrl.runtime.rewards import reward_metric, reward_roles
from tests.runtime.plans import grpo_graph

PAIRS = st.lists(st.tuples(st.integers(-1000, 1000), st.integers(0, 50)), min_size=1, max_size=8)


@given(PAIRS)
def test_the_mean_is_the_weighted_one(pairs: list[tuple[int, int]]) -> None:
    value, weight = merge({"loss": (float(v), float(w))} for v, w in pairs)["loss"]
    total = sum(w for _, w in pairs)
    assert weight == (total if len(pairs) > 1 else pairs[0][1])
    exact = Fraction(sum(v * w for v, w in pairs), total) if total else Fraction(sum(v for v, _ in pairs), len(pairs))
    assert value == pytest.approx(float(exact))


def test_one_pair_is_passed_on_bit_for_bit() -> None:
    assert merge([{"loss": (0.1 + 0.2, 3.0)}])["loss"] == (0.1 + 0.2, 3.0)


def test_a_metric_that_only_one_rank_has_is_kept() -> None:
    assert merge([{"a": (1.0, 1.0)}, {"b": (2.0, 2.0)}]) == {"a": (1.0, 1.0), "b": (2.0, 2.0)}


def test_names_are_role_name_and_label() -> None:
    assert named({"rewards": (1.0, 1.0)}, "reward", "val") == {"reward.rewards@val": (1.0, 1.0)}
    assert named({"loss": (1.0, 1.0)}, "actor_train", None) == {"actor_train.loss": (1.0, 1.0)}


def test_validation_tells_how_good_the_policy_is_where_there_is_one() -> None:
    roles = reward_roles(grpo_graph())
    assert roles == {"reward": True}
    assert reward_metric(["reward.rewards", "reward.rewards@val"], roles) == "reward.rewards@val"
    assert reward_metric(["reward.rewards"], roles) == "reward.rewards"
    assert reward_metric(["actor_train.loss"], roles) is None


def test_the_reward_that_is_trained_on_comes_first() -> None:
    known = ["length.rewards@val", "solved.rewards@val"]
    assert reward_metric(known, {"length": False, "solved": True}) == "solved.rewards@val"
