"""What one role costs in one layout on devices of one kind, as numbers: what a search compares candidates by.

Takes a workload and a cluster; gives RoleCosts, made from the same ledger lines as a plan and kept by value for as long
as a search lasts. A pool's phases in bytes are put together from them as those of its ledger are (memory/phases.py).
Knows no candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.ledger import bytes_of, evaluate, numbers_only
from flowrl.placement.cost.placed import Placed, group_of, is_shared, layout_origin, placed_role
from flowrl.placement.cost.site import Key, Site, site_of_block, site_of_pool
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.phases import phases, stage_groups
from flowrl.placement.memory.pool import devices_text, overhead_lines
from flowrl.placement.memory.role import RoleMemory
from flowrl.placement.memory.training import host_lines
from flowrl.placement.sync.edge import sync_of
from flowrl.placement.time.ops import Lines, OpTime
from flowrl.plan.plan import LedgerLine, Memory, Pool, RolePlacement

Phase = tuple[int, int, str, int, int]
"""First and end of the devices that do the same, name, bytes and limit."""


@dataclass(frozen=True, slots=True)
class RoleCost:
    """One role on a Site: bytes of a device, by pipeline stage where they differ, and seconds of a firing.

    It is a Side of memory/sides.py in bytes.
    """

    name: str
    pp: int
    offloaded: bool
    has_model: bool
    wakes: bool
    staged: bool
    counted: bool
    """Whether a pool's line of processes counts it."""
    held: tuple[int, ...]
    remains: tuple[int, ...]
    """While another role works there."""
    work: tuple[Mapping[str, int], ...]
    """By op: what it holds then, resident bytes among them."""
    loading: tuple[int, ...] | None
    starting: tuple[int, int] | None
    blocks: tuple[int, ...]
    sends: int
    receives: int
    woken: int
    off_device_bytes: int
    """What is copied to the host when it leaves a device."""
    host_bytes: int
    """What is on the host always, for each device."""
    seconds: Seconds
    """Of its ops, with nobody else in sight: of an interaction its own part."""
    move_seconds: float
    """To leave its devices, or to come back."""
    key: Key = field(compare=False)
    placed: Placed = field(compare=False, repr=False)
    """The first such role that was asked for."""

    def on(self, pool: Pool) -> Placed:
        """The role in a pool on devices of the same kind, for who needs lines. Origins may name another pool."""
        return replace(self.placed, pool=pool)

    def load(self, stage: int) -> int | None:
        return None if self.loading is None else self.loading[stage]

    def start(self) -> tuple[int, int] | None:
        return self.starting

    def at_work(self, op: Op, stage: int) -> int:
        return self.work[stage][op.id]

    def resident(self, stage: int) -> int:
        return self.held[stage]

    def left(self, stage: int) -> int:
        return self.remains[stage]

    def grown(self, stage: int) -> int:
        return self.blocks[stage]

    def sent(self) -> int:
        return self.sends

    def received(self) -> int:
        return self.receives

    def awake(self) -> int:
        return self.woken

    @property
    def own_peak(self) -> int:
        """The most of its own lines on a device, over stages, while it loads or works."""
        return max(*(each for stage in self.work for each in stage.values()), *(self.loading or ()), 0, 0)


class Seconds:
    """Of one firing of each op of a role, by its id; worked out when it is first asked for."""

    __slots__ = ("_known", "_others", "_placed", "_times")

    def __init__(self, times: OpTime, placed: Placed, others: dict[str, float]) -> None:
        """`others`: of ops that recomputation does not change, shared by all that differ in it alone."""
        self._times, self._placed, self._others = times, placed, others
        self._known: dict[str, float] = {}

    def __getitem__(self, op: str) -> float:
        found = self._known.get(op)
        if found is None:
            here = self._times.work.graph.op(op)
            found = self._others.get(op) if here.method != "update" else None
            if found is None:
                with numbers_only():
                    found = _sum(self._times.on_devices(self._placed, here))
            self._known[op] = found
            if here.method != "update":
                self._others[op] = found
        return found


