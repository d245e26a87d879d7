"""Roles that share a pool, as arrays over all their choices: what each costs there, and which choices fit.

Arrays have one axis for each role on devices of the instance, in order; an axis that a number does not depend on has
length 1, so numbers of different pools are combined by plain arithmetic. Costs of one role in one choice come from
RoleCosts, since the search and its judge must go by one model; how roles of a pool add up is written here again, from
the docstrings of memory/pool.py, memory/phases.py and memory/sync.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.searching.instances import Instance
from flowrl.graph.graph import Edge, EdgeKind, Kind
from flowrl.machine.sync import TRANSPORTS
from flowrl.placement.checks.rows import COLLECTIVE, shares
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCost, Site
from flowrl.placement.cost.workload import Workload
from flowrl.plan.plan import Pool, RolePlacement

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Devices = tuple[str, ...]
Costs = npt.NDArray[Any]
"""Of RoleCost."""


@dataclass(frozen=True)
class Block:
    """Some roles on one site, in every choice of each."""

    roles: tuple[str, ...]
    site: Site
    choices: dict[str, tuple[RolePlacement, ...]]
    costs: dict[str, Costs]
    """RoleCost of each role, over its own choices and those of roles whose weights it works with."""
    legal: Flags
    """Where no rank is without a row."""
    fits: Flags
    """Where it fits on the devices; the host's memory is not looked at."""
    seconds: dict[str, Numbers]
    """Of a firing, by op."""
    off_device: dict[str, Numbers]
    """Bytes of a device that a role copies to the host."""
    on_host: dict[str, Numbers]
    """Bytes of a device that a role has on the host always."""
    stays: dict[str, Numbers]
    """1 where it is not offloaded."""

    @property
    def empty(self) -> bool:
        return not self.legal.any()


class Blocks:
    """Makes blocks, and keeps them by their roles and all of their site that costs depend on."""

    def __init__(self, instance: Instance, choices: Choices) -> None:
        self.instance, self.choices, self.costs = instance, choices, choices.costs
        self.graph, self.work = instance.graph, Workload(instance.graph, instance.shapes, instance.request)
        self.axis = {name: place for place, name in enumerate(instance.roles)}
        self.weights = [edge for edge in self.graph.edges if edge.kind is EdgeKind.WEIGHTS]
        self._known: dict[tuple[object, ...], Block] = {}
        self._sites: dict[Devices, Site] = {}

    def site(self, devices: Devices, group: str) -> Site:
        found = self._sites.get(devices)
        if found is None:
            device = next(each.device.name for each in self.instance.cluster.groups if each.name == group)
            pool = Pool(name=devices[0], devices=devices, device=device, roles=())
            found = self._sites[devices] = self.costs.site(pool)
        return found

    def block(self, roles: tuple[str, ...], site: Site) -> Block:
        key = (roles, site.key)
        if key not in self._known:
            self._known[key] = self._made(roles, site)
        return self._known[key]

    def over(self, costs: Costs, value: Callable[[RoleCost], float]) -> Numbers:
        flat = np.fromiter((value(each) for each in costs.flat), dtype=np.float64, count=costs.size)
        return flat.reshape(costs.shape)

    def _made(self, roles: tuple[str, ...], site: Site) -> Block:
        choices = {role: self.choices.of(role, site) for role in roles}
        costs = {role: self._costs(role, roles, choices, site) for role in roles}
        ops = {op.id: op for op in self.graph.ops if op.role in roles}
        return Block(
            roles=roles,
            site=site,
            choices=choices,
            costs=costs,
            legal=self._legal(choices),
            fits=_Room(self, roles, site, costs).fits(),
            seconds={id: self.over(costs[op.role], lambda c, id=id: c.seconds[id]) for id, op in ops.items()},
            off_device={r: self.over(costs[r], lambda c: c.off_device_bytes if c.offloaded else 0.0) for r in roles},
            on_host={r: self.over(costs[r], lambda c: c.host_bytes) for r in roles},
            stays={r: self.over(costs[r], lambda c: float(not c.offloaded)) for r in roles},
        )

    def _costs(
        self, role: str, roles: tuple[str, ...], choices: dict[str, tuple[RolePlacement, ...]], site: Site
    ) -> Costs:
        near = [role, *(other for other in self._partners(role) if other in roles)]
        shape = [1] * len(self.axis)
        for name in near:
            shape[self.axis[name]] = len(choices[name])
        found = np.empty(shape, dtype=object)
        for at in np.ndindex(*shape):
            entries = [choices[name][at[self.axis[name]]] for name in near]
            found[at] = self.costs.role_cost(entries[0], site, entries)
        return found

    def _partners(self, name: str) -> list[str]:
        """Whose weights it may work with: the trainer of its frozen base, and that of DeepSpeed's hybrid engine."""
        role = self.graph.role(name)
        found = [role.shares] if role.shares is not None else []
        if role.backend == "deepspeed" and role.kind is Kind.GENERATOR:
            found += [edge.source for edge in self.weights if edge.target == name]
        return [each for each in found if each != name]

    def _legal(self, choices: dict[str, tuple[RolePlacement, ...]]) -> Flags:
        """Each rank of a collective has a row of each of its ops."""
        found = np.ones([1] * len(self.axis), dtype=bool)
        for role, entries in choices.items():
            ops = [op for op in self.graph.ops if op.role == role]
            least = min((shares(self.work, op).count for op in ops), default=0)
            bound = self.graph.role(role).backend in COLLECTIVE and bool(ops)
            own = np.array([not bound or entry.layout.dp <= least for entry in entries], dtype=bool)
            found = found & along(own, self.axis[role], len(self.axis))
        return found


