"""Branch and bound over ways to share pools and over their sizes: best first, exact until it is stopped.

A Start has some roles in pools and says of the others only that they come next; a Box has all of them in pools and a
range of sizes for each. Either is bounded by the steady seconds with every role at its least on the largest size that
it may still get (floors.py), in the event graph of its pools (clock.py). Sizes that cannot beat the best so far are cut
off a box before it is split. Single sizes are settled (leaf.py). Takes the Ground of one request; gives the smallest
bound that is still open. docs/adr/0082 has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from flowrl.placement.search.clock import Clock
from flowrl.placement.search.floors import Floor, Floors
from flowrl.placement.search.leaf import MOST_LOOKED, Count
from flowrl.placement.search.objective import Objective, Score
from flowrl.placement.search.ways import Part, Ways
from flowrl.placement.time.event_graph import FREE

NODES_FIRST = 100
"""Choices of single sizes that are looked at when they are met. What takes more waits until all are met: the best of
them is known by then, and cuts the others off sooner."""
LITTLE = 0.02
"""Of the best: what is left to gain where half of all that may be looked at is enough."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A pool in the making: its roles, its group, and the sizes that it may have."""

    roles: tuple[str, ...]
    group: str
    sizes: tuple[int, ...]
    fixed: bool = False
    """Whether it is written in the flow: it may be left without roles."""

    @property
    def part(self) -> Part:
        return Part(self.roles, self.group)


