"""What one role costs in one layout on devices of one kind, as numbers: what a search compares candidates by.

Takes a workload and a cluster; gives RoleCosts, made from the same ledger lines as a plan and kept by value for as long
as a search lasts. A pool's phases in bytes are put together from them as those of its ledger are (memory/phases.py).
Knows no candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from flowrl.graph.graph import Edge, Op
from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.ledger import bytes_of, evaluate, numbers_only
from flowrl.placement.cost.making import Maker
from flowrl.placement.cost.placed import group_of, is_shared
from flowrl.placement.cost.role_cost import RoleCost, Seconds, total
from flowrl.placement.cost.site import Key, Site, site_of_block, site_of_pool
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.host import Standing, host_memory, standing
from flowrl.placement.memory.phases import phases, stage_groups
from flowrl.placement.memory.pool import devices_text, overhead_lines
from flowrl.placement.sync.edge import sync_of
from flowrl.placement.time.ops import OpTime
from flowrl.plan.plan import Memory, Pool, RolePlacement

__all__ = ["Key", "Phase", "RoleCost", "RoleCosts", "Seconds", "Site"]

Phase = tuple[int, int, str, int, int]
"""First and end of the devices that do the same, name, bytes and limit."""


class RoleCosts:
    """Costs of the roles of one graph on one cluster. Made once for a search; all that is kept is in it."""

    def __init__(self, work: Workload, cluster: Cluster) -> None:
        self.work, self.cluster, self.graph = work, cluster, work.graph
        self._times = OpTime(work, (), cluster)
        self._costs: dict[Key, RoleCost] = {}
        self._sites: dict[Key, Site] = {}
        self._short: dict[Key, Memory | None] = {}
        self._always: dict[Key, int] = {}
        self._hand_overs: dict[Key, tuple[float, float]] = {}
        self._host: dict[str, float] = {}
        self._together: dict[tuple[str, int, float], float] = {}
        self._groups = {group.name: group for group in cluster.groups}
        self._ops: dict[str, list[Op]] = {role.name: [] for role in self.graph.roles}
        for op in self.graph.ops:
            self._ops[op.role].append(op)
        # A role that lends weights holds some, and a graph has far more roles that hold none.
        holders = [role for role in self.graph.roles if role.model is not None]
        lenders = {r.name: {each.name for each in holders if is_shared(self.graph, r, {each.name})} for r in holders}
        self._lenders = {role.name: lenders.get(role.name, set()) for role in self.graph.roles}
        self._shares = {role.name: role.shares for role in self.graph.roles}
        self._maker = Maker(work, cluster, self._ops)

    def lenders(self, role: str) -> set[str]:
        """Roles whose weights it works with where they are resident beside it."""
        return self._lenders[role]

    def partners(self, role: str) -> set[str]:
        """Roles that its bytes depend on where they share its pool."""
        shares = self._shares[role]
        return self._lenders[role] | ({shares} if shares is not None else set())

    def ops_of(self, role: str) -> Sequence[Op]:
        return self._ops[role]

    def site(self, pool: Pool, pools: Sequence[Pool] = ()) -> Site:
        """The devices of `pool`, whatever its roles; `pools` are all of the plan."""
        group = group_of(pool, self.cluster)
        known: Key = (pool.name, pool.devices)
        if group.device.is_cpu:
            known = (pool.name, tuple(pools) or (pool,))
        found = self._sites.get(known)
        if found is None:
            found = self._sites[known] = site_of_pool(pool, tuple(pools) or (pool,), group, self.cluster)
        return found

    def site_of(self, group: str, count: int, first: int = 0) -> Site:
        """`count` neighbouring devices of a group, node after node, from the device number `first` on: with 0, what a
        pool gets that is the first to be allocated. Its devices have names only when its `pool` is asked for, so it
        costs as much for ten thousand as for ten. Raises KeyError for a group that the cluster does not have."""
        known: Key = (group, count, first)
        found = self._sites.get(known)
        if found is None:
            found = self._sites[known] = site_of_block(self.cluster, self._groups[group], count, first)
        return found

    def role_cost(self, entry: RolePlacement, site: Site, beside: Sequence[RolePlacement] = ()) -> RoleCost:
        """What the role costs as `entry` says on `site`. Of the roles `beside` it in the pool only those matter whose
        weights it shares."""
        lenders, shares = self._lenders[entry.role], self._shares[entry.role]
        shared = bool(lenders) and any(each.role in lenders and not each.offloaded for each in beside)
        joined = shares is not None and any(each.role == shares for each in beside)
        layout = entry.layout
        cut = (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep)
        own = (entry.role, cut, shared, joined, entry.memory_share, site.key)
        key = (own, entry.offloaded, entry.recompute, entry.micro_batch_tokens)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = self._made(key, own, entry, site, beside)
        return found

    def pool_costs(self, entries: Sequence[RolePlacement], site: Site) -> tuple[RoleCost, ...]:
        """Of all roles of a pool."""
        return tuple(self.role_cost(entry, site, entries) for entry in entries)

    def always(self, costs: Sequence[RoleCost], site: Site) -> int:
        """Bytes that every phase of a pool with these roles has: processes and reserve."""
        return self.always_of(sum([cost.counted for cost in costs]), site)

    def always_of(self, counted: int, site: Site) -> int:
        """The same with so many roles that are `counted`."""
        key = (counted, site.key)
        found = self._always.get(key)
        if found is None:
            profile = self.work.request.profile
            lines = overhead_lines(profile, site.pool, counted, site.limit_bytes, is_cpu=site.group.device.is_cpu)
            found = self._always[key] = bytes_of(lines)
        return found

    def pool_phases(self, costs: Sequence[RoleCost], site: Site, *, unlike: bool = False) -> Iterator[Phase]:
        """`pool_memory` without its lines. `unlike`: of devices that hold the same, those of the first alone."""
        always, seen = self.always(costs, site), set[tuple[int, ...]]()
        for first, end, stages in stage_groups(tuple([cost.pp for cost in costs]), site.count):
            if unlike:
                # Stages that hold the same at work are made with one value.
                kind = tuple([id(cost.work[stage]) for cost, stage in zip(costs, stages, strict=True)])
                if kind in seen:
                    continue
                seen.add(kind)
            by_role = {cost.name: stage for cost, stage in zip(costs, stages, strict=True)}
            for phase, held, limit in phases(self.graph, costs, by_role, always, 0):
                yield first, end, phase, held, site.limit_bytes if limit is None else limit

    def fullest(self, costs: Sequence[RoleCost], site: Site) -> float:
        """What the fullest device of a pool needs in its worst phase, over what it has."""
        if len(costs) == 1:
            return self._fullest_alone(costs[0], site)
        return max(
            (held / max(1, limit) for *_, held, limit in self.pool_phases(costs, site, unlike=True)), default=0.0
        )

    def _fullest_alone(self, cost: RoleCost, site: Site) -> float:
        found = (cost.alone + self.always((cost,), site)) / max(1, site.limit_bytes)
        return found if cost.starting is None else max(found, cost.starting[0] / max(1, cost.starting[1]))

    def host_needs(self, pools: Sequence[tuple[Pool, Sequence[RoleCost]]]) -> tuple[Memory, ...]:
        """What `host_memory` gives of device pools with these roles, without its lines."""
        with numbers_only():
            everyone = [(pool, tuple([cost.on(pool) for cost in costs])) for pool, costs in pools]
            found = host_memory(everyone, self.cluster, self.work)
        return tuple([msgspec.structs.replace(each, lines=()) for each in found])

    def hosts(self, pools: Sequence[tuple[Pool, Sequence[RoleCost]]]) -> tuple[Standing, ...]:
        """What stands on the hosts of device pools whatever choices their roles have: those given are any."""
        with numbers_only():
            everyone = [(pool, tuple([cost.on(pool) for cost in costs])) for pool, costs in pools]
            return standing(everyone, self.cluster, self.work)

    def pool_needs(self, costs: Sequence[RoleCost], site: Site) -> tuple[Memory, ...]:
        """The same as Memory values without lines."""
        return tuple(_need(site, each) for each in self.pool_phases(costs, site))

    def short(self, costs: Sequence[RoleCost], site: Site) -> Memory | None:
        """The first phase that does not fit on the devices of a pool; None if all do. The host's memory is not looked
        at."""
        key = (*(cost.key for cost in costs), site)
        if key not in self._short:
            first = next((each for each in self.pool_phases(costs, site, unlike=True) if each[3] > each[4]), None)
            self._short[key] = None if first is None else _need(site, first)
        return self._short[key]

    def fits(self, costs: Sequence[RoleCost], site: Site) -> bool:
        """Whether every phase of a pool fits on its devices."""
        if len(costs) == 1:
            start = costs[0].starting
            alone = costs[0].alone + self.always(costs, site)
            return alone <= site.limit_bytes and (start is None or start[0] <= start[1])
        return self.short(costs, site) is None

    def hand_over(
        self, edge: Edge, source: tuple[RoleCost, Site], target: tuple[RoleCost, Site]
    ) -> tuple[float, float]:
        """Seconds of a weights edge at the sender's end and at the receiver's."""
        (giver, here), (taker, there) = source, target
        key = (edge.id, giver.key, here, taker.key, there)
        found = self._hand_overs.get(key)
        if found is None:
            sync = sync_of(giver.on(here.pool), taker.on(there.pool), edge.transport)
            found = self._hand_overs[key] = (total(sync.send), total(sync.receive))
        return found

    def host_seconds(self, op: Op) -> float:
        """One firing of an op of the host pool."""
        found = self._host.get(op.id)
        if found is None:
            with numbers_only():
                found = self._host[op.id] = total(self._times.host(op))
        return found

    def together(self, op: Op, talking: int, spoken: float) -> float:
        """One firing of a member of an interaction whose `talking` generators take `spoken` seconds."""
        return spoken + total(self._times.turns(op, talking, spoken))

    def together_at_least(self, op: Op, talking: int, spoken: float) -> float:
        """The least of `together` for any time from `spoken` up. What environments hide shrinks as fast as generation
        grows, of several twice as fast: convex, so the least is where it starts or where an environment is hidden."""
        key = (op.id, talking, spoken)
        found = self._together.get(key)
        if found is None:
            found = self._together[key] = self._together_at_least(op, talking, spoken)
        return found

    def _together_at_least(self, op: Op, talking: int, spoken: float) -> float:
        hidden = (evaluate("(ceil(N/k) - 1)*t*s", each.inputs) for each in self._times.turns(op, talking, spoken))
        return min(self.together(op, talking, max(each, spoken)) for each in (spoken, *hidden))

    def _made(self, key: Key, own: Key, entry: RolePlacement, site: Site, beside: Sequence[RolePlacement]) -> RoleCost:
        if not entry.offloaded:
            return self._maker.stays(key, own, entry, site, beside)
        stays = self.role_cost(msgspec.structs.replace(entry, offloaded=False), site, beside)
        return self._maker.leaves(key, own, entry, site, beside, stays)


def _need(site: Site, phase: Phase) -> Memory:
    first, end, name, held, limit = phase
    devices = devices_text(site.pool.devices, first, end)
    return Memory(pool=site.pool.name, device=devices, phase=name, peak_bytes=held, limit_bytes=limit, lines=())
