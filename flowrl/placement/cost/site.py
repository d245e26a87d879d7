"""Devices that roles may be placed on, as far as costs depend on them: how many, of what kind, how they are linked.

Takes a pool, or a block of neighbouring devices that have no names yet; gives a Site. Knows no roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd

from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.placement.cost.placed import linked_devices, nodes_linked
from flowrl.placement.devices import device_block
from flowrl.placement.memory.pool import limit_bytes
from flowrl.plan.plan import Pool

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """Devices that roles may be placed on. Made once, asked often: costs are kept by its `key`."""

    name: str
    """Of its pool."""
    group: NodeGroup
    count: int
    linked: int
    """Neighbouring devices that talk by links."""
    even: int
    """The largest number that divides its devices on every node: groups of neighbours whose size divides it stand on
    one node each."""
    limit_bytes: int
    """Of one device."""
    in_use: int
    """Devices of all pools: on a CPU slots share memory and cores."""
    key: Key
    """All of it that costs of a single role depend on."""
    _named: Callable[[], Pool]
    _pool: list[Pool] = field(default_factory=list[Pool], repr=False)

    @property
    def pool(self) -> Pool:
        """Its devices by name, without roles."""
        if not self._pool:
            self._pool.append(self._named())
        return self._pool[0]


def site_of_pool(pool: Pool, pools: tuple[Pool, ...], group: NodeGroup, cluster: Cluster) -> Site:
    """The devices of a pool of `group`, one of `pools`."""
    empty = Pool(name=pool.name, devices=pool.devices, device=pool.device, roles=())
    limit, in_use = limit_bytes(pool, pools, cluster), sum(len(each.devices) for each in pools)
    linked = linked_devices(group, pool.devices)
    even = _even(pool.devices)
    return _site(pool.name, group, len(pool.devices), linked, even, limit, in_use, lambda: empty)


def site_of_block(cluster: Cluster, group: NodeGroup, count: int, first: int) -> Site:
    """`count` devices of a group from the device number `first` on, as the only pool of its cluster."""
    each = group.devices_per_node
    ends = (-first % each or each, (first + count) % each or each)
    nodes = (first + count - 1) // each - first // each + 1
    fewest = count if nodes == 1 else min(ends)
    linked = count if nodes <= nodes_linked(group) else fewest * nodes_linked(group)
    even = count if nodes == 1 else gcd(*ends, each if nodes > 2 else 0)
    limit = group.device.memory_bytes
    if group.device.is_cpu:
        limit = group.host_memory_bytes // min(count, ends[0])

    def named() -> Pool:
        devices = device_block(cluster, group, first, count)
        return Pool(name="", devices=devices, device=group.device.name, roles=())

    return _site("", group, count, linked, even, limit, count, named)


@lru_cache(maxsize=1024)
def _even(devices: tuple[str, ...]) -> int:
    return gcd(*Counter(device.rpartition("/")[0] for device in devices).values())


def _site(
    name: str, group: NodeGroup, count: int, linked: int, even: int, limit: int, in_use: int, named: Callable[[], Pool]
) -> Site:
    key = (group.name, count, linked, limit, in_use if group.device.is_cpu else 0)
    return Site(name, group, count, linked, even, limit, in_use, key, named)
