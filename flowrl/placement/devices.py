"""Names of devices, and which of them a pool gets. Deterministic; knows no roles.

A device is `nodeN/M`, in a cluster of several groups `GROUP/nodeN/M`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.diag.diagnostic import InternalError
from flowrl.machine.cluster import Cluster, NodeGroup

Run = tuple[int, int, int]
"""Neighbouring devices of a node: the node, the first of them, and how many."""


def device_names(cluster: Cluster, group: NodeGroup) -> tuple[tuple[str, ...], ...]:
    """The group's devices, node by node."""
    return tuple(
        tuple(_name(cluster, group, node, place) for place in range(group.devices_per_node))
        for node in range(group.nodes)
    )


def device_block(cluster: Cluster, group: NodeGroup, first: int, count: int) -> tuple[str, ...]:
    """`count` neighbouring devices of the group, node after node, from the one with number `first` on."""
    prefix, each = f"{group.name}/" if len(cluster.groups) > 1 else "", group.devices_per_node
    return tuple(f"{prefix}node{at // each}/{at % each}" for at in range(first, first + count))


def allocate(cluster: Cluster, wanted: Sequence[tuple[str, int]]) -> list[tuple[str, ...]]:
    """Devices for each (group, count), in that order. A pool that fits a node takes the fullest node with room, so that
    whole nodes stay whole; a larger one takes whole free nodes first. InternalError if they are too few: the request is
    checked before.
    """
    groups = {group.name: group for group in cluster.groups}
    return [
        named(cluster, groups[name], runs) for (name, _), runs in zip(wanted, shared_out(cluster, wanted), strict=True)
    ]


def shared_out(cluster: Cluster, wanted: Sequence[tuple[str, int]]) -> list[tuple[Run, ...]]:
    """The same as numbers: what a search of many sizes asks for."""
    free = {group.name: [group.devices_per_node] * group.nodes for group in cluster.groups}
    whole = {group.name: group.devices_per_node for group in cluster.groups}
    return [_take(free[name], whole[name], count) for name, count in wanted]


def named(cluster: Cluster, group: NodeGroup, runs: Sequence[Run]) -> tuple[str, ...]:
    """The devices of these runs."""
    return tuple(
        _name(cluster, group, node, place) for node, first, count in runs for place in range(first, first + count)
    )


def largest_first(wanted: Sequence[tuple[str, int]]) -> list[int]:
    """The order in which pools take devices, as places in `wanted`: large ones find whole nodes."""
    return sorted(range(len(wanted)), key=lambda place: -wanted[place][1])


def broken_group(devices: Sequence[str], tp: int) -> str | None:
    """The first tensor-parallel group of `tp` neighbouring ranks that is on two nodes, as `4 to 7`; None if each is on
    one."""
    for start in range(0, len(devices) - tp + 1, tp):
        if len({device.rpartition("/")[0] for device in devices[start : start + tp]}) > 1:
            return f"{start} to {start + tp - 1}"
    return None


def _name(cluster: Cluster, group: NodeGroup, node: int, place: int) -> str:
    return f"{group.name}/node{node}/{place}" if len(cluster.groups) > 1 else f"node{node}/{place}"


def _take(free: list[int], whole: int, count: int) -> tuple[Run, ...]:
    """Devices of nodes of which `free` are left, each of `whole`; what is taken is not free any more."""
    if sum(free) < count:
        raise InternalError(f"{count} devices wanted, {sum(free)} left")
    room = [node for node, left in enumerate(free) if left >= count]
    order = [min(room, key=lambda node: free[node])] if room else sorted(range(len(free)), key=lambda node: -free[node])
    taken: list[Run] = []
    for node in order:
        part = min(free[node], count)
        if part:
            taken.append((node, whole - free[node], part))
            free[node], count = free[node] - part, count - part
    return tuple(taken)
