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
        self._firsts: dict[tuple[frozenset[str], str, tuple[int, ...]], int] = {}
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

    def first(self, roles: Sequence[str], group: str, sizes: tuple[int, ...]) -> int:
        """The place of the smallest size on which roles may share a pool; the number of sizes if there is none."""
        key = (frozenset(roles), group, sizes)
        found = self._firsts.get(key)
        if found is None:
            low = max((self.of(role, group, sizes).first for role in roles), default=0)
            found = self._firsts[key] = next(
                (at for at in range(low, len(sizes)) if self._may_share(roles, group, sizes[at])), len(sizes)
            )
        return found

    def _may_share(self, roles: Sequence[str], group: str, size: int) -> bool:
        shapes = self._places.likely(group, size)
        return not roles or any(self._stays.may_share(roles, self._places.site(shape)) for shape in shapes)

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
