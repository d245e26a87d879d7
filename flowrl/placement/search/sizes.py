"""Sizes of pools that a search tries on a group of nodes, and where pools of given sizes lie.

Takes a cluster; gives counts of devices and Sites. Knows no roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.devices import Run, largest_first, named, shared_out
from flowrl.placement.search.ways import group_size
from flowrl.plan.plan import Pool

EVERY_SIZE = 16
"""Devices of a group of which pools of every size are tried."""
MOST_NODE_SIZES = 32
"""Sizes in whole nodes of a larger group, before they are thinned."""
THINNED_SIZES = 12
"""So many, then, in equal ratios, and what they leave."""
REFINED_SIZES = 12
"""Of a pool, between its neighbours among the thinned ones."""

Shape = tuple[str, tuple[int, ...]]
"""A group, and how many devices a pool has on each of its nodes: all that costs of a pool depend on."""


def shape_of(group: str, devices: Sequence[str]) -> Shape:
    """Of a pool with these devices."""
    parts = (len(list(same)) for _, same in groupby(devices, key=lambda device: device.rpartition("/")[0]))
    return group, tuple(parts)


def sizes_of(group: NodeGroup) -> tuple[int, ...]:
    """Counts of devices for one pool, rising. Up to EVERY_SIZE devices each; of more, whole nodes, less than a node,
    and what either leaves; where there are many nodes, both thinned in equal ratios."""
    whole, each = group_size(group), group.devices_per_node
    if whole <= EVERY_SIZE:
        return tuple(range(1, whole + 1))
    powers = [1 << power for power in range(each.bit_length()) if 1 << power < each]
    within = powers if is_thinned(group) else _parts(each)
    nodes = _thinned(group.nodes)
    counts = {*within, *(node * each for node in nodes)}
    counts |= {whole - count for count in counts if count < whole}
    return tuple(sorted(counts))


def _parts(each: int) -> list[int]:
    """Of a node of `each` devices: every count; of many devices the small ones and about sixteenths of the node."""
    step = max(1, each // EVERY_SIZE)
    return sorted({*range(1, min(each, EVERY_SIZE // 2 + 1)), *range(step, each, step)})


def is_thinned(group: NodeGroup) -> bool:
    """Whether some sizes in whole nodes are left out."""
    return group_size(group) > EVERY_SIZE and group.nodes > MOST_NODE_SIZES


def space_of(groups: Sequence[NodeGroup]) -> str:
    """The sizes of pools that are searched on these groups, in words."""
    if any(is_thinned(group) for group in groups):
        return "sizes thinned"
    if any(group_size(group) > EVERY_SIZE for group in groups):
        return "sizes in whole nodes and parts of one"
    return "all sizes"


def refined(group: NodeGroup, count: int) -> tuple[int, ...]:
    """Sizes around one that was found among the thinned ones, and it."""
    sizes, each = sizes_of(group), group.devices_per_node
    low = max((size for size in sizes if size < count), default=count)
    high = min((size for size in sizes if size > count), default=count)
    nodes = range(-(-low // each), high // each + 1)
    step = max(1, -(-len(nodes) // REFINED_SIZES))
    return tuple(sorted({count, *(node * each for node in nodes[::step] if node)}))


def _thinned(nodes: int) -> list[int]:
    if nodes <= MOST_NODE_SIZES:
        return list(range(1, nodes + 1))
    ratio = nodes ** (1 / (THINNED_SIZES - 1))
    return sorted({round(ratio**power) for power in range(THINNED_SIZES)} | {nodes})


class Places:
    """Sites of pools by shape, made once. A pool's own devices matter to hand-overs alone."""

    def __init__(self, costs: RoleCosts) -> None:
        self.costs, self.cluster = costs, costs.cluster
        self.groups = {group.name: group for group in costs.cluster.groups}
        self._sites: dict[Shape, Site] = {}
        self._alone: dict[tuple[str, int], Shape] = {}
        self._named: dict[tuple[str, tuple[Run, ...]], tuple[str, ...]] = {}
        self._shapes: dict[tuple[str, tuple[str, ...]], Shape] = {}

    def alone(self, group: str, count: int) -> Shape:
        """Of a pool that is the first to be given devices."""
        key = (group, count)
        found = self._alone.get(key)
        if found is None:
            (runs,) = shared_out(self.cluster, [(group, count)])
            found = self._alone[key] = (group, tuple(part for _, _, part in runs))
        return found

    def likely(self, group: str, count: int) -> tuple[Shape, ...]:
        """Shapes of a pool beside others, of which one costs no more than any that it may get: as the first to be given
        devices, and evenly on the fewest nodes, where more of its neighbours share one."""
        first, each = self.alone(group, count), self.groups[group].devices_per_node
        nodes = -(-count // each)
        if count % each == 0 or nodes == 1 or group_size(self.groups[group]) > EVERY_SIZE:
            return (first,)
        more, rest = divmod(count, nodes)
        return first, (group, (more + 1,) * rest + (more,) * (nodes - rest))

    def site(self, shape: Shape) -> Site:
        """Some devices of this shape."""
        found = self._sites.get(shape)
        if found is None:
            count = sum(shape[1])
            found = self._sites[shape] = (
                self.costs.site_of(shape[0], count) if shape == self.alone(shape[0], count) else self._somewhere(shape)
            )
        return found

    def _somewhere(self, shape: Shape) -> Site:
        group = self.groups[shape[0]]
        devices = named(self.cluster, group, [(node, 0, count) for node, count in enumerate(shape[1])])
        return self.costs.site(Pool(name="pool", devices=devices, device=group.device.name, roles=()))

    def devices(self, wanted: Sequence[tuple[str, int]], order: Sequence[int] | None = None) -> list[tuple[str, ...]]:
        """Their names; the largest pool first unless `order` says otherwise."""
        order = largest_first(wanted) if order is None else order
        taken = shared_out(self.cluster, [wanted[place] for place in order])
        found: list[tuple[str, ...]] = [()] * len(wanted)
        for place, runs in zip(order, taken, strict=True):
            found[place] = self._names(wanted[place][0], runs)
        return found

    def _names(self, group: str, runs: tuple[Run, ...]) -> tuple[str, ...]:
        found = self._named.get((group, runs))
        if found is None:
            found = self._named[group, runs] = named(self.cluster, self.groups[group], runs)
        return found

    def shape(self, group: str, devices: tuple[str, ...]) -> Shape:
        """Of a pool with these devices."""
        found = self._shapes.get((group, devices))
        if found is None:
            found = self._shapes[group, devices] = shape_of(group, devices)
        return found


def cluster_sizes(cluster: Cluster) -> dict[str, tuple[int, ...]]:
    """By group."""
    return {group.name: sizes_of(group) for group in cluster.groups}
