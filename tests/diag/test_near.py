"""Near names against the textbook recursion of the distance, and the cases that messages rely on."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.diag.near import edit_distance, near_names

words = st.text("abcd_", max_size=6)


def distance_by_definition(one: str, other: str) -> int:
    """Optimal string alignment as a recursion over prefixes (Boytsov 2011, section 2.2)."""

    @cache
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = [of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (one[i - 1] != other[j - 1])]
        if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
            ways.append(of(i - 2, j - 2) + 1)
        return min(ways)

    return of(len(one), len(other))


@given(words, words)
def test_distance_is_that_of_the_definition(one: str, other: str) -> None:
    assert edit_distance(one, other) == distance_by_definition(one, other)


@pytest.mark.parametrize(
    ("one", "other", "edits"), [("kitten", "sitting", 3), ("ca", "ac", 1), ("", "abc", 3), ("same", "same", 0)]
)
def test_known_distances(one: str, other: str, edits: int) -> None:
    assert edit_distance(one, other) == edits


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("temprature", ["temperature", "top_p", "top_k"], ["temperature"]),
        ("promts", ["prompts", "prompt"], ["prompts", "prompt"]),
        ("gen", ["generate", "engine"], ["generate"]),
        ("max_tokens", ["max_response_tokens", "max_turn_tokens", "stop"], ["max_response_tokens", "max_turn_tokens"]),
        ("k5", ["k1", "k2", "k3"], []),
        ("2", ["1"], []),
        ("batch", ["prompts", "updates"], []),
        ("lr", ["lr"], []),
        ("x" * 10_000, ["x"], []),
    ],
)
def test_names_that_messages_show(name: str, known: list[str], near: list[str]) -> None:
    assert near_names(name, known) == near


@given(words, st.lists(words))
def test_result_is_short_known_and_ordered(name: str, known: list[str]) -> None:
    near = near_names(name, known)
    assert len(near) <= 3
    assert set(near) <= set(known) - {name}
    assert near == near_names(name, reversed(known))
