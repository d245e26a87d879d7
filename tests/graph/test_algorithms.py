"""Graph algorithms against brute force."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.graph.algorithms import ancestors, find_cycle, reachable, toposort

NODES = "abcdef"
PAIRS = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=10)


def _cycles(pairs: set[tuple[str, str]]) -> list[tuple[str, ...]]:
    """All simple cycles, each once for every node it may start at."""
    return [
        way
        for size in range(1, len(NODES) + 1)
        for way in permutations(NODES, size)
        if all(pair in pairs for pair in zip(way, (*way[1:], way[0]), strict=True))
    ]


@given(PAIRS)
def test_find_cycle_gives_a_shortest_one(pairs: list[tuple[str, str]]) -> None:
    cycles = _cycles(set(pairs))
    found = find_cycle(NODES, pairs)
    if not cycles:
        assert found is None
        return
    assert found in cycles
    assert len(found) == min(map(len, cycles))
    assert found[0] == min(found)


@given(PAIRS)
def test_find_cycle_takes_the_smallest_names(pairs: list[tuple[str, str]]) -> None:
    cycles = _cycles(set(pairs))
    if cycles:
        assert find_cycle(NODES, pairs) == min(cycles, key=lambda way: (len(way), way))


@given(PAIRS, st.randoms())
def test_toposort_is_an_order_and_ignores_the_input_order(pairs: list[tuple[str, str]], random: object) -> None:
    if find_cycle(NODES, pairs) is not None:
        with pytest.raises(ValueError, match="cycle"):
            toposort(NODES, pairs)
        return
    order = toposort(NODES, pairs)
    assert sorted(order) == sorted(NODES)
    assert all(order.index(a) < order.index(b) for a, b in pairs)
    assert toposort(NODES[::-1], pairs[::-1]) == order


@given(PAIRS)
def test_ancestors_are_those_that_reach(pairs: list[tuple[str, str]]) -> None:
    if find_cycle(NODES, pairs) is not None:
        return
    found = ancestors(NODES, pairs)
    for node in NODES:
        assert found[node] == {other for other in NODES if other != node and node in reachable([other], pairs)}
