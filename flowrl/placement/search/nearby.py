"""Local moves from placements that are known, each worked out in full: what bounds alone do not see.

Where memory binds, bounds say little of which ways are good. From each start, a role goes to another pool or to one of
its own, two roles change places, pools join, devices go from one pool to another; the next move starts at what is
better. Takes the Ground of a search and its Settler, which keeps the best. It proves nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowrl.placement.search.branch import Bound, Box, Ground, Seat
from flowrl.placement.search.climb import Climb
from flowrl.placement.search.familiar import Way
from flowrl.placement.search.objective import WORST, Score
from flowrl.placement.search.settle import Settler
from flowrl.placement.search.sizes import is_thinned
from flowrl.placement.search.ways import Part

NODES_OF_START = (100, 900)
"""Choices of a way that is a start, and so many more until one fits."""
NODES_OF_MOVE = (30, 70)
NODES_OF_BEST = (1_000, 0)
STEPS = (1, 2, 4)
"""Places among the sizes by which one pool grows and another shrinks."""

Pool = tuple[tuple[str, ...], str, int]
"""Roles, group, devices."""
State = tuple[Pool, ...]


@dataclass(slots=True)
class Nearby:
    """Of one search."""

    ground: Ground
    settler: Settler
    climb: Climb
    end: int
    """What may have been looked at by the whole search when this ends."""
    _thinned: frozenset[str] = frozenset()
    _seen: set[object] = field(default_factory=set[object])

    def __post_init__(self) -> None:
        groups = self.ground.ways.groups
        self._thinned = frozenset(name for name in self.ground.room if is_thinned(groups[name]))

    def run(self, ways: Sequence[Way]) -> None:
        """From the best so far on, and from the best sizes of each way to share pools among `ways`, the best first."""
        best = self._best()
        starts: dict[object, tuple[Score, State]] = {}
        if best is not None:
            starts[_sharing(best)] = (self.settler.score, best)
        for parts, sizes in ways:
            state = self._tried(tuple((p.roles, p.group, size) for p, size in zip(parts, sizes, strict=True)))
            known = starts.get(_sharing(state))
            score = self._settled(state, known[0] if known else WORST, NODES_OF_START)
            if score is not None:
                starts[_sharing(state)] = (score, state)
        for score, state in sorted(starts.values(), key=lambda each: each[0]):
            self._up(score, state)
        best = self._best()
        if best is not None:
            self._settled(best, self.settler.score, NODES_OF_BEST)

    def _best(self) -> State | None:
        best = self.settler.best
        if best is None or any(draft.group.name not in self.ground.room for draft in best.option.pools):
            return None
        return tuple((draft.roles, draft.group.name, len(draft.devices)) for draft in best.option.pools)

    def _up(self, score: Score, state: State) -> None:
        """To where no move is better. The first move that is better is taken, and others of its kind follow it."""
        kinds = (self._shifts, self._regrouped)
        idle, at = 0, 0
        while idle < len(kinds) and self.ground.count.looked_at < self.end:
            better = self._first(kinds[at](state), score)
            if better is None:
                at, idle = (at + 1) % len(kinds), idle + 1
            else:
                (score, state), idle = better, 0

    def _first(self, moves: Iterator[State], than: Score) -> tuple[Score, State] | None:
        for way in moves:
            if self.ground.count.looked_at >= self.end:
                return None
            state = self._tried(way)
            key = frozenset((frozenset(roles), group, size) for roles, group, size in state)
            if key in self._seen:
                continue
            self._seen.add(key)
            score = self._settled(state, than, NODES_OF_MOVE)
            if score is not None:
                return score, state
        return None

    def _tried(self, state: State) -> State:
        """With sizes that are tried, where these are thinned: each other one has costs of its own to work out."""
        return tuple(
            (roles, group, every[bisect_right(every, size) - 1] if group in self._thinned else size)
            for roles, group, size in state
            for every in (self.ground.sizes[group],)
        )

    def _settled(self, state: State, than: Score, nodes: tuple[int, int]) -> Score | None:
        """What it scores, if that is less than `than`."""
        ways = self.ground.ways
        size_of = {roles[0]: size for roles, _, size in state}
        parts = ways.in_order([Part(roles, group) for roles, group, _ in state])
        sizes = [next(size_of[role] for role in part.roles if role in size_of) for part in parts]
        if not ways.allowed(parts) or not self._may_be_better(parts, sizes, than):
            return None
        return self.settler.settle_quickly(parts, sizes, than, nodes)

    def _may_be_better(self, parts: Sequence[Part], sizes: Sequence[int], than: Score) -> bool:
        """As far as room and bounds say."""
        used, places = dict.fromkeys(self.ground.room, 0), list[int]()
        for part, size in zip(parts, sizes, strict=True):
            every = self.ground.sizes[part.group]
            places.append(bisect_left(every, size))
            used[part.group] += size
            if places[-1] < self.ground.floors.first(part.roles, part.group, every):
                return False
        if any(used[group] > room for group, room in self.ground.room.items()):
            return False
        self.ground.count.looked_at += 1
        seats = tuple(Seat(part.roles, part.group, self.ground.sizes[part.group]) for part in parts)
        wanted = [(part.group, size) for part, size in zip(parts, sizes, strict=True)]
        most = self.ground.objective.most_seconds(wanted, than)
        return not Bound(self.ground, Box(seats, tuple(places), tuple(places))).reaches(places, most)

    # -- moves --------------------------------------------------------------------------------------------------------

    def _shifts(self, state: State) -> Iterator[State]:
        """Devices from one pool, or from none, to another; or from one to none."""
        for step in STEPS:
            for taker, (roles, group, size) in enumerate(state):
                sizes = self.ground.sizes[group]
                at = bisect_right(sizes, size) - 1
                more = sizes[min(at + step, len(sizes) - 1)]
                if at >= step:
                    yield (*state[:taker], (roles, group, sizes[at - step]), *state[taker + 1 :])
                if more == size:
                    continue
                free = self.ground.room[group] - sum(each for _, other, each in state if other == group)
                if more - size <= free:
                    yield (*state[:taker], (roles, group, more), *state[taker + 1 :])
                for giver, (others, other, count) in enumerate(state):
                    less = count - (more - size - min(free, more - size))
                    if giver != taker and other == group and 0 < less < count:
                        grown = [*state]
                        grown[taker], grown[giver] = (roles, group, more), (others, other, less)
                        yield tuple(grown)

    def _regrouped(self, state: State) -> Iterator[State]:
        """Other ways to share pools, each with devices as they are and with the sizes that bounds say are best."""
        for way in self._ways_from(state):
            yield way
            seats = [Seat(roles, group, self.ground.sizes[group]) for roles, group, _ in way]
            guess = self.climb.guess(seats)
            if guess is not None:
                _, chosen, places = guess
                yield tuple((s.roles, s.group, s.sizes[at]) for s, at in zip(chosen, places, strict=True))

    def _ways_from(self, state: State) -> Iterator[State]:
        ways = self.ground.ways
        for at, (roles, _, size) in enumerate(state):
            for role in roles:
                left = tuple(each for each in roles if each != role)
                for to, (others, _, count) in enumerate(state):
                    if to != at and ways.may_join(role, others):
                        yield self._moved(state, at, left, to, (*others, role), size, count)
                if left and len(state) < ways.most_pools:
                    yield from self._opened(state, at, left, role)
        for one in range(len(state)):
            for other in range(one):
                yield from self._swapped(state, one, other)
                yield from self._joined(state, one, other)

    def _moved(
        self, state: State, at: int, left: tuple[str, ...], to: int, joined: tuple[str, ...], size: int, count: int
    ) -> State:
        """A pool that is empty then leaves its devices to the one that its role joins, if they are of a group."""
        same = state[at][1] == state[to][1]
        found = [*state]
        found[to] = (joined, state[to][1], count + size if same and not left else count)
        found[at] = (left, state[at][1], size)
        return tuple(each for each in found if each[0])

    def _opened(self, state: State, at: int, left: tuple[str, ...], role: str) -> Iterator[State]:
        """A pool of its own: from half of the devices that it is on, or on another group's free ones."""
        roles, group, size = state[at]
        sizes = self.ground.sizes[group]
        share = self._work(role, group) / max(sum(self._work(each, group) for each in roles), 1e-12)
        for part in dict.fromkeys((share, 0.5)):
            own = sizes[max(0, min(bisect_left(sizes, size * part), len(sizes) - 1))]
            if 0 < own < size:
                yield (*state[:at], (left, group, size - own), *state[at + 1 :], ((role,), group, own))
        for other, room in self.ground.room.items():
            free = room - sum(count for _, where, count in state if where == other)
            if free > 0:
                yield (*state[:at], (left, group, size), *state[at + 1 :], ((role,), other, free))

    def _work(self, role: str, group: str) -> float:
        return self.ground.floors.of(role, group, self.ground.sizes[group]).device_seconds

    def _swapped(self, state: State, one: int, other: int) -> Iterator[State]:
        ways = self.ground.ways
        (first, group, size), (second, where, count) = state[one], state[other]
        for role in first:
            for mate in second:
                ones = tuple(each for each in first if each != role)
                others = tuple(each for each in second if each != mate)
                if ways.may_join(mate, ones) and ways.may_join(role, others):
                    found = [*state]
                    found[one], found[other] = ((*ones, mate), group, size), ((*others, role), where, count)
                    yield tuple(found)
        if group != where:
            found = [*state]
            found[one], found[other] = (second, group, size), (first, where, count)
            yield tuple(found)

    def _joined(self, state: State, one: int, other: int) -> Iterator[State]:
        (first, group, size), (second, where, count) = state[one], state[other]
        if all(self.ground.ways.may_join(role, second) for role in first):
            whole = size + count if group == where else max(size, count)
            rest = [each for at, each in enumerate(state) if at not in (one, other)]
            yield (*rest, ((*second, *first), where if count >= size else group, whole))


def _sharing(state: State) -> frozenset[object]:
    """Which roles share a pool, and on which group."""
    return frozenset((frozenset(roles), group) for roles, group, _ in state)
