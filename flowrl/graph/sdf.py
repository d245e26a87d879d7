"""Synchronous dataflow (Lee & Messerschmitt 1987, "Synchronous Data Flow"): balance, liveness, buffers, delays.

Takes actors (names) and channels (integers); knows nothing of flows. An actor fires when each channel into it holds the
tokens that one firing consumes and each channel out of it has room for what it produces; room is looked for before the
firing's own tokens are taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import msgspec
from msgspec.structs import replace


class Channel(msgspec.Struct, frozen=True, gc=False):
    """Tokens from one actor to another. ValueError where a rate is below 1 or the first tokens do not fit."""

    name: str
    source: str
    target: str
    produce: int = 1
    """Tokens that one firing of `source` puts in."""
    consume: int = 1
    """Tokens that one firing of `target` takes out."""
    tokens: int = 0
    """Before the first firing."""
    capacity: int | None = None
    """Most tokens at once; None is no limit."""

    def __post_init__(self) -> None:
        if self.produce < 1 or self.consume < 1 or self.tokens < 0:
            raise ValueError(f"channel {self.name}: {self.produce} in, {self.consume} out, {self.tokens} at the start")
        if self.capacity is not None and self.capacity < self.tokens:
            raise ValueError(f"channel {self.name}: {self.tokens} tokens in room for {self.capacity}")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two ways from `start` to `end` that ask for different numbers of firings of `end`. Channels of a way may be
    walked against their direction."""

    start: str
    end: str
    known: tuple[Channel, ...]
    """The way whose rates are taken as given."""
    other: tuple[Channel, ...]
    """The way that contradicts it; its last channel closes the cycle."""
    known_firings: Fraction
    """Firings of `end` for each firing of `start`, by the first way."""
    other_firings: Fraction


@dataclass(frozen=True, slots=True)
class Balance:
    repetitions: Mapping[str, int]
    """Firings of each actor in one iteration: the smallest positive integers, by connected component."""
    conflicts: tuple[Conflict, ...]
    """Channels that the repetitions leave unbalanced; none where the graph is consistent."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An actor that cannot fire: it needs `needs` tokens (or room for them) on the channel, which has `has`."""

    actor: str
    channel: Channel
    has: int
    needs: int
    for_room: bool

    @property
    def awaited(self) -> str:
        """Who would have to fire first."""
        return self.channel.target if self.for_room else self.channel.source


@dataclass(frozen=True, slots=True)
class Deadlock:
    """The counter-example to liveness: each waits for the next, the last for the first."""

    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A sequential schedule of one iteration: actors with how often each fires in a row."""

    firings: tuple[tuple[str, int], ...]


def balance(actors: Iterable[str], channels: Sequence[Channel]) -> Balance:
    """Solve `firings(source) · produce = firings(target) · consume` exactly, component by component.

    The search goes downstream, breadth first, from the first actor of each component in the order given, and upstream
    only where that ends; a conflict is told of the channel that was not needed to get anywhere. Where there are
    conflicts, the repetitions fit all other channels.
    """
    order = list(actors)
    beside: dict[str, list[Channel]] = {actor: [] for actor in order}
    for channel in channels:
        beside[channel.source].append(channel)
        if channel.target != channel.source:
            beside[channel.target].append(channel)
    rates: dict[str, Fraction] = {}
    ways: dict[str, tuple[str, Channel] | None] = {}
    repetitions: dict[str, int] = {}
    for actor in order:
        if actor not in rates:
            component = _spread(actor, beside, rates, ways)
            repetitions |= _smallest(component, rates)
    wrong = (c for c in channels if repetitions[c.source] * c.produce != repetitions[c.target] * c.consume)
    return Balance({actor: repetitions[actor] for actor in order}, tuple(_conflict(c, rates, ways) for c in wrong))


def schedule(actors: Iterable[str], channels: Sequence[Channel], repetitions: Mapping[str, int]) -> Schedule | Deadlock:
    """One iteration of a consistent graph, or why there is none.

    Firing one actor never disables another, so one order stands for all; an iteration leaves every channel as it was,
    so what can run once can run for ever.
    """
    left = {actor: repetitions[actor] for actor in actors}
    state = _State(channels)
    done: list[tuple[str, int]] = []
    queue = deque(left)
    queued = set(left)
    while queue:
        actor = queue.popleft()
        queued.discard(actor)
        times = min(left[actor], state.possible(actor))
        if times == 0:
            continue
        state.fire(actor, times)
        left[actor] -= times
        if done and done[-1][0] == actor:
            times += done.pop()[1]
        done.append((actor, times))
        fresh = [other for other in state.neighbours(actor) if left[other] and other not in queued]
        queue.extend(fresh)
        queued.update(fresh)
    stuck = [actor for actor, times in left.items() if times]
    return _deadlock(stuck[0], state) if stuck else Schedule(tuple(done))


def is_live(actors: Iterable[str], channels: Sequence[Channel], repetitions: Mapping[str, int]) -> bool:
    """Whether a consistent graph can run for ever within its capacities."""
    return isinstance(schedule(actors, channels, repetitions), Schedule)


def least_capacities(
    actors: Sequence[str], channels: Sequence[Channel], repetitions: Mapping[str, int]
) -> Mapping[str, int] | Deadlock:
    """Capacities by channel name with which the graph is live and of which none can be lowered alone; the capacities
    that channels have are not looked at. A deadlock where the graph is dead with unlimited buffers.

    The smallest sum is NP-hard to find (Bhattacharyya, Murthy & Lee 1996, "Software Synthesis from Dataflow Graphs").
    """
    sized = [replace(c, capacity=_alone(c)) for c in channels]
    while isinstance(found := schedule(actors, sized, repetitions), Deadlock):
        short = [wait for wait in found.waits if wait.for_room]
        if not short:
            return found
        least = min(short, key=lambda wait: (wait.needs - wait.has, wait.channel.name))
        sized = [_grown(c, least.needs - least.has) if c.name == least.channel.name else c for c in sized]
    for place, channel in enumerate(sized):
        sized[place] = _shrunk(actors, sized, repetitions, channel)
    return {channel.name: channel.capacity or 0 for channel in sized}


def oldest_read(path: Sequence[Channel], firing: int) -> int:
    """The first firing (from 1) of the path's first actor whose tokens reach firing `firing` of its last; 0 and less
    are tokens from before the start."""
    for channel in reversed(path):
        firing = _maker(channel, (firing - 1) * channel.consume + 1)
    return firing


def newest_read(path: Sequence[Channel], firing: int) -> int:
    """The last firing of the path's first actor whose tokens reach firing `firing` of its last."""
    for channel in reversed(path):
        firing = _maker(channel, firing * channel.consume)
    return firing


