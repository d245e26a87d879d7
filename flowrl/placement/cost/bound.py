"""Lower bounds for a search: the least that a role, a pool or a step can cost, whatever is still to be decided.

A bound is admissible: no choice of layout, offloading, recomputation or micro-batch costs less. It is the minimum over
the choices, each quantity on its own, of costs that the ledger gives (cost/role.py), so it is as tight as numbers that
do not know of one another can be. Takes RoleCosts and the choices of a role (choices.py); gives bytes and seconds.
Searches nothing.

Why a step cannot be shorter than `step_bound`: step_seconds rises with the seconds of every op, with every role that
joins a pool and with every hand-over, so leaving roles out of pools, taking their least seconds and handing nothing
over gives no more than any completion. And pools are disjoint, so if all of them were busy for the whole step, the
device-seconds of all roles would be spread over the devices of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.placement.time.step import Home, steady_seconds
from flowrl.plan.plan import RolePlacement

Choice = Callable[[str, Site], Iterable[RolePlacement]]
"""All that a role may be on a site."""


@dataclass(frozen=True, slots=True)
class Least:
    """The least that one role costs. Of several sites (`least_of`): of any of them."""

    devices: int
    """Of the largest site."""
    peak_bytes: int
    """In its own worst phase, on the fullest of its devices."""
    left_bytes: int
    """What it leaves on a device while others work."""
    starts: bool
    """Whether some choice leaves an engine room to start."""
    seconds: Mapping[str, float]
    """By op, of one firing."""
    step_seconds: float
    """Of all its ops in one step."""
    device_seconds: float
    """The same times the devices of its pool."""


class Bounds:
    """Bounds of the roles of one search, kept as its costs are."""

    def __init__(self, costs: RoleCosts, choices: Choice) -> None:
        self.costs, self.choices = costs, choices
        self._least: dict[tuple[object, ...], Least] = {}

    def least(self, role: str, site: Site) -> Least:
        """Over every choice on `site`."""
        key = (role, site.key)
        found = self._least.get(key)
        if found is None:
            found = self._least[key] = self._least_of([*self._choices(role, site)], site)
        return found

    def falling(self, role: str, sites: Sequence[Site]) -> tuple[Least, ...]:
        """For each of `sites`, which come in rising order of devices: over it and all before it. So no number of it
        rises with devices: what a role costs on at most so many."""
        found: list[Least] = []
        for site in sites:
            each = self.least(role, site)
            found.append(either(found[-1], each) if found else each)
        return tuple(found)

    def pool_bytes(self, roles: Sequence[str], site: Site) -> int:
        """No device of a pool with these roles has a lower peak. Each role is at work in some phase, beside what the
        others leave."""
        least = [self.least(role, site) for role in roles]
        left = sum(each.left_bytes for each in least)
        always = self.costs.always([next(self._choices(role, site)) for role in roles], site)
        return always + max((each.peak_bytes - each.left_bytes + left for each in least), default=0)

    def may_fit(self, roles: Sequence[str], site: Site) -> bool:
        """Whether the bound leaves it open that a pool with these roles fits."""
        return self.pool_bytes(roles, site) <= site.limit_bytes and all(self.least(r, site).starts for r in roles)

    def _choices(self, role: str, site: Site) -> Iterator[RoleCost]:
        """Every choice, with weights of its own or of a neighbour that may lend them."""
        lenders = sorted(self.costs.lenders(role))
        for entry in self.choices(role, site):
            yield self.costs.role_cost(entry, site)
            for lender in lenders:
                beside = RolePlacement(role=lender, layout=entry.layout)
                yield self.costs.role_cost(entry, site, (beside,))

    def _least_of(self, choices: Sequence[RoleCost], site: Site) -> Least:
        ops = self.costs.ops_of(choices[0].name)
        seconds = {op.id: min(each.seconds[op.id] for each in choices) for op in ops}
        whole = min(busy_seconds(self.costs, each) for each in choices)
        return Least(
            devices=site.count,
            peak_bytes=min(each.own_peak for each in choices),
            left_bytes=min(min(each.remains) for each in choices),
            starts=any(each.starting is None or each.starting[0] <= each.starting[1] for each in choices),
            seconds=seconds,
            step_seconds=whole,
            device_seconds=whole * site.count,
        )


def busy_seconds(costs: RoleCosts, cost: RoleCost) -> float:
    """Of a role's own ops in one plain step, without what it waits for and without its moves."""
    return sum(cost.seconds[op.id] * op.firings for op in costs.ops_of(cost.name) if op.every_steps == 1)


def either(one: Least, other: Least) -> Least:
    """The least of a choice between two."""
    return replace(
        one,
        devices=max(one.devices, other.devices),
        peak_bytes=min(one.peak_bytes, other.peak_bytes),
        left_bytes=min(one.left_bytes, other.left_bytes),
        starts=one.starts or other.starts,
        seconds={op: min(each, other.seconds[op]) for op, each in one.seconds.items()},
        step_seconds=min(one.step_seconds, other.step_seconds),
        device_seconds=min(one.device_seconds, other.device_seconds),
    )


def step_bound(costs: RoleCosts, placed: Mapping[str, Home], free: Mapping[str, Least]) -> float:
    """No placement of the roles that are `free`, each on one of the sites of its Least, beside those that are `placed`
    makes a step shorter than this. All roles on devices are in one of the two. A role that may yet share weights with a
    free one may have nothing to move."""
    placed = {
        name: home
        if free.keys().isdisjoint(costs.partners(name))
        else Home(msgspec.structs.replace(home.cost, move_seconds=0.0), home.site)
        for name, home in placed.items()
    }
    bound = steady_seconds(costs, placed, {role: least.seconds for role, least in free.items()})
    spent = sum(busy_seconds(costs, home.cost) * home.site.count for home in placed.values())
    spent += sum(least.device_seconds for least in free.values())
    return max(bound, spent / costs.cluster.device_count)
