"""Least seconds of roles on pools of at most so many devices: what bounds of a search are made of.

Takes the stays of roles; gives for each size that is tried the least of it and of all smaller ones, so no figure rises
with the size. Worked out when it is first asked for. Knows no pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowrl.placement.search.sizes import Places
from flowrl.placement.search.stays import RoleStays

Least = tuple[float, ...]
"""Seconds of a firing of each op of a role."""


@dataclass(frozen=True, slots=True)
class Floor:
    """One role on the sizes of one group."""

    first: int
    """The place of the smallest size that it may have; the number of sizes if there is none."""
    least: tuple[Least, ...]
    """By place of the size, from `first` on: over it and all smaller ones."""
    device_seconds: float
    """The least of its devices times the seconds of its ops in a step, over all sizes."""
    whole: float
    """Seconds of its ops in a step on the largest size, at least."""

    def at(self, place: int) -> Least:
        return self.least[place - self.first]


class Floors:
    """Of all roles. Made once for a search."""

    def __init__(self, stays: RoleStays, places: Places) -> None:
        self._stays, self._places = stays, places
        self._known: dict[tuple[str, str, tuple[int, ...]], Floor] = {}
        self._shares = {
            role.name: [op.firings / max(1, op.every_steps) for op in stays.costs.ops_of(role.name)]
            for role in stays.costs.graph.roles
        }

    def of(self, role: str, group: str, sizes: tuple[int, ...]) -> Floor:
        key = (role, group, sizes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(role, group, sizes)
        return found

    def _made(self, role: str, group: str, sizes: Sequence[int]) -> Floor:
        least: list[Least] = []
        first, spent = len(sizes), float("inf")
        for place, size in enumerate(sizes):
            mine = self._least(role, group, size)
            if mine is None and not least:
                continue
            if mine is not None:
                first = min(first, place)
                spent = min(spent, size * self.in_step(role, mine))
            before = least[-1] if least else mine
            least.append(before if mine is None else tuple(map(min, before, mine)))  # type: ignore[arg-type]
        return Floor(first, tuple(least), spent, self.in_step(role, least[-1]) if least else float("inf"))

    def _least(self, role: str, group: str, size: int) -> Least | None:
        found: Least | None = None
        for shape in self._places.likely(group, size):
            mine = self._stays.quickest(role, self._places.site(shape))
            if mine is not None:
                found = mine if found is None else tuple(map(min, found, mine))
        return found

    def in_step(self, role: str, least: Least) -> float:
        """Of all firings of a step."""
        return sum(each * share for each, share in zip(least, self._shares[role], strict=True))
