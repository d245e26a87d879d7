"""The largest ratio of seconds to tokens over the circles of an event graph, on numbered nodes.

Takes arcs; gives the ratio and one circle that has it. Knows no instructions: execution/cycle_ratio.py names them, and
placement/time compares plans by it.

An arc says that its target starts at the earliest some seconds after its source did, some tokens (steps) before. In the
steady state a step is as long as the largest ratio (Baccelli, Cohen, Olsder & Quadrat 1992, "Synchronization and
Linearity", theorem 3.28). It is found by Newton's method on λ (Dinkelbach 1967; Lawler 1976 with an exact finish): as
long as some circle is longer than λ times its tokens, λ becomes the ratio of that circle. So what is given is always
the ratio of a circle, and no circle has a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence

NumberedArc = tuple[int, int, float, int]
"""Source, target, seconds, tokens."""
Circle = tuple[int, ...]
"""Places of its arcs in the sequence that was given, in order."""
_SLACK = 1e-13
"""Of all seconds together: what a path must be longer by, so that rounding makes none longer. Adding up the seconds of
a path is right to some 1e-16 of them an arc."""


def largest_ratio(count: int, arcs: Sequence[NumberedArc]) -> tuple[float, Circle]:
    """The largest ratio over the circles of a graph of `count` nodes, in seconds, and a circle that has it; 0 and none
    if no circle takes time. Seconds are not negative. Raises ValueError for a circle without tokens: it never starts.
    """
    return of_sorted(count, arcs, *in_turn(count, arcs))


def in_turn(count: int, arcs: Sequence[NumberedArc]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Places of the arcs without tokens, each after all that end where it starts, and of those with tokens: they stay
    the same while seconds change. Raises ValueError for a circle without tokens."""
    leaving: list[list[int]] = [[] for _ in range(count)]
    open_ends = [0] * count
    for place, (source, target, _, tokens) in enumerate(arcs):
        if tokens == 0:
            leaving[source].append(place)
            open_ends[target] += 1
    free = [node for node in range(count) if open_ends[node] == 0]
    forward: list[int] = []
    for node in free:
        forward += leaving[node]
        for place in leaving[node]:
            target = arcs[place][1]
            open_ends[target] -= 1
            if open_ends[target] == 0:
                free.append(target)
    if len(free) < count:
        raise ValueError("a circle without tokens")
    return tuple(forward), tuple(place for place, arc in enumerate(arcs) if arc[3])


def of_sorted(
    count: int, arcs: Sequence[NumberedArc], forward: Sequence[int], back: Sequence[int], at_least: float = 0.0
) -> tuple[float, Circle]:
    """`largest_ratio` of arcs that `in_turn` has put in order; `at_least` and no circle if none has a larger ratio."""
    places = (*forward, *back)
    turned = Turned(count, [(arcs[place][0], arcs[place][1], arcs[place][3]) for place in places])
    ratio, circle = turned.largest([arcs[place][2] for place in places], at_least)
    return ratio, tuple(places[place] for place in circle)


class Turned:
    """Arcs of which seconds change and the rest does not: (source, target, tokens), those without tokens first, each
    after all that end where it starts."""

    def __init__(self, count: int, ends: Sequence[tuple[int, int, int]]) -> None:
        self._count = count
        self._sources, self._tokens = [source for source, _, _ in ends], [tokens for _, _, tokens in ends]
        self._ahead = [(place, source, target) for place, (source, target, tokens) in enumerate(ends) if not tokens]
        self._behind = [
            (place, source, target, tokens) for place, (source, target, tokens) in enumerate(ends) if tokens
        ]

    def largest(self, seconds: Sequence[float], at_least: float = 0.0) -> tuple[float, Circle]:
        """The largest ratio and a circle that has it, where arcs take these seconds, not negative; `at_least` and no
        circle if none has a larger ratio."""
        ratio, best = at_least, Circle()
        slack = _SLACK * sum(seconds)
        while True:
            circle = self._longer(seconds, ratio, slack)
            if not circle:
                return ratio, best
            ratio, best = self._ratio(circle, seconds), circle

    def longer(self, seconds: Sequence[float], ratio: float) -> Circle:
        """A circle of a larger ratio, where arcs take these seconds; none if there is none."""
        return self._longer(seconds, ratio, _SLACK * sum(seconds))

    def _longer(self, each: Sequence[float], ratio: float, slack: float) -> Circle:
        """Of the circles longer than `ratio` a token that longest paths run into, the one of the largest ratio; none if
        paths end. (Bellman & Ford, with all arcs without tokens in one sweep.)"""
        start, via = [0.0] * self._count, [-1] * self._count
        ahead, behind = self._ahead, self._behind
        seconds_ahead, seconds_behind = each[: len(ahead)], each[len(ahead) :]
        for _ in range(len(behind) + 2):
            for (place, source, target), seconds in zip(ahead, seconds_ahead, strict=True):
                later = start[source] + seconds
                if later > start[target] + slack:
                    start[target], via[target] = later, place
            moved = False
            for (place, source, target, tokens), seconds in zip(behind, seconds_behind, strict=True):
                later = start[source] + seconds - ratio * tokens
                if later > start[target] + slack:
                    start[target], via[target], moved = later, place, True
            if not moved:
                return ()
            circle = self._best_circle(via, each)
            if circle and self._ratio(circle, each) > ratio:
                return circle
        return ()

    def _ratio(self, circle: Sequence[int], seconds: Sequence[float]) -> float:
        tokens = self._tokens
        return sum([seconds[place] for place in circle]) / sum([tokens[place] for place in circle])

    def _best_circle(self, via: Sequence[int], seconds: Sequence[float]) -> Circle:
        """The circle of the largest ratio among those in which each node was last reached by an arc of `via`."""
        sources, seen = self._sources, [0] * len(via)
        best, most = Circle(), -1.0
        for first in range(len(via)):
            node = first
            while via[node] >= 0 and seen[node] == 0:
                seen[node] = first + 1
                node = sources[via[node]]
            if via[node] < 0 or seen[node] != first + 1:
                continue
            circle, at = [via[node]], sources[via[node]]
            while at != node:
                circle.append(via[at])
                at = sources[via[at]]
            ratio = self._ratio(circle, seconds)
            if ratio > most:
                best, most = tuple(reversed(circle)), ratio
        return best
