"""Sessions that go on: whoever is done first, however far the trainer is behind, no sample is older than allowed, and
each prompt is trained on once."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from flowrl.backends.carried import Groups, choose, without
from flowrl.backends.contract import Gather
from flowrl.diag.diagnostic import InternalError
from flowrl.runtime.carried import Bounds, Carried, shared_out


class Simulated:
    """Generator ranks that finish prompts in random order, and a trainer that is up to `max_lag` steps behind: what the
    channel of the weights allows. Plain counting, no code of the runtime but Carried and choose."""

    def __init__(self, bounds: Bounds, ranks: int, parts: int, random: Random) -> None:
        self.bounds, self.parts, self.random = bounds, parts, random
        self.carried = Carried(bounds, ranks)
        self.groups: list[Groups[int]] = [Groups() for _ in range(ranks)]
        self.open: list[list[int]] = [[] for _ in range(ranks)]
        self.began: dict[int, int] = {}
        self.trained: dict[int, list[int]] = {}
        self.dropped: dict[int, list[int]] = {}
        self.cursor = self.held = 0

    def run(self) -> None:
        for step in range(1, self.bounds.steps + 1):
            first, count = self.carried.draw(step, self.cursor)
            self.carried.drawn(step, range(first, first + count), self.cursor)
            self.cursor = first + count
            oldest = self.bounds.published(max(0, step - 1 - self.bounds.max_lag))
            self.held = max(self.held, self.random.randint(oldest, self.bounds.published(step - 1)))
            self._begin(step)
            for number in range(1, self.parts + 1):
                for rank, gather in enumerate(self.carried.gather(step, number, self.parts)):
                    self._take(step, rank, gather)
            if step > 3:
                self.carried.step_done(step - 3)

    def _begin(self, step: int) -> None:
        for rank, ids in enumerate(self.carried.open(step, self.held)):
            for prompt in ids.tolist():
                self.groups[rank].add(prompt, [prompt])
                self.open[rank].append(prompt)
                self.began[prompt] = self.held

    def _take(self, step: int, rank: int, gather: Gather) -> None:
        groups, under_way = self.groups[rank], self.open[rank]
        dropped = groups.too_old(gather, lambda prompt: self.began[prompt])
        groups.pop(dropped)
        left = without(gather, dropped)
        under_way[:] = [prompt for prompt in under_way if prompt not in dropped]
        while (chosen := groups.choice(left)) is None and under_way:
            groups.finish(under_way.pop(self.random.randrange(len(under_way))))
        groups.pop(chosen or ())
        self.trained.setdefault(step, []).extend(chosen or ())
        self.dropped.setdefault(step, []).extend(dropped)
        oldest = min((self.began[prompt] for prompt in chosen or ()), default=None)
        self.carried.gave(step, (*(chosen or ()), *dropped), oldest)


def published_by(every: int, steps: int) -> list[int]:
    """The newest version at the end of each step, of an edge that publishes in steps 1, 1 + every, …"""
    found = [0]
    for step in range(1, steps + 1):
        found.append(found[-1] + ((step - 1) % every == 0))
    return found


@settings(max_examples=300, deadline=None)
@given(
    prompts=st.integers(1, 7),
    steps=st.integers(1, 9),
    lag=st.integers(1, 3),
    ranks=st.integers(1, 3),
    parts=st.integers(1, 3),
    every=st.integers(1, 3),
    drops=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_no_sample_is_too_old_and_each_prompt_is_trained_on_once(
    prompts: int, steps: int, lag: int, ranks: int, parts: int, every: int, drops: bool, seed: int
) -> None:
    versions = published_by(every, steps)
    simulated = Simulated(Bounds(prompts, steps, lag, drops, lambda s: versions[s]), ranks, parts, Random(seed))
    simulated.run()
    trained = [prompt for step in simulated.trained.values() for prompt in step]
    dropped = [prompt for step in simulated.dropped.values() for prompt in step]
    assert sorted(trained + dropped) == list(range(prompts * steps))
    event("carried" if any(len({simulated.began[p] for p in s}) > 1 for s in simulated.trained.values()) else "-")
    for step, given_ in simulated.trained.items():
        assert max((versions[step - 1] - simulated.began[p] for p in given_), default=0) <= lag
        assert drops or len(given_) == prompts
    assert drops or not dropped


def test_what_was_under_way_at_a_checkpoint_begins_anew() -> None:
    versions = published_by(1, 9)
    bounds = Bounds(4, 9, 2, False, lambda s: versions[s])
    simulated = Simulated(bounds, 1, 1, Random(3))
    simulated.bounds = Bounds(4, 5, 2, False, lambda s: versions[s])
    simulated.run()
    left = simulated.carried.waiting_at_end(5)
    done = {p for step in simulated.trained.values() for p in step}
    assert set(left) == set(range(24)) - done
    again = Carried(bounds, 1, 5, left)
    first, count = again.draw(6, 24)
    assert (first, first + count) == (min(left), 28)
    again.drawn(6, range(first, first + count), 24)
    (begun,) = again.open(6, 5)
    assert begun.tolist() == [*left, 24, 25, 26, 27]
    assert again.draw(7, 28) == (28, 4)
    assert again.draw(9, 36) == (36, 0)


@pytest.mark.parametrize(
    ("done", "gather", "given_"),
    [
        ([5, 3], Gather(2), (5, 3)),
        ([5], Gather(2), None),
        ([5, 3, 4], Gather(2, due=(4,)), (4, 5)),
        ([5, 3], Gather(2, due=(4,)), None),
        ([5, 3], Gather(2, later=1, due=(4,)), (5, 3)),
        ([], Gather(0, later=1, due=(4,)), ()),
        ([], Gather(0, due=(4,)), None),
    ],
)
def test_what_is_due_goes_first_and_is_waited_for(
    done: list[int], gather: Gather, given_: tuple[int, ...] | None
) -> None:
    assert choose(done, gather) == given_


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_shares_keep_their_bounds_and_leave_the_ranks_alike(pairs: list[tuple[int, int]], total: int) -> None:
    least, most = [low for low, _ in pairs], [low + more for low, more in pairs]
    total = min(max(total, sum(least)), sum(most))
    shares = shared_out(total, least, most)
    assert sum(shares) == total
    assert all(low <= share <= high for low, share, high in zip(least, shares, most, strict=True))
    left = [high - share for high, share in zip(most, shares, strict=True)]
    for mine, share, low in zip(left, shares, least, strict=True):
        assert share == low or mine >= max(left) - 1


def test_the_first_step_has_the_prompts_of_two_under_way_and_the_last_those_of_one() -> None:
    versions = published_by(1, 6)
    carried, cursor = Carried(Bounds(4, 4, 2, False, lambda s: versions[s]), 1), 0
    counts: list[int] = []
    for step in range(1, 5):
        start, count = carried.draw(step, cursor)
        cursor = start + count
        counts.append(count)
    assert counts == [8, 4, 4, 0]


def test_a_sample_that_is_too_old_is_our_fault() -> None:
    carried = Carried(Bounds(4, 6, 1, False, lambda s: s), 1)
    carried.gave(3, (), 1)
    with pytest.raises(InternalError, match="2 versions old, 1 are allowed"):
        carried.gave(3, (), 0)


def test_one_version_behind_while_training_goes_on_nothing_begins_that_would_be_too_old() -> None:
    """At lag 1 the engine that generates step 3 holds version 1: what does not end in this step would be 2 versions old
    when it is trained on, so no more begins than the step takes."""
    versions = published_by(1, 6)
    carried = Carried(Bounds(4, 6, 1, False, lambda s: versions[s]), 1)
    carried.drawn(3, range(12), 0)
    assert [len(ids) for ids in carried.open(3, 1)] == [4]
    (gather,) = carried.gather(3, 1, 1)
    assert gather.due == (0, 1, 2, 3)
