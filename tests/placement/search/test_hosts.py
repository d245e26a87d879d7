"""What a leaf says of hosts early is what their ledger says of whole choices, and never more than that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from msgspec.structs import replace

from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCost, RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.devices import allocate
from flowrl.placement.search.hosts import HostRoom
from flowrl.placement.search.stays import RoleStays, Stay
from flowrl.placement.search.ways import Ways
from flowrl.plan.plan import Pool
from tests.placement.plans import case

EACH = 4
"""Stays of a role, evenly among all."""
GIGABYTES = (20, 40, 80, 120, 160, 2000)


class Leaf:
    """All roles but the last in one pool, and that in another, on a node with so much memory."""

    def __init__(self, flow: str, gigabytes: int) -> None:
        here = case(flow, "4xH100-80G")
        group = replace(here.cluster.groups[0], host_memory_bytes=gigabytes * 10**9)
        cluster = replace(here.cluster, groups=(group,))
        self.costs = RoleCosts(Workload(here.graph, here.shapes, here.request), cluster)
        self.roles = Ways(here.graph, cluster, here.request).roles
        devices = allocate(cluster, [(group.name, 2), (group.name, 2)])
        first, second = (
            Pool(name=name, devices=taken, device=group.device.name, roles=())
            for name, taken in zip(("first", "second"), devices, strict=True)
        )
        self.pools, self.pool_of = (first, second), dict.fromkeys(self.roles[:-1], first) | {self.roles[-1]: second}
        stays = RoleStays(self.costs, Choices(self.costs), {})
        every = {role: stays.of(role, self.costs.site(pool), (), alone=False) for role, pool in self.pool_of.items()}
        self.stays = {role: found[:: max(1, len(found) // EACH)][:EACH] for role, found in every.items()}

    def room(self) -> HostRoom:
        any_choice = {role: found[0] for role, found in self.stays.items()}
        return HostRoom(
            self.costs.hosts(self._placed(any_choice)), {r: p.name for r, p in self.pool_of.items()}, self.stays
        )

    def is_over(self, choice: Mapping[str, Stay]) -> bool:
        return any(each.peak_bytes > each.limit_bytes for each in self.costs.host_needs(self._placed(choice)))

    def choices(self) -> Sequence[dict[str, Stay]]:
        return [dict(zip(self.roles, way, strict=True)) for way in product(*(self.stays[role] for role in self.roles))]

    def _placed(self, choice: Mapping[str, Stay]) -> list[tuple[Pool, list[RoleCost]]]:
        return [(pool, [choice[role].cost for role in self.roles if self.pool_of[role] is pool]) for pool in self.pools]


@pytest.mark.parametrize("flow", ["ppo of Megatron", "grpo with a reward model"])
def test_whole_choices_are_judged_as_their_ledger_is_and_open_ones_no_harder(flow: str) -> None:
    verdicts: set[tuple[bool, bool]] = set()
    for gigabytes in GIGABYTES:
        leaf = Leaf(flow, gigabytes)
        room, choices = leaf.room(), leaf.choices()
        over = {tuple(map(id, choice.values())): leaf.is_over(choice) for choice in choices}
        for choice in choices:
            for role, stay in choice.items():
                room.put(role, stay)
            assert room.is_over() == over[tuple(map(id, choice.values()))]
        for kept in range(len(leaf.roles)):
            for role in leaf.roles:
                room.take(role)
            begun = dict(list(choices[-1].items())[:kept])
            for role, stay in begun.items():
                room.put(role, stay)
            likewise = [choice for choice in choices if all(choice[role] is stay for role, stay in begun.items())]
            fitting = any(not over[tuple(map(id, choice.values()))] for choice in likewise)
            assert not (room.is_over() and fitting)
            verdicts.add((room.is_over(), fitting))
    assert {(True, False), (False, True)} <= verdicts, "hosts that are too small and hosts that are not"
