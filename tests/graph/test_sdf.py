"""The solver of synchronous dataflow against search, execution and tagged tokens."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.graph.sdf import (
    Balance,
    Channel,
    Conflict,
    Deadlock,
    Schedule,
    balance,
    is_live,
    least_capacities,
    most_iterations,
    newest_read,
    oldest_read,
    schedule,
)

ACTORS = ("a", "b", "c", "d")
MOST_RATE = 4


@st.composite
def graphs(draw: st.DrawFn, tokens: int = 0, actors: Sequence[str] = ACTORS) -> tuple[Channel, ...]:
    ends = st.sampled_from(actors)
    rate = st.integers(1, MOST_RATE)
    drawn = draw(st.lists(st.tuples(ends, ends, rate, rate, st.integers(0, tokens)), min_size=1, max_size=6))
    return tuple(Channel(f"{n} {s}{t}", s, t, p, c, k) for n, (s, t, p, c, k) in enumerate(drawn))


@st.composite
def consistent_graphs(draw: st.DrawFn, tokens: int) -> tuple[tuple[Channel, ...], Mapping[str, int]]:
    """Rates that fit firings drawn first."""
    firings = {actor: draw(st.integers(1, 4)) for actor in ACTORS}
    ends = st.sampled_from(ACTORS)
    drawn = draw(st.lists(st.tuples(ends, ends, st.integers(1, 2), st.integers(0, tokens)), min_size=1, max_size=6))
    channels = tuple(
        Channel(f"{n} {s}{t}", s, t, firings[t] * times, firings[s] * times, k)
        for n, (s, t, times, k) in enumerate(drawn)
    )
    return channels, balance(ACTORS, channels).repetitions


# -- balance ----------------------------------------------------------------------------------------------------------


def _components(channels: Sequence[Channel]) -> list[list[str]]:
    left, found = list(ACTORS), list[list[str]]()
    while left:
        part = [left.pop(0)]
        for actor in part:
            near = {c.target for c in channels if c.source == actor} | {c.source for c in channels if c.target == actor}
            part += [other for other in left if other in near]
            left = [other for other in left if other not in near]
        found.append(part)
    return found


def _searched(part: Sequence[str], channels: Sequence[Channel]) -> dict[str, int] | None:
    """The smallest positive solution, by trying numbers: no entry of it can exceed the product of a tree's rates."""
    most = MOST_RATE ** (len(part) - 1)

    def extended(given: dict[str, int]) -> dict[str, int] | None:
        if len(given) == len(part):
            return given
        actor = part[len(given)]
        for count in range(1, most + 1):
            tried = {**given, actor: count}
            inside = [c for c in channels if actor in (c.source, c.target) and {c.source, c.target} <= set(tried)]
            if all(tried[c.source] * c.produce == tried[c.target] * c.consume for c in inside):
                found = extended(tried)
                if found is not None:
                    return found
        return None

    return extended({})


@given(graphs())
@settings(max_examples=1000)
def test_repetitions_are_the_smallest_that_a_search_finds(channels: tuple[Channel, ...]) -> None:
    solved = balance(ACTORS, channels)
    searched = [_searched(part, channels) for part in _components(channels)]
    assert bool(solved.conflicts) == (None in searched)
    for found in searched:
        if found is not None:
            assert {actor: solved.repetitions[actor] for actor in found} == found


def _ratio(start: str, way: Sequence[Channel]) -> tuple[str, Fraction]:
    """Where a way ends, and the firings there for each firing at its start."""
    ratio = Fraction(1)
    for channel in way:
        forward = channel.source == start
        assert forward or channel.target == start
        ratio *= Fraction(channel.produce, channel.consume) if forward else Fraction(channel.consume, channel.produce)
        start = channel.target if forward else channel.source
    return start, ratio


@given(graphs())
@settings(max_examples=300)
def test_a_conflict_names_two_ways_that_differ(channels: tuple[Channel, ...]) -> None:
    for conflict in balance(ACTORS, channels).conflicts:
        assert _ratio(conflict.start, conflict.known) == (conflict.end, conflict.known_firings)
        assert _ratio(conflict.start, conflict.other) == (conflict.end, conflict.other_firings)
        assert conflict.known_firings != conflict.other_firings
        assert set(conflict.known) & set(conflict.other) == set()


def test_conflict_is_told_where_it_closes() -> None:
    ab, bc, ac = Channel("ab", "a", "b", 2, 1), Channel("bc", "b", "c"), Channel("ac", "a", "c", 3, 1)
    solved = balance("abc", (ab, bc, ac))
    assert solved == Balance({"a": 1, "b": 2, "c": 3}, (Conflict("a", "c", (ac,), (ab, bc), Fraction(3), Fraction(2)),))


@pytest.mark.parametrize("broken", [{"produce": 0}, {"consume": 0}, {"tokens": -1}, {"tokens": 3, "capacity": 2}])
def test_rates_that_are_none(broken: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="channel x"):
        Channel("x", "a", "b", **broken)


# -- liveness ---------------------------------------------------------------------------------------------------------


def _runs(channels: Sequence[Channel], repetitions: Mapping[str, int], seed: int) -> bool:
    """Fire actors one at a time in any order until each has fired its number of times, or none can."""
    held = {c.name: c.tokens for c in channels}
    left = dict(repetitions)
    chance = random.Random(seed)

    def able(actor: str) -> bool:
        fed = all(held[c.name] >= c.consume for c in channels if c.target == actor)
        return fed and all(
            c.capacity is None or held[c.name] + c.produce <= c.capacity for c in channels if c.source == actor
        )

    while ready := [actor for actor, times in left.items() if times and able(actor)]:
        actor = chance.choice(ready)
        left[actor] -= 1
        for c in channels:
            held[c.name] += c.produce * (c.source == actor) - c.consume * (c.target == actor)
    return not any(left.values())


