"""How costs of roles are made: the ledger lines of a plan, made for their values alone and added up.

Takes a workload and a cluster; gives a RoleCost for a role's placement on a site. Costs that differ in recomputation,
micro-batch or residency alone have most of their numbers in common: those are kept here. Knows no pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.graph.graph import EdgeKind, Op
from flowrl.machine.cluster import Cluster
from flowrl.placement.cost.ledger import bytes_of, numbers_only
from flowrl.placement.cost.placed import Placed, is_shared, layout_origin, placed_role
from flowrl.placement.cost.role_cost import RoleCost, Seconds, total
from flowrl.placement.cost.site import Key, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.host import moved_activations
from flowrl.placement.memory.role import RoleMemory
from flowrl.placement.memory.training import host_lines
from flowrl.placement.time.ops import OpTime
from flowrl.plan.plan import Pool, RolePlacement


class Maker:
    """Of the roles of one graph on one cluster. `own` keys name a role in one cut on one site, beside others that it
    shares weights with."""

    def __init__(self, work: Workload, cluster: Cluster, ops: Mapping[str, Sequence[Op]]) -> None:
        self.work, self.cluster, self._ops = work, cluster, ops
        weights = [edge for edge in work.graph.edges if edge.kind is EdgeKind.WEIGHTS]
        self._senders = {edge.source.split(".")[0] for edge in weights}
        self._receivers = {edge.target.split(".")[0] for edge in weights}
        self._still: dict[Key, dict[str, Any]] = {}
        self._away: dict[Key, dict[str, Any]] = {}
        self._seconds: dict[Key, Seconds] = {}
        self._others: dict[Key, dict[str, float]] = {}
        self._times: dict[Key, OpTime] = {}
        self._first: dict[tuple[str, str], Placed] = {}
        self._origins: dict[tuple[str, str], str] = {}

    def stays(self, key: Key, own: Key, entry: RolePlacement, site: Site, beside: Sequence[RolePlacement]) -> RoleCost:
        """The cost of a role that stays on its devices."""
        placed = self._placed(entry, site, beside)
        with numbers_only():
            memory = RoleMemory(self.work, placed, site.limit_bytes)
            still = self._still.get(own)
            if still is None:
                still = self._still[own] = self._numbers(entry.role, site, placed, memory)
            work, blocks = self._at_work(memory, self._ops[entry.role], still["held"])
            still = self._with_activations(still, placed)
        peak = max(*map(max, [each.values() for each in work if each]), *(still["loading"] or ()), 0, 0)
        return RoleCost(
            **still,
            offloaded=False,
            wakes=memory.wakes,
            staged=memory.staged,
            remains=still["held"],
            work=work,
            blocks=blocks,
            own_peak=peak,
            alone=max(peak, self._visited(still, staged=memory.staged)),
            seconds=self._seconds_of(own, entry, site, placed),
            key=key,
            as_asked=placed,
        )

    def _at_work(
        self, memory: RoleMemory, ops: Sequence[Op], held: Sequence[int]
    ) -> tuple[tuple[Mapping[str, int], ...], tuple[int, ...]]:
        """By stage: what each op holds, and blocks that an allocator keeps. Stages that hold the same share a value."""
        work: dict[int, Mapping[str, int]] = {}
        blocks: dict[int, int] = {}
        beside = memory.beside(ops)
        for stage in dict.fromkeys(memory.busy):
            if beside is not None:
                more, blocks[stage] = beside[stage]
                work[stage] = {op: held[stage] + each for op, each in more.items()}
            else:
                work[stage] = {op.id: bytes_of(memory.at_work(op, stage)) for op in ops}
                blocks[stage] = bytes_of(memory.grown(stage, work[stage]))
        return tuple([work[stage] for stage in memory.busy]), tuple([blocks[stage] for stage in memory.busy])

    def leaves(
        self,
        key: Key,
        own: Key,
        entry: RolePlacement,
        site: Site,
        beside: Sequence[RolePlacement],
        stays: RoleCost,
    ) -> RoleCost:
        """The same role if it leaves its devices: at work it is as it is if it `stays`."""
        away = self._away.get(own)
        if away is None:
            with numbers_only():
                memory = RoleMemory(self.work, self._placed(entry, site, beside), site.limit_bytes)
                left = bytes_of(memory.left(0))
            away = self._away[own] = {
                **self._still[own],
                "offloaded": True,
                "wakes": memory.wakes,
                "staged": memory.staged,
                "remains": (left,) * memory.pp,
                "blocks": (0,) * memory.pp,
            }
        known: dict[str, Any] = {**away, "host_bytes": stays.host_bytes}
        return RoleCost(
            **known,
            work=stays.work,
            own_peak=stays.own_peak,
            alone=max(stays.own_peak, self._visited(away, staged=away["staged"])),
            seconds=stays.seconds,
            key=key,
            as_asked=stays.as_asked,
        )

    def _with_activations(self, still: dict[str, Any], placed: Placed) -> dict[str, Any]:
        """Those on the host depend on recomputation and on the size of a micro-batch."""
        if not placed.role.engine.activation_offload:
            return still
        moved = bytes_of(moved_activations(placed, self.work))
        return {**still, "host_bytes": still["host_bytes"] + moved}

    def _visited(self, known: Mapping[str, Any], *, staged: bool) -> int:
        """The most that a role alone holds while its weights are sent or new ones come in."""
        if not known["has_model"]:
            return 0
        found, held = 0, max(known["held"])
        if known["name"] in self._senders:
            found = held + known["sends"]
        if known["name"] in self._receivers:
            taking = known["woken"] if staged else held
            found = max(found, taking + known["receives"], held)
        return found

    def _numbers(self, role: str, site: Site, placed: Placed, memory: RoleMemory) -> dict[str, Any]:
        """All that neither recomputation nor the size of a micro-batch changes."""
        alike, has_model, start = memory.alike, memory.has_model, memory.start()
        each = dict.fromkeys(alike)
        loads = {stage: memory.load(stage) for stage in each}
        held = {stage: bytes_of(memory.resident(stage)) for stage in each}
        away = memory.off_device()
        return {
            "name": role,
            "pp": memory.pp,
            "has_model": has_model,
            "counted": placed.device.is_cpu or not memory.is_engine,
            "held": tuple([held[stage] for stage in alike]),
            "loading": None if None in loads.values() else tuple([bytes_of(loads[stage] or []) for stage in alike]),
            "starting": None if start is None else (bytes_of(start[0]), start[1]),
            "sends": bytes_of(memory.sent()) if has_model and role in self._senders else 0,
            "receives": bytes_of(memory.received()) if has_model and role in self._receivers else 0,
            "woken": bytes_of(memory.awake()) if has_model and memory.is_engine else 0,
            "off_device_bytes": bytes_of(away),
            "host_bytes": bytes_of(host_lines(placed)) if has_model else 0,
            "move_seconds": total(self._times_at(site).move_state(placed, away)) if has_model else 0.0,
        }

    def _placed(self, entry: RolePlacement, site: Site, beside: Sequence[RolePlacement]) -> Placed:
        """The role on a site, whose devices need no names for what it costs."""
        roles = (entry, *(each for each in beside if each.role != entry.role)) if beside else (entry,)
        pool = Pool(name=site.name, devices=(), device=site.group.device.name, roles=roles)
        known = (entry.role, site.group.name)
        first = self._first.get(known)
        if first is None:
            shapes, request = self.work.shapes, self.work.request
            first = self._first[known] = placed_role(self.work.graph, entry, pool, site.group, shapes, request)
        named = (entry.role, site.name)
        where = self._origins.get(named)
        if where is None:
            where = self._origins[named] = layout_origin(entry.role, site.name, self.work.request)
        shared = is_shared(self.work.graph, first.role, {each.role for each in roles if not each.offloaded})
        return first.elsewhere(pool, entry, where, shared, site.count, site.linked)

    def _times_at(self, site: Site) -> OpTime:
        found = self._times.get(site.key)
        if found is None:
            found = self._times[site.key] = OpTime(
                self.work, (), self.cluster, limit_bytes=site.limit_bytes, in_use=site.in_use
            )
        return found

    def _seconds_of(self, own: Key, entry: RolePlacement, site: Site, placed: Placed) -> Seconds:
        """The same whatever it shares with others."""
        role, cut, _, _, room, where = own
        key = (role, cut, room, where, entry.recompute, entry.micro_batch_tokens)
        found = self._seconds.get(key)
        if found is None:
            others = self._others.setdefault((role, cut, room, where, entry.micro_batch_tokens), {})
            found = self._seconds[key] = Seconds(self._times_at(site), placed, others)
        return found
