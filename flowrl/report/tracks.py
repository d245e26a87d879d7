"""The lines between two columns of a drawing: each net has an upright track of its own, so that nothing is joined that
does not belong together. Knows nothing of what the columns hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
GLYPHS: Mapping[int, str] = {
    LEFT | RIGHT: "─",
    LEFT | RIGHT | DOWN: "┬",
    LEFT | RIGHT | UP: "┴",
    LEFT | RIGHT | UP | DOWN: "┼",
    LEFT | DOWN: "┐",
    LEFT | UP: "┘",
    LEFT | UP | DOWN: "┤",
    RIGHT | DOWN: "┌",
    RIGHT | UP: "└",
    RIGHT | UP | DOWN: "├",
    UP | DOWN: "│",
}
_MOST_TRIED = 5
"""So many tracks are tried in every order; more in the order of their lines."""


@dataclass(frozen=True, slots=True)
class Net:
    """Lines (numbered from the top) on which it comes from the left, and on which it leaves to the right. No two nets
    share a line on one side."""

    lefts: tuple[int, ...]
    rights: tuple[int, ...]

    @property
    def top(self) -> int:
        return min(self.lefts + self.rights)

    @property
    def bottom(self) -> int:
        return max(self.lefts + self.rights)

    @property
    def is_straight(self) -> bool:
        return self.top == self.bottom


@dataclass(frozen=True, slots=True)
class Routed:
    width: int
    lines: Mapping[int, str]
    """Text of `width` for each line that anything runs on."""


def route(nets: Sequence[Net]) -> Routed | None:
    """The nets as lines with the fewest crossings; None where two would have to run over each other."""
    upright = [net for net in nets if not net.is_straight]
    orders = permutations(upright) if len(upright) <= _MOST_TRIED else [tuple(upright)]
    placed = [tracks for order in orders if (tracks := _tracks(order)) is not None]
    if not placed:
        return None
    best = min(placed, key=lambda tracks: (_crossings(nets, tracks), max(tracks.values(), default=0)))
    return _drawn(nets, best)


def _tracks(order: Sequence[Net]) -> dict[Net, int] | None:
    """A column for each net, the leftmost that is free; None if this order breaks a rule.

    Where one net comes in on the line on which another leaves, its track must be left of the other's.
    """
    tracks: dict[Net, int] = {}
    for net in order:
        if any(set(net.lefts) & set(other.rights) for other in tracks):
            return None
        column = 0
        for other, taken in tracks.items():
            if set(other.lefts) & set(net.rights):
                column = max(column, taken + 1)
        while any(taken == column and _overlap(net, other) for other, taken in tracks.items()):
            column += 1
        tracks[net] = column
    return tracks


def _overlap(one: Net, other: Net) -> bool:
    return one.top <= other.bottom and other.top <= one.bottom


def _crossings(nets: Sequence[Net], tracks: Mapping[Net, int]) -> int:
    width = max(tracks.values(), default=0) + 1
    return sum(
        other.top < line < other.bottom
        for net in nets
        for line, columns in _runs(net, tracks.get(net), width)
        for other, taken in tracks.items()
        if other is not net and taken in columns
    )


def _runs(net: Net, column: int | None, width: int) -> list[tuple[int, range]]:
    """The level parts of a net: its line and the columns it runs through."""
    if column is None:
        return [(net.top, range(width))]
    return [*((line, range(column)) for line in net.lefts), *((line, range(column + 1, width)) for line in net.rights)]


def _drawn(nets: Sequence[Net], tracks: Mapping[Net, int]) -> Routed:
    width = max(tracks.values(), default=0) + 1
    rows: dict[int, list[str]] = {line: [" "] * width for net in nets for line in range(net.top, net.bottom + 1)}
    for net in nets:
        for line, columns in _runs(net, tracks.get(net), width):
            for column in columns:
                rows[line][column] = "─"
    for net, column in tracks.items():
        for line in range(net.top, net.bottom + 1):
            bits = UP * (line > net.top) | DOWN * (line < net.bottom)
            bits |= LEFT * (line in net.lefts) | RIGHT * (line in net.rights)
            rows[line][column] = GLYPHS[bits]
    return Routed(width, {line: "".join(row) for line, row in rows.items()})
