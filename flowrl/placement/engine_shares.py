"""Shares of a device that an engine may take below the usual one, where the flow leaves it open.

A share counts only beside roles that stay: alone an engine takes the usual one. The menu has two, so that what fits is
found; then the pools that were chosen are worked out with more of them, and `grown` gives each engine the largest with
which its pool fits (docs/adr/0101). Takes what a role costs; gives shares. Knows no search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from msgspec.structs import replace

from flowrl.graph.graph import Role
from flowrl.machine.engines import KV_FRACTION
from flowrl.machine.traits import ENGINES
from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.plan.plan import RolePlacement

PARTS = (0.3, 0.05)
"""Of what the usual share has over the least: the menu."""
FINE_PARTS = tuple(part / 20 for part in range(19, 0, -1))
"""The same on pools that were chosen."""
STEPS = 100
"""Shares are told in hundredths."""


def is_open(role: Role) -> bool:
    """Whether the flow leaves it open what of a device the role takes."""
    return role.backend in ENGINES and role.engine.kv_fraction is None


def smaller_shares(role: Role, usual: RoleCost, parts: Sequence[float]) -> Iterator[float]:
    """Shares below the usual one with which the engine starts, the largest first: at these `parts` of what the usual
    one has over the least. `usual`: what it costs with that."""
    if usual.starting is None or not is_open(role):
        return
    needed, limit = usual.starting
    most, least = round(STEPS * KV_FRACTION), ceil(STEPS * KV_FRACTION * needed / limit)
    shares = dict.fromkeys(least + round((most - least) * part) for part in parts)
    yield from (share / STEPS for share in shares if share < most)


def grown(costs: RoleCosts, entries: Sequence[RolePlacement], site: Site) -> tuple[RolePlacement, ...]:
    """The roles of a pool that fits, each engine in turn with the largest share, in hundredths, with which all fit."""
    found = list(entries)
    for place, entry in enumerate(entries):
        if entry.memory_share is not None:
            found[place] = _largest(costs, found, place, site)
    return tuple(found)


def _largest(costs: RoleCosts, entries: Sequence[RolePlacement], place: int, site: Site) -> RolePlacement:
    def fits(entry: RolePlacement) -> bool:
        beside = [*entries[:place], entry, *entries[place + 1 :]]
        return costs.fits(costs.pool_costs(beside, site), site)

    here = entries[place]
    usual = replace(here, memory_share=None)
    if fits(usual):
        return usual
    low, high = round(STEPS * (here.memory_share or 0.0)), round(STEPS * KV_FRACTION)
    while high - low > 1:  # What an engine holds rises with its share.
        middle = (low + high) // 2
        low, high = (middle, high) if fits(replace(here, memory_share=middle / STEPS)) else (low, middle)
    return replace(here, memory_share=low / STEPS)
