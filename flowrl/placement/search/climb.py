"""A good placement to start from: local moves of roles between pools and of devices between sizes, by bounds alone.

Takes the Ground of a search; gives ways with sizes, the most promising first. A way is judged by the steady seconds of
its roles at their least, without moves and hand-overs, on the best sizes that shifting devices finds. It proves
nothing: what it gives is worked out and is the better the more branch and bound may cut off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf

from flowrl.placement.search.branch import Bound, Box, Ground, Seat
from flowrl.placement.search.objective import Score

MOST_STEPS = 24
"""Moves of a role, one after another."""
STEPS = (4, 2, 1)
"""Places among the sizes by which a pool grows or shrinks."""
KEPT = 3
"""Ways that are worked out."""

Guess = tuple[Score, tuple[Seat, ...], tuple[int, ...]]
"""What a way may score, its pools, and places of their sizes."""


class Climb:
    """Of one search."""

    def __init__(self, ground: Ground, end: float = inf) -> None:
        """`end`: what may have been looked at by the whole search when this ends."""
        self.ground, self.end = ground, end
        self._known: dict[frozenset[tuple[tuple[str, ...], str]], Guess | None] = {}

    def ways(self, starts: Sequence[Sequence[Seat]]) -> list[Guess]:
        """The best ways met on the way up from each of `starts`."""
        for start in starts:
            here = self.guess(start)
            for _ in range(MOST_STEPS):
                if here is None:
                    break
                nearby = self._around(here[1])
                best = min(nearby, key=lambda guess: guess[0], default=here)
                if best[0] >= here[0]:
                    break
                here = best
        found = [guess for guess in self._known.values() if guess is not None]
        return sorted(found, key=lambda guess: guess[0])[:KEPT]

    def _around(self, seats: Sequence[Seat]) -> list[Guess]:
        found: list[Guess] = []
        for moved in self._moved(seats):
            if self.ground.count.looked_at >= self.end:
                break
            guess = self.guess(moved)
            if guess is not None:
                found.append(guess)
        return found

    def _moved(self, seats: Sequence[Seat]) -> Iterator[list[Seat]]:
        """Each role into each other pool and into one of its own."""
        ways = self.ground.ways
        for seat in seats:
            for role in seat.roles:
                left = [s if s is not seat else self._seat([r for r in s.roles if r != role], s.group) for s in seats]
                rest = [each for each in left if each.roles]
                for place, other in enumerate(rest):
                    if other.roles and ways.may_join(role, other.roles):
                        joined = self._seat([*other.roles, role], other.group)
                        yield [*rest[:place], joined, *rest[place + 1 :]]
                if len(rest) < ways.most_pools:
                    yield from ([*rest, self._seat([role], group)] for group in self.ground.sizes)
        for one in range(len(seats)):
            for other in range(one):
                if all(ways.may_join(role, seats[other].roles) for role in seats[one].roles):
                    joined = self._seat([*seats[other].roles, *seats[one].roles], seats[other].group)
                    yield [*seats[:other], joined, *(s for at, s in enumerate(seats) if at > other and at != one)]

    def _seat(self, roles: Sequence[str], group: str) -> Seat:
        ordered = tuple(role for role in self.ground.ways.roles if role in roles)
        return Seat(ordered, group, self.ground.sizes[group])

    def guess(self, seats: Sequence[Seat]) -> Guess | None:
        """The best sizes that are found for a way; None if it is not allowed or has no room."""
        key = frozenset((seat.roles, seat.group) for seat in seats)
        if key not in self._known:
            self._known[key] = self._guessed(seats)
        return self._known[key]

    def _guessed(self, seats: Sequence[Seat]) -> Guess | None:
        parts = self.ground.ways.in_order([seat.part for seat in seats])
        if not self.ground.ways.allowed(parts):
            return None
        ordered = tuple(Seat(part.roles, part.group, self.ground.sizes[part.group]) for part in parts)
        low = [self.ground.floors.first(seat.roles, seat.group, seat.sizes) for seat in ordered]
        if any(at >= len(seat.sizes) for seat, at in zip(ordered, low, strict=True)):
            return None
        return _Sizes(self.ground, ordered, low).best()


class _Sizes:
    """Sizes of the pools of one way, by place."""

    def __init__(self, ground: Ground, seats: tuple[Seat, ...], low: list[int]) -> None:
        self.ground, self.seats, self.low = ground, seats, low
        self.bound = Bound(ground, Box(seats, (0,) * len(seats), (0,) * len(seats)))

    def best(self) -> Guess | None:
        places = self._start()
        if places is None:
            return None
        score = self._score(places)
        for step in STEPS:
            while True:
                moved = min(self._shifted(places, step), key=lambda each: each[0], default=None)
                if moved is None or moved[0] >= score:
                    break
                score, places = moved
        return score, self.seats, tuple(places)

    def _start(self) -> list[int] | None:
        """By the work of the pools, none below its least."""
        places = list(self.low)
        for group, room in self.ground.room.items():
            mine = [at for at, seat in enumerate(self.seats) if seat.group == group]
            least = [self.seats[at].sizes[self.low[at]] for at in mine]
            spare = room - sum(least)
            if spare < 0:
                return None
            work = [self._work(self.seats[at]) for at in mine]
            for at, count, each in zip(mine, least, work, strict=True):
                places[at] = self._place(at, count + int(spare * each / max(sum(work), 1e-12)))
        return places

    def _work(self, seat: Seat) -> float:
        return sum(self.ground.floor(role, seat).device_seconds for role in seat.roles)

    def _place(self, at: int, count: int) -> int:
        """Of the largest size up to so many devices."""
        return bisect_right(self.seats[at].sizes, count) - 1

    def _shifted(self, places: Sequence[int], step: int) -> Iterator[tuple[Score, list[int]]]:
        """To a pool that the step waits for, from what is unused or from another of its group; else from one to
        nobody."""
        _, critical = self.bound.critical(places)
        sizes = [seat.sizes[place] for seat, place in zip(self.seats, places, strict=True)]
        for taker, seat in enumerate(self.seats):
            if critical.isdisjoint(seat.roles):
                if places[taker] - step >= self.low[taker]:
                    yield self._with(places, {taker: places[taker] - step})
                continue
            more = min(places[taker] + step, len(seat.sizes) - 1)
            group = [at for at, other in enumerate(self.seats) if other.group == seat.group]
            short = seat.sizes[more] - sizes[taker] - (self.ground.room[seat.group] - sum(sizes[at] for at in group))
            if more == places[taker]:
                continue
            if short <= 0:
                yield self._with(places, {taker: more})
            for giver in group if short > 0 else ():
                less = self._place(giver, sizes[giver] - short)
                if giver != taker and less >= self.low[giver]:
                    yield self._with(places, {taker: more, giver: less})

    def _with(self, places: Sequence[int], changed: dict[int, int]) -> tuple[Score, list[int]]:
        now = [changed.get(at, place) for at, place in enumerate(places)]
        return self._score(now), now

    def _score(self, places: Sequence[int]) -> Score:
        self.ground.count.looked_at += 1
        seconds = self.bound.least(places)
        wanted = [(seat.group, seat.sizes[place]) for seat, place in zip(self.seats, places, strict=True)]
        late = seconds > self.ground.objective.at_most
        value, _, devices = self.ground.objective.score(seconds, wanted)
        return (inf if late else value), seconds, devices