def most_iterations(path: Sequence[Channel], repetitions: Mapping[str, int]) -> int:
    """The most iterations that lie between a firing of the path's last actor and the oldest firing of its first that
    it reads from, in the steady state: the delay of the path."""
    first, last = repetitions[path[0].source], repetitions[path[-1].target]
    far = sum(channel.tokens for channel in path) + len(path) + 1  # iterations, so that no token is of the start
    firings = range(far * last + 1, (far + 1) * last + 1)
    return max(far - (oldest_read(path, firing) - 1) // first for firing in firings)


class _State:
    """Tokens on channels."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.tokens = {channel.name: channel.tokens for channel in channels}
        if len(self.tokens) != len(channels):
            raise ValueError("two channels have one name")
        self.into: dict[str, list[Channel]] = {}
        self.out: dict[str, list[Channel]] = {}
        for channel in channels:
            self.into.setdefault(channel.target, []).append(channel)
            self.out.setdefault(channel.source, []).append(channel)

    def possible(self, actor: str) -> int:
        """How often the actor can fire in a row; firings of a self-loop count as one."""
        counts = [self._fed(channel) for channel in self.into.get(actor, ())]
        counts += [self._roomy(channel) for channel in self.out.get(actor, ())]
        return min(counts, default=1 << 62)

    def fire(self, actor: str, times: int) -> None:
        for channel in self.into.get(actor, ()):
            self.tokens[channel.name] -= channel.consume * times
        for channel in self.out.get(actor, ()):
            self.tokens[channel.name] += channel.produce * times

    def neighbours(self, actor: str) -> Iterable[str]:
        own = (*self.into.get(actor, ()), *self.out.get(actor, ()))
        return dict.fromkeys(end for channel in own for end in (channel.source, channel.target))

    def wait(self, actor: str) -> Wait:
        """The first thing that keeps the actor from firing; tokens come before room."""
        for channel in self.into.get(actor, ()):
            if self.tokens[channel.name] < channel.consume:
                return Wait(actor, channel, self.tokens[channel.name], channel.consume, for_room=False)
        for channel in self.out.get(actor, ()):
            room = self._room(channel)
            if room is not None and room < channel.produce:
                return Wait(actor, channel, room, channel.produce, for_room=True)
        raise ValueError(f"{actor} can fire")

    def _room(self, channel: Channel) -> int | None:
        return None if channel.capacity is None else channel.capacity - self.tokens[channel.name]

    def _fed(self, channel: Channel) -> int:
        times = self.tokens[channel.name] // channel.consume
        return min(times, 1) if channel.source == channel.target else times

    def _roomy(self, channel: Channel) -> int:
        room = self._room(channel)
        if room is None:
            return 1 << 62
        times = room // channel.produce
        return min(times, 1) if channel.source == channel.target else times


def _spread(
    root: str,
    beside: Mapping[str, Sequence[Channel]],
    rates: dict[str, Fraction],
    ways: dict[str, tuple[str, Channel] | None],
) -> list[str]:
    """Give each actor of the root's component its firings per firing of the root, and the channel it was reached by:
    downstream as far as that goes, then one channel upstream, and so on."""
    rates[root], ways[root] = Fraction(1), None
    component = [root]
    downstream, upstream = deque([root]), deque([root])
    while downstream or upstream:
        forward = bool(downstream)
        actor = downstream.popleft() if forward else upstream[0]
        beyond = [c for c in beside[actor] if (c.source if forward else c.target) == actor]
        fresh = [c for c in beyond if (c.target if forward else c.source) not in rates]
        if not forward and not fresh:
            upstream.popleft()
        for channel in fresh if forward else fresh[:1]:
            other = channel.target if forward else channel.source
            if other in rates:
                continue
            rates[other] = _reached(rates[actor], channel, forward)
            ways[other] = (actor, channel)
            component.append(other)
            downstream.append(other)
            upstream.append(other)
    return component


def _reached(rate: Fraction, channel: Channel, forward: bool) -> Fraction:
    """The firings at the channel's other end. Most rates are equal, and fractions are slow."""
    if channel.produce == channel.consume:
        return rate
    ratio = Fraction(channel.produce, channel.consume)
    return rate * ratio if forward else rate / ratio


def _smallest(component: Sequence[str], rates: Mapping[str, Fraction]) -> dict[str, int]:
    scale = lcm(*{rates[actor].denominator for actor in component})
    firings = {actor: rates[actor].numerator * (scale // rates[actor].denominator) for actor in component}
    shared = gcd(*firings.values())
    return {actor: count // shared for actor, count in firings.items()}


def _conflict(
    channel: Channel, rates: Mapping[str, Fraction], ways: Mapping[str, tuple[str, Channel] | None]
) -> Conflict:
    """The way by which the channel's target was reached, and the one through the channel, from where they part."""
    to_source, to_target = _way(channel.source, ways), _way(channel.target, ways)
    shared = 0
    while shared < min(len(to_source), len(to_target)) and to_source[shared] == to_target[shared]:
        shared += 1
    start = to_source[shared - 1][1] if shared else (to_source or to_target or [(channel.source, "", channel)])[0][0]
    known = tuple(step[2] for step in to_target[shared:])
    other = (*(step[2] for step in to_source[shared:]), channel)
    by_other = rates[channel.source] * Fraction(channel.produce, channel.consume)
    return Conflict(start, channel.target, known, other, rates[channel.target] / rates[start], by_other / rates[start])


def _way(actor: str, ways: Mapping[str, tuple[str, Channel] | None]) -> list[tuple[str, str, Channel]]:
    """Steps (from, to, channel) from the root of the component to the actor."""
    steps: list[tuple[str, str, Channel]] = []
    while (step := ways[actor]) is not None:
        steps.append((step[0], actor, step[1]))
        actor = step[0]
    return steps[::-1]


def _deadlock(actor: str, state: _State) -> Deadlock:
    waits: list[Wait] = []
    seen: dict[str, int] = {}
    while actor not in seen:
        seen[actor] = len(waits)
        waits.append(state.wait(actor))
        actor = waits[-1].awaited
    return Deadlock(tuple(waits[seen[actor] :]))


def _alone(channel: Channel) -> int:
    """What the channel needs if nothing else stands in the way (Ade, Lauwereins & Peperstraete 1997, "Data memory
    minimisation for synchronous data flow graphs")."""
    if channel.source == channel.target:
        return channel.tokens + channel.produce
    shared = gcd(channel.produce, channel.consume)
    least = channel.produce + channel.consume - shared + channel.tokens % shared
    return max(least, channel.tokens)


def _grown(channel: Channel, more: int) -> Channel:
    return replace(channel, capacity=(channel.capacity or 0) + more)


def _shrunk(
    actors: Sequence[str], channels: Sequence[Channel], repetitions: Mapping[str, int], channel: Channel
) -> Channel:
    """The channel with the least capacity that keeps the graph live; liveness only grows with capacity."""
    low, high = max(channel.tokens, 1), channel.capacity or 0
    while low < high:
        middle = (low + high) // 2
        tried = [replace(c, capacity=middle) if c.name == channel.name else c for c in channels]
        if is_live(actors, tried, repetitions):
            high = middle
        else:
            low = middle + 1
    return replace(channel, capacity=high)


def _maker(channel: Channel, token: int) -> int:
    """The firing of the source that made the channel's token number `token` (from 1); 0 and less: of the start, as if
    the source had fired before."""
    return -((channel.tokens - token) // channel.produce)