@given(consistent_graphs(tokens=8), st.integers(0, 8), st.integers())
@settings(max_examples=500)
def test_live_iff_it_runs(graph: tuple[tuple[Channel, ...], Mapping[str, int]], room: int, seed: int) -> None:
    """`room` 0 is no limit; else each channel has so much more than its first tokens."""
    channels, repetitions = graph
    channels = tuple(replace(c, capacity=c.tokens + room if room else None) for c in channels)
    found = schedule(ACTORS, channels, repetitions)
    assert isinstance(found, Schedule) == _runs(channels, repetitions, seed) == is_live(ACTORS, channels, repetitions)
    if isinstance(found, Schedule):
        _assert_runs(found, channels, repetitions)
        return
    assert found.waits
    for wait, following in zip(found.waits, (*found.waits[1:], found.waits[0]), strict=True):
        assert wait.has < wait.needs
        assert wait.actor == (wait.channel.source if wait.for_room else wait.channel.target)
        assert wait.awaited == following.actor


def _assert_runs(found: Schedule, channels: Sequence[Channel], repetitions: Mapping[str, int]) -> None:
    held = {c.name: c.tokens for c in channels}
    fired = dict.fromkeys(ACTORS, 0)
    for actor, times in found.firings:
        for _ in range(times):
            fired[actor] += 1
            assert all(held[c.name] >= c.consume for c in channels if c.target == actor)
            for c in channels:
                room = c.capacity is None or held[c.name] + c.produce <= c.capacity
                assert room or c.source != actor
                held[c.name] += c.produce * (c.source == actor) - c.consume * (c.target == actor)
    assert fired == repetitions
    assert held == {c.name: c.tokens for c in channels}


def test_counter_example_tells_who_waits_for_what() -> None:
    there, back = Channel("there", "a", "b", 2, 3), Channel("back", "b", "a", 3, 2, tokens=3)
    found = schedule("ab", (there, back), {"a": 3, "b": 2})
    assert isinstance(found, Deadlock)
    waits = {(w.actor, w.channel.name, w.has, w.needs, w.for_room, w.awaited) for w in found.waits}
    assert waits == {("a", "back", 1, 2, False, "b"), ("b", "there", 2, 3, False, "a")}
    assert is_live("ab", (there, replace(back, tokens=4)), {"a": 3, "b": 2})
    narrow = (replace(there, capacity=3), replace(back, tokens=4))
    blocked = schedule("ab", narrow, {"a": 3, "b": 2})
    assert isinstance(blocked, Deadlock)
    assert any(w.for_room and w.channel.name == "there" for w in blocked.waits)


@given(consistent_graphs(tokens=6))
@settings(max_examples=150)
def test_no_least_capacity_can_be_lowered(graph: tuple[tuple[Channel, ...], Mapping[str, int]]) -> None:
    channels, repetitions = graph
    found = least_capacities(ACTORS, channels, repetitions)
    if isinstance(found, Deadlock):
        assert not is_live(ACTORS, channels, repetitions)
        return
    sized = [replace(c, capacity=found[c.name]) for c in channels]
    assert _runs(sized, repetitions, seed=0)
    for channel in sized:
        if found[channel.name] > max(channel.tokens, 1):
            less = [replace(c, capacity=found[c.name] - 1) if c is channel else c for c in sized]
            assert not _runs(less, repetitions, seed=0)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 12))
def test_least_capacity_of_one_channel(produce: int, consume: int, tokens: int) -> None:
    channel = Channel("ab", "a", "b", produce, consume, tokens)
    firings = balance("ab", (channel,)).repetitions
    found = least_capacities("ab", (channel,), firings)
    assert not isinstance(found, Deadlock)
    fits = [room for room in range(max(tokens, 1), 64) if _runs([replace(channel, capacity=room)], firings, seed=1)]
    assert found["ab"] == fits[0]


# -- delays -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 7)), min_size=1, max_size=3))
@settings(max_examples=200)
def test_reads_are_those_of_tagged_tokens(rates: list[tuple[int, int, int]]) -> None:
    """Push tokens that carry the firings of the first actor that they come from through a chain of queues."""
    names = ACTORS[: len(rates) + 1]
    path = [Channel(f"{n}", names[n], names[n + 1], *each) for n, each in enumerate(rates)]
    repetitions = balance(names, path).repetitions
    assume(max(repetitions.values()) <= 64)
    queues = {c.name: deque([frozenset({0})] * c.tokens) for c in path}
    read: list[frozenset[int]] = []
    for firing in range(1, 60 * repetitions[names[0]] + 1):
        queues["0"].extend([frozenset({firing})] * path[0].produce)
        for here, channel in enumerate(path):
            while len(queues[channel.name]) >= channel.consume:
                taken = frozenset[int]().union(*(queues[channel.name].popleft() for _ in range(channel.consume)))
                if here + 1 == len(path):
                    read.append(taken)
                else:
                    queues[f"{here + 1}"].extend([taken] * path[here + 1].produce)
    iterations = 0
    for firing, taken in enumerate(read, start=1):
        if 0 not in taken:  # else some of it is of the start
            assert (oldest_read(path, firing), newest_read(path, firing)) == (min(taken), max(taken))
            own = (firing - 1) // repetitions[names[-1]]
            iterations = max(iterations, own - (min(taken) - 1) // repetitions[names[0]])
    assert most_iterations(path, repetitions) == iterations