def along(values: npt.NDArray[np.bool_], axis: int, axes: int) -> Flags:
    shape = [1] * axes
    shape[axis] = len(values)
    return values.reshape(shape)


class _Room:
    """What the roles of one pool hold on each of its devices, phase by phase."""

    def __init__(self, blocks: Blocks, roles: tuple[str, ...], site: Site, costs: dict[str, Costs]) -> None:
        self.blocks, self.roles, self.site, self.costs = blocks, roles, site, costs
        self.limit = float(site.limit_bytes)
        empty = any(each.size == 0 for each in costs.values())
        self.always = 0.0 if empty else float(blocks.costs.always([each.flat[0] for each in costs.values()], site))

    def fits(self) -> Flags:
        shape = np.broadcast_shapes(*(each.shape for each in self.costs.values()))
        found = np.ones(shape, dtype=bool)
        if found.size == 0:
            return found
        depth = max(cost.pp for each in self.costs.values() for cost in each.flat)
        for device in range(self.site.count if depth > 1 else 1):
            for held, limit in self._phases(device):
                found &= held <= limit
        return found

    def _phases(self, device: int) -> Iterator[tuple[Numbers, Numbers | float]]:
        """What is held in each phase, and in how much room."""

        def stage(cost: RoleCost) -> int:
            return device * cost.pp // self.site.count

        def read(role: str, value: Callable[[RoleCost], float]) -> Numbers:
            return self.blocks.over(self.costs[role], value)

        left = {role: read(role, lambda c: c.remains[stage(c)]) for role in self.roles}
        kept = _sum(read(role, lambda c: c.blocks[stage(c)]) for role in self.roles)
        grown = {role: read(role, lambda c: float(c.wakes)) * kept for role in self.roles}

        def beside(*working: str) -> Numbers | float:
            return _sum(left[role] for role in self.roles if role not in working) + self.always

        for role in self.roles:
            rest = beside(role) + grown[role]
            yield read(role, lambda c: 0 if c.loading is None else c.loading[stage(c)]) + rest, self.limit
            start = read(role, lambda c: 0 if c.starting is None else c.starting[0])
            yield start, read(role, lambda c: self.limit if c.starting is None else c.starting[1])
            for op in (each for each in self.blocks.graph.ops if each.role == role):
                yield read(role, lambda c, id=op.id: c.work[stage(c)][id]) + rest, self.limit
        for edge in self.blocks.weights:
            yield from ((held, self.limit) for held in self._hand_over(edge, read, stage, left, grown, beside))

    def _hand_over(
        self,
        edge: Edge,
        read: Callable[[str, Callable[[RoleCost], float]], Numbers],
        stage: Callable[[RoleCost], int],
        left: dict[str, Numbers],
        grown: dict[str, Numbers],
        beside: Callable[..., Numbers | float],
    ) -> Iterator[Numbers]:
        """The steps of a weights edge of which an end is here."""
        source, target = (self._end(each.split(".")[0]) for each in (edge.source, edge.target))
        others = beside(*(each for each in (source, target) if each is not None))
        mine = staying = np.zeros([1] * len(self.blocks.axis))
        if source is not None:
            mine = read(source, lambda c: c.held[stage(c)])
            sent = mine + read(source, lambda c: c.sends) + others
            yield sent if target is None else sent + left[target]
            staying = mine * read(source, lambda c: float(not c.offloaded))
        if target is None:
            return
        transport = TRANSPORTS.get(edge.transport or "")
        near = mine if transport is not None and transport.direct else staying
        whole, staged = read(target, lambda c: c.held[stage(c)]), read(target, lambda c: float(c.staged))
        received, awake = read(target, lambda c: c.receives), read(target, lambda c: c.woken)
        more = grown[target] + others
        yield staged * (awake + received + near) + (1 - staged) * (whole + received + near) + more
        yield staged * (whole + staying) + more

    def _end(self, role: str) -> str | None:
        return role if role in self.roles and self.costs[role].flat[0].has_model else None


def _sum(values: Iterator[Numbers]) -> Numbers | float:
    total: Numbers | float = 0.0
    for each in values:
        total = total + each
    return total


def set_partitions(roles: Sequence[str]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Every way to put roles together, blocks in the order of their first role."""
    if not roles:
        yield ()
        return
    *before, last = roles
    for found in set_partitions(before):
        for place in range(len(found)):
            yield (*found[:place], (*found[place], last), *found[place + 1 :])
        yield (*found, (last,))


def homes(blocks: int, groups: Sequence[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every group and number of devices for each of so many blocks; devices may be left idle."""
    names, room = [name for name, _ in groups], dict(groups)
    for where in product(names, repeat=blocks):
        yield from _sizes(where, room)


def _sizes(where: tuple[str, ...], room: dict[str, int]) -> Iterator[tuple[tuple[str, int], ...]]:
    if not where:
        yield ()
        return
    first, rest = where[0], where[1:]
    for count in range(1, room[first] + 1):
        for more in _sizes(rest, room | {first: room[first] - count}):
            yield ((first, count), *more)