class RoleCosts:
    """Costs of the roles of one graph on one cluster. Made once for a search; all that is kept is in it."""

    def __init__(self, work: Workload, cluster: Cluster) -> None:
        self.work, self.cluster, self.graph = work, cluster, work.graph
        self._times = OpTime(work, (), cluster)
        self._costs: dict[Key, RoleCost] = {}
        self._times_of: dict[Key, Seconds] = {}
        self._others: dict[Key, dict[str, float]] = {}
        self._times_on: dict[Key, OpTime] = {}
        self._first: dict[tuple[str, str], Placed] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self._sites: dict[Key, Site] = {}
        self._short: dict[Key, Memory | None] = {}
        self._always: dict[Key, int] = {}
        self._hand_overs: dict[Key, tuple[float, float]] = {}
        self._host: dict[str, float] = {}
        self._groups = {group.name: group for group in cluster.groups}
        self._ops: dict[str, list[Op]] = {role.name: [] for role in self.graph.roles}
        for op in self.graph.ops:
            self._ops[op.role].append(op)
        # A role that lends weights holds some, and a graph has far more roles that hold none.
        holders = [role for role in self.graph.roles if role.model is not None]
        lenders = {r.name: {each.name for each in holders if is_shared(self.graph, r, {each.name})} for r in holders}
        self._lenders = {role.name: lenders.get(role.name, set()) for role in self.graph.roles}
        self._shares = {role.name: role.shares for role in self.graph.roles}
        self._senders = {edge.source.split(".")[0] for edge in _weights(self.graph)}
        self._receivers = {edge.target.split(".")[0] for edge in _weights(self.graph)}

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
        key = (entry.role, cut, entry.offloaded, entry.recompute, entry.micro_batch_tokens, shared, joined, site.key)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = self._made(key, entry, site, beside)
        return found

    def pool_costs(self, entries: Sequence[RolePlacement], site: Site) -> tuple[RoleCost, ...]:
        """Of all roles of a pool."""
        return tuple(self.role_cost(entry, site, entries) for entry in entries)

    def always(self, costs: Sequence[RoleCost], site: Site) -> int:
        """Bytes that every phase of a pool with these roles has: processes and reserve."""
        counted = sum(cost.counted for cost in costs)
        key = (counted, site.key)
        found = self._always.get(key)
        if found is None:
            profile = self.work.request.profile
            lines = overhead_lines(profile, site.pool, counted, site.limit_bytes, is_cpu=site.group.device.is_cpu)
            found = self._always[key] = bytes_of(lines)
        return found

    def pool_phases(self, costs: Sequence[RoleCost], site: Site) -> Iterator[Phase]:
        """`pool_memory` without its lines."""
        always = self.always(costs, site)
        for first, end, stages in stage_groups(tuple(cost.pp for cost in costs), site.count):
            by_role = {cost.name: stage for cost, stage in zip(costs, stages, strict=True)}
            for phase, held, limit in phases(self.graph, costs, by_role, always, 0):
                yield first, end, phase, held, site.limit_bytes if limit is None else limit

    def pool_needs(self, costs: Sequence[RoleCost], site: Site) -> tuple[Memory, ...]:
        """The same as Memory values without lines."""
        return tuple(_need(site, each) for each in self.pool_phases(costs, site))

    def short(self, costs: Sequence[RoleCost], site: Site) -> Memory | None:
        """The first phase that does not fit on the devices of a pool; None if all do. The host's memory is not looked
        at."""
        key = (*(cost.key for cost in costs), site)
        if key not in self._short:
            first = next((each for each in self.pool_phases(costs, site) if each[3] > each[4]), None)
            self._short[key] = None if first is None else _need(site, first)
        return self._short[key]

    def fits(self, costs: Sequence[RoleCost], site: Site) -> bool:
        """Whether every phase of a pool fits on its devices."""
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
            found = self._hand_overs[key] = (_sum(sync.send), _sum(sync.receive))
        return found

    def host_seconds(self, op: Op) -> float:
        """One firing of an op of the host pool."""
        found = self._host.get(op.id)
        if found is None:
            with numbers_only():
                found = self._host[op.id] = _sum(self._times.host(op))
        return found

    def together(self, op: Op, talking: int, spoken: float) -> float:
        """One firing of a member of an interaction whose `talking` generators take `spoken` seconds."""
        return spoken + _sum(self._times.turns(op, talking, spoken))

    def together_at_least(self, op: Op, talking: int, spoken: float) -> float:
        """The least of `together` for any time from `spoken` up. What environments hide shrinks as fast as generation
        grows, of several twice as fast: convex, so the least is where it starts or where an environment is hidden."""
        hidden = (evaluate("(ceil(N/k) - 1)*t*s", each.inputs) for each in self._times.turns(op, talking, spoken))
        return min(self.together(op, talking, max(each, spoken)) for each in (spoken, *hidden))

    def _made(self, key: Key, entry: RolePlacement, site: Site, beside: Sequence[RolePlacement]) -> RoleCost:
        with numbers_only():
            placed = self._placed(entry, site, beside)
            memory = RoleMemory(self.work, placed, site.limit_bytes)
            if entry.offloaded:
                stays = self.role_cost(msgspec.structs.replace(entry, offloaded=False), site, beside)
                return _off_duty(stays, memory, key)
            return self._cost(key, entry, site, placed, memory)

    def _placed(self, entry: RolePlacement, site: Site, beside: Sequence[RolePlacement]) -> Placed:
        """The role on a site, whose devices need no names for what it costs."""
        pool = Pool(
            name=site.name,
            devices=(),
            device=site.group.device.name,
            roles=(entry, *(each for each in beside if each.role != entry.role)) if beside else (entry,),
        )
        known = (entry.role, site.group.name)
        first = self._first.get(known)
        if first is None:
            shapes, request = self.work.shapes, self.work.request
            first = self._first[known] = placed_role(self.graph, entry, pool, site.group, shapes, request)
        named = (entry.role, site.name)
        where = self._origins.get(named)
        if where is None:
            where = self._origins[named] = layout_origin(entry.role, site.name, self.work.request)
        resident = {each.role for each in pool.roles if not each.offloaded} if beside else {entry.role}
        shared = is_shared(self.graph, first.role, resident)
        return first.elsewhere(pool, entry, where, shared, site.count, site.linked)

    def _cost(self, key: Key, entry: RolePlacement, site: Site, placed: Placed, memory: RoleMemory) -> RoleCost:
        times = self._times_at(site)
        ops, alike, busy = self._ops[entry.role], memory.alike, memory.busy
        has_model, start = memory.has_model, memory.start()
        loads = {stage: memory.load(stage) for stage in alike}
        held = {stage: bytes_of(memory.resident(stage)) for stage in alike}
        left = {stage: bytes_of(memory.left(stage)) for stage in alike}
        work = {stage: {op.id: bytes_of(memory.at_work(op, stage)) for op in ops} for stage in busy}
        blocks = {stage: bytes_of(memory.grown(stage)) for stage in busy}
        away = memory.off_device()
        return RoleCost(
            name=entry.role,
            pp=memory.pp,
            offloaded=entry.offloaded,
            has_model=has_model,
            wakes=memory.wakes,
            staged=memory.staged,
            counted=placed.device.is_cpu or not memory.is_engine,
            held=tuple(held[stage] for stage in alike),
            remains=tuple(left[stage] for stage in alike),
            work=tuple(work[stage] for stage in busy),
            loading=None if None in loads.values() else tuple(bytes_of(loads[stage] or []) for stage in alike),
            starting=None if start is None else (bytes_of(start[0]), start[1]),
            blocks=tuple(blocks[stage] for stage in busy),
            sends=bytes_of(memory.sent()) if has_model and entry.role in self._senders else 0,
            receives=bytes_of(memory.received()) if has_model and entry.role in self._receivers else 0,
            woken=bytes_of(memory.awake()) if has_model and memory.is_engine else 0,
            off_device_bytes=bytes_of(away),
            host_bytes=bytes_of(host_lines(placed)) if has_model else 0,
            seconds=self._seconds(entry, site, placed, times),
            move_seconds=_sum(times.move_state(placed, away)) if has_model else 0.0,
            key=key,
            placed=placed,
        )

    def _times_at(self, site: Site) -> OpTime:
        found = self._times_on.get(site.key)
        if found is None:
            found = self._times_on[site.key] = OpTime(
                self.work, (), self.cluster, limit_bytes=site.limit_bytes, in_use=site.in_use
            )
        return found

    def _seconds(self, entry: RolePlacement, site: Site, placed: Placed, times: OpTime) -> Seconds:
        """The same whether it leaves its devices or not."""
        layout = entry.layout
        cut = (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep)
        key = (entry.role, cut, entry.recompute, entry.micro_batch_tokens, site.key)
        found = self._times_of.get(key)
        if found is None:
            others = self._others.setdefault((entry.role, cut, entry.micro_batch_tokens, site.key), {})
            found = self._times_of[key] = Seconds(times, placed, others)
        return found


def _weights(graph: Graph) -> Iterator[Edge]:
    return (edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS)


def _off_duty(stays: RoleCost, memory: RoleMemory, key: Key) -> RoleCost:
    """The role if it leaves its devices: the same at work."""
    return replace(
        stays,
        offloaded=True,
        wakes=memory.wakes,
        staged=memory.staged,
        remains=tuple(bytes_of(memory.left(stage)) for stage in range(memory.pp)),
        blocks=(0,) * memory.pp,
        key=key,
        placed=memory.placed,
    )


def _need(site: Site, phase: Phase) -> Memory:
    first, end, name, held, limit = phase
    devices = devices_text(site.pool.devices, first, end)
    return Memory(pool=site.pool.name, device=devices, phase=name, peak_bytes=held, limit_bytes=limit, lines=())


def _sum(lines: Lines | tuple[LedgerLine, ...]) -> float:
    return sum(each.value for each in lines)