@dataclass(frozen=True, slots=True)
class Box:
    """Pools with ranges of sizes, by their places; `open_roles` are not in one yet."""

    seats: tuple[Seat, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    open_roles: tuple[str, ...] = ()

    def wanted(self, places: Sequence[int]) -> list[tuple[str, int]]:
        """(group, devices) of the pools that have roles."""
        return [
            (seat.group, seat.sizes[place])
            for seat, place in zip(self.seats, places, strict=True)
            if seat.roles or not seat.fixed
        ]


@dataclass(slots=True)
class Ground:
    """What all boxes of one search share."""

    ways: Ways
    room: dict[str, int]
    """Devices of each group."""
    sizes: dict[str, tuple[int, ...]]
    order: tuple[str, ...]
    """Roles in the order in which they get pools: the longest first."""
    clock: Clock
    floors: Floors
    objective: Objective
    count: Count
    may_open: bool = True
    """Whether a role may get a pool of its own; not where the flow writes the pools."""
    whole: bool = False
    """Whether a pool takes its whole group: mode colocated."""

    def start(self, seats: Sequence[Seat] = ()) -> Box:
        """Nothing decided but pools that are written."""
        placed = {role for seat in seats for role in seat.roles}
        rest = tuple(role for role in self.order if role not in placed)
        return Box(tuple(seats), (0,) * len(seats), tuple(len(seat.sizes) - 1 for seat in seats), rest)

    def floor(self, role: str, seat: Seat) -> Floor:
        return self.floors.of(role, seat.group, seat.sizes)


class Branch:
    """One search. `settle` is asked for pools of single sizes, with a number of choices to look at (None: all); it says
    whether these were all. `best` gives the best score from then on."""

    def __init__(
        self,
        ground: Ground,
        settle: Callable[[Sequence[Seat], Sequence[int], int | None], bool],
        best: Callable[[], Score],
    ) -> None:
        self.ground, self._settle, self._best = ground, settle, best
        self.clock, self.count = ground.clock, ground.count
        self._heap: list[tuple[float, int, int, Box]] = []
        self._late: list[tuple[float, int, int, Box]] = []
        """Single sizes of which few choices were looked at: the rest is, when nothing else may hold a better one."""
        self._numbers = count()
        self._groups = tuple(ground.sizes)
        self._lost = inf
        """The smallest bound of sizes whose choices were not all looked at."""

    def start(self, box: Box) -> None:
        """What is to be searched."""
        self._push(box, 0.0)

    def run(self, most_looked: int = MOST_LOOKED, enough: int | None = None) -> float:
        """Search on until nothing open can be better than the best, or so much was looked at; after `enough`, only as
        long as it can be better by more than LITTLE. The smallest value that what is still open may have; infinite if
        nothing is."""
        while True:
            best = self._best()[0]
            queue = self._heap if self._heap and self._heap[0][0] <= best else self._late
            if not queue or queue[0][0] > best:
                return self._lost
            value = min(each[0][0] for each in (self._heap, self._late) if each)
            if self.count.looked_at >= self._stop(value, most_looked, enough):
                return min(value, self._lost)
            value, _, _, box = heappop(queue)
            if box.open_roles:
                for child in self._seated(box):
                    self._consider(child, value)
            elif box.low != box.high:
                for child in self._halves(box):
                    self._consider(child, value)
            elif queue is self._heap:
                if not self._settle(box.seats, box.low, NODES_FIRST):
                    self._push(box, value, self._late)
            else:
                self._settle(box.seats, box.low, None)
                if self.count.cut_short:
                    self._lost, self.count.cut_short = min(self._lost, value), False

    def _stop(self, value: float, most_looked: int, enough: int | None) -> int:
        if enough is None or self._best()[0] > (1 + LITTLE) * value:
            return most_looked
        return min(most_looked, enough)

    def _push(self, box: Box, value: float, queue: list[tuple[float, int, int, Box]] | None = None) -> None:
        # Of equal bounds the one that is nearer to its end comes first.
        place = len(box.open_roles), next(self._numbers)
        heappush(self._heap if queue is None else queue, (value, *place, box))

    def _consider(self, box: Box, parent: float) -> None:
        narrowed = self.narrowed(box)
        if narrowed is not None:
            box, value = narrowed
            self._push(box, max(value, parent))

    def _seated(self, box: Box) -> Iterator[Box]:
        """The next role in each pool, and in one of its own."""
        role, rest, ways = box.open_roles[0], box.open_roles[1:], self.ground.ways
        for place, seat in enumerate(box.seats):
            if ways.may_join(role, seat.roles):
                joined = Seat((*seat.roles, role), seat.group, seat.sizes, seat.fixed)
                yield self._whole(Box((*box.seats[:place], joined, *box.seats[place + 1 :]), box.low, box.high, rest))
        if self.ground.may_open and len(box.seats) < ways.most_pools:
            for group in self._groups:
                sizes = self.ground.sizes[group]
                first = len(sizes) - 1 if self.ground.whole else 0
                new = Seat((role,), group, sizes)
                yield self._whole(Box((*box.seats, new), (*box.low, first), (*box.high, len(sizes) - 1), rest))

    def _whole(self, box: Box) -> Box:
        """Once every role has a pool, pools in the order in which they are named."""
        if box.open_roles or not self.ground.may_open:
            return box
        parts = self.ground.ways.in_order([seat.part for seat in box.seats])
        place = {frozenset(seat.roles): number for number, seat in enumerate(box.seats)}
        order = [place[frozenset(part.roles)] for part in parts]
        seats = tuple(Seat(part.roles, part.group, box.seats[at].sizes) for part, at in zip(parts, order, strict=True))
        return Box(seats, tuple(box.low[at] for at in order), tuple(box.high[at] for at in order))

    def _halves(self, box: Box) -> Iterator[Box]:
        """The larger half of the widest range first."""
        spread = [
            seat.sizes[high] / seat.sizes[low] if high > low else 0.0
            for seat, low, high in zip(box.seats, box.low, box.high, strict=True)
        ]
        at = max(range(len(spread)), key=lambda place: (spread[place], -place))
        middle = (box.low[at] + box.high[at]) // 2
        yield Box(box.seats, (*box.low[:at], middle + 1, *box.low[at + 1 :]), box.high)
        yield Box(box.seats, box.low, (*box.high[:at], middle, *box.high[at + 1 :]))

    # -- bounds -------------------------------------------------------------------------------------------------------

    def narrowed(self, box: Box) -> tuple[Box, float] | None:
        """The box without sizes that cannot beat the best so far, and the least value of what is left; None if that is
        nothing."""
        if not box.open_roles and self.ground.may_open and not self.ground.ways.allowed([s.part for s in box.seats]):
            return None
        low = [max(self._first(seat), at) for seat, at in zip(box.seats, box.low, strict=True)]
        high = list(box.high)
        bound = Bound(self.ground, box)
        while True:
            if not self._fit(box, low, high):
                return None
            self.count.looked_at += 1
            most = self.ground.objective.most_seconds(box.wanted(low), self._best())
            if bound.device_seconds(self.ground.room) > most or bound.reaches(high, most):
                return None
            if not self._raise(box, bound, low, high, most):
                break
        value = self.ground.objective.least(bound.least(high), box.wanted(low))
        return Box(box.seats, tuple(low), tuple(high), box.open_roles), value

    def _first(self, seat: Seat) -> int:
        return self.ground.floors.first(seat.roles, seat.group, seat.sizes)

    def _fit(self, box: Box, low: list[int], high: list[int]) -> bool:
        """Whether the pools have room at all; lowers `high` to what the others leave."""
        if any(at >= len(seat.sizes) for seat, at in zip(box.seats, low, strict=True)):
            return False
        for group, room in self.ground.room.items():
            members = [place for place, seat in enumerate(box.seats) if seat.group == group]
            spare = room - sum(box.seats[place].sizes[low[place]] for place in members)
            if spare < 0:
                return False
            for place in members:
                sizes = box.seats[place].sizes
                most = sizes[low[place]] + spare
                while sizes[high[place]] > most:
                    high[place] -= 1
        return all(a <= b for a, b in zip(low, high, strict=True))

    def _raise(self, box: Box, bound: Bound, low: list[int], high: list[int], most: float) -> bool:
        """Raise each lower end to the first size with which, all others at their largest, the best can be beaten; say
        whether that leaves the others less."""
        raised = False
        for place in range(len(box.seats)):
            first, last = low[place], high[place]
            while first < last:
                middle = (first + last) // 2
                self.count.looked_at += 1
                if bound.reaches([*high[:place], middle, *high[place + 1 :]], most):
                    first = middle + 1
                else:
                    last = middle
            if first > low[place]:
                low[place], raised = first, True
        return raised and len(box.seats) > 1


class Bound:
    """Bounds of one box."""

    def __init__(self, ground: Ground, box: Box) -> None:
        self.ground, self.box = ground, box
        clock = ground.clock
        self._firing = list(clock.blank)
        pool_of = [FREE] * len(clock.roles)
        self._rows: list[list[tuple[tuple[int, ...], Floor]]] = []
        for number, seat in enumerate(box.seats):
            for role in seat.roles:
                pool_of[clock.number[role]] = number
            self._rows.append([(clock.places[role], ground.floor(role, seat)) for role in seat.roles])
        self._spent = {seat.group: 0.0 for seat in box.seats}
        for seat, rows in zip(box.seats, self._rows, strict=True):
            self._spent[seat.group] += sum(floor.device_seconds for _, floor in rows)
        self._open = 0.0
        for role in box.open_roles:
            self._put_open(role)
        self._frame = clock.frame(pool_of)

    def _put_open(self, role: str) -> None:
        """At the least of all pools that it may get."""
        ground, seats = self.ground, list(self.box.seats)
        if ground.may_open:
            seats = [Seat((), group, sizes) for group, sizes in ground.sizes.items()]
        floors = [floor for floor in (ground.floor(role, seat) for seat in seats) if floor.least]
        self._open += min((floor.device_seconds for floor in floors), default=inf)
        for place, values in zip(
            ground.clock.places[role], zip(*(floor.least[-1] for floor in floors), strict=True), strict=False
        ):
            self._firing[place] = min(values)

    def device_seconds(self, room: dict[str, int]) -> float:
        """No step is shorter, for no device does more than one thing at a time."""
        if self._open == inf:
            return inf
        each = max((spent / room[group] for group, spent in self._spent.items()), default=0.0)
        return max(each, (self._open + sum(self._spent.values())) / sum(room.values()))

    def reaches(self, places: Sequence[int], most: float) -> bool:
        """Whether a step with pools of at most these sizes takes `most` or longer."""
        return self._frame.reaches(self._nodes(places), self.ground.clock.unmoved, most)

    def critical(self, places: Sequence[int]) -> tuple[float, set[str]]:
        """Seconds of a step with pools of at most these sizes, and the roles that it waits for."""
        seconds, ring = self._frame.critical(self._nodes(places), self.ground.clock.unmoved)
        return seconds, self.ground.clock.roles_of(ring)

    def least(self, places: Sequence[int]) -> float:
        return self._frame.least(self._nodes(places), self.ground.clock.unmoved)

    def _nodes(self, places: Sequence[int]) -> list[float]:
        firing = self._firing
        for place, rows in zip(places, self._rows, strict=True):
            for ops, floor in rows:
                for op, seconds in zip(ops, floor.at(place), strict=True):
                    firing[op] = seconds
        return self.ground.clock.nodes(firing)
