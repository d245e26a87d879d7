"""Roles of a leaf whose turn comes: in which order, and what is known of each before anything is chosen.

Takes Pitches; gives Opens. Knows no choices but the stays of each role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowrl.placement.search.candidate import Pitch
from flowrl.placement.search.clock import STAYS, Clock
from flowrl.placement.search.stays import RoleStays, Stay
from flowrl.placement.time.fast_step import NO_SECONDS, Pair

Least = tuple[tuple[float, ...], int, Pair]
"""Seconds of the ops of a role, what it does while others work, and the seconds of that, at least."""
Given = tuple[tuple[float, ...], int, int, Pair, tuple[Stay, ...]]
"""`quick`, `left`, `away`, `move` and `stays` of an open role."""


@dataclass(slots=True)
class Open:
    """A role whose turn comes, in the order of the search."""

    role: str
    number: int
    pool: int
    alone: bool
    edges: list[int]
    """Weights edges that it is an end of."""
    left: int = 0
    """The least that it leaves on a device."""
    rest: int = 0
    """That of all of its pool whose turn comes later."""
    later: list[Open] = field(default_factory=list["Open"])
    """Those of its pool whose turn comes later and that have stays of their own."""
    quick: tuple[float, ...] = ()
    away: int = STAYS
    """What it does while others work, if that is settled; else as if it stayed."""
    move: Pair = NO_SECONDS
    """The least of it."""
    stays: tuple[Stay, ...] = ()
    """Those that may fit; of a role that shares weights none, as they depend on the others."""
    least: Least | None = None
    """As long as it is open: of the stays for which those that are chosen leave room; None: none."""


def in_turn(pitches: Sequence[Pitch], clock: Clock, stays: RoleStays) -> list[Open]:
    """Pool by pool, so that what does not fit is found among few; in each ends of weights edges, then the longest;
    none before those of its pool whose weights it shares."""
    found: list[Open] = []
    partners: dict[str, set[str]] = {}
    length: dict[str, tuple[bool, float]] = {}
    for pool, pitch in enumerate(pitches):
        for role in pitch.roles:
            edges = [at for at, (_, *ends) in enumerate(clock.edges) if role in ends]
            found.append(Open(role, clock.number[role], pool, len(pitch.roles) == 1, edges))
            partners[role] = stays.costs.partners(role).intersection(pitch.roles)
            quick = stays.quickest(role, pitch.site) or ()
            length[role] = (role not in stays.synced, -sum(quick))
    first = [min(length[role] for role in pitch.roles) for pitch in pitches]
    found.sort(key=lambda each: (first[each.pool], each.pool, length[each.role]))
    return _partners_first(found, partners)


def _partners_first(opens: Sequence[Open], partners: Mapping[str, set[str]]) -> list[Open]:
    left, found = list(opens), list[Open]()
    while left:
        names = {each.role for each in left}
        free = (each for each in left if partners[each.role].isdisjoint(names - {each.role}))
        found.append(next(free, left[0]))
        left.remove(found[-1])
    return found
