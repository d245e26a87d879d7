"""The placement that is nearest to fitting, where none fits: every role squeezed as far as it goes.

Takes Pitches; gives pools. Each role takes the choice that holds least on a device; with several rounds, then in turn
the one with which the fullest device of its pool is over its limit by the least, until nothing changes, and then the
fastest of those that leave that device as full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flowrl.placement.cost.bound import busy_seconds
from flowrl.placement.cost.role import Site
from flowrl.placement.search.candidate import Pitch
from flowrl.placement.search.stays import RoleStays
from flowrl.plan.plan import Layout, Pool, RolePlacement

MOST_ROUNDS = 3
"""Where nothing fits; of a way that is only told of, none."""


def squeezed(stays: RoleStays, pitches: Sequence[Pitch], rounds: int = 0) -> tuple[tuple[Pool, ...], bool] | None:
    """Pools with choices, and whether some rank has no row; None if some role has no legal layout there."""
    pools: list[Pool] = []
    for pitch in pitches:
        entries = _entries(stays, pitch, rounds)
        if entries is None:
            return None
        device = pitch.group.device.name
        pools.append(Pool(name=pitch.name, devices=pitch.devices, device=device, roles=tuple(entries)))
    return tuple(pools), any(stays.starves(entry) for pool in pools for entry in pool.roles)


def _entries(stays: RoleStays, pitch: Pitch, rounds: int) -> list[RolePlacement] | None:
    if rounds == 0:
        least = [_least(stays, role, pitch) for role in pitch.roles]
        return None if None in least else [entry for entry in least if entry is not None]
    menus = [_menu(stays, role, pitch) for role in pitch.roles]
    if not all(menus):
        return None
    chosen = [min(menu, key=lambda entry: _peak(stays, entry, pitch.site)) for menu in menus]
    for _ in range(rounds):
        before = list(chosen)
        for place, menu in enumerate(menus):
            tries = [[*chosen[:place], entry, *chosen[place + 1 :]] for entry in menu]
            chosen = min(tries, key=lambda entries: over(stays, entries, pitch.site))
        if chosen == before:
            break
    return _hastened(stays, chosen, menus, pitch.site)


def _least(stays: RoleStays, role: str, pitch: Pitch) -> RolePlacement | None:
    """The choice that holds least on a device, of those that give every rank a row if there are any."""
    near = _menu(stays, role, pitch, lambda _: False)
    if all(stays.starves(entry) for entry in near):
        near = _menu(stays, role, pitch)
        return min(near, key=lambda entry: _peak(stays, entry, pitch.site), default=None)
    most = min(_peak(stays, entry, pitch.site) for entry in near)[0]
    # Weights and states of the other layouts alone are mostly more than that.
    every = _menu(stays, role, pitch, lambda layout: stays.choices.least_bytes(role, layout) <= most)
    return min(every, key=lambda entry: _peak(stays, entry, pitch.site))


def _hastened(
    stays: RoleStays, chosen: list[RolePlacement], menus: Sequence[Sequence[RolePlacement]], site: Site
) -> list[RolePlacement]:
    """The fastest choice of each role in turn that makes no device fuller than the fullest is."""
    most = over(stays, chosen, site)
    for place, menu in enumerate(menus):
        tries = ([*chosen[:place], entry, *chosen[place + 1 :]] for entry in menu)
        near = [entries for entries in tries if over(stays, entries, site) <= most]
        chosen = min(near, key=lambda entries: _seconds(stays, entries[place], site))
    return chosen


def _seconds(stays: RoleStays, entry: RolePlacement, site: Site) -> float:
    """Of a role's own work in a step, and of a visit where it leaves its devices."""
    cost = stays.costs.role_cost(entry, site)
    return busy_seconds(stays.costs, cost) + (2 * cost.move_seconds if entry.offloaded else 0.0)


def _menu(
    stays: RoleStays, role: str, pitch: Pitch, is_near: Callable[[Layout], bool] = lambda _: True
) -> list[RolePlacement]:
    """Choices that give every rank a row, if there are any. `is_near`: which layouts that do not fit are among them."""
    alone, menu = len(pitch.roles) == 1, stays.choices.menu(role, pitch.site)
    every = stays.every(role, pitch.site, alone=alone)
    if not menu.fits and role not in stays.layouts:
        here = stays.costs.graph.role(role)
        ways = (way for cut in menu.over if is_near(cut) for way in stays.choices.ways(here, cut, pitch.site))
        every = (*every, *(way for way in ways if not (alone and way.offloaded)))
    return [entry for entry in every if not stays.starves(entry)] or list(every)


def _peak(stays: RoleStays, entry: RolePlacement, site: Site) -> tuple[int, int]:
    cost = stays.costs.role_cost(entry, site)
    return cost.own_peak + max(cost.remains), max(cost.remains)


def over(stays: RoleStays, entries: Sequence[RolePlacement], site: Site) -> float:
    """What the fullest device needs over what it has."""
    return stays.costs.fullest(stays.costs.pool_costs(entries, site), site)
