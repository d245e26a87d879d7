"""Names of devices, and which of them a pool gets. Deterministic; knows no roles.

A device is `nodeN/M`, in a cluster of several groups `GROUP/nodeN/M`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.diag.diagnostic import InternalError
from flowrl.machine.cluster import Cluster, NodeGroup


def device_names(cluster: Cluster, group: NodeGroup) -> tuple[tuple[str, ...], ...]:
    """The group's devices, node by node."""
    prefix = f"{group.name}/" if len(cluster.groups) > 1 else ""
    return tuple(
        tuple(f"{prefix}node{node}/{place}" for place in range(group.devices_per_node)) for node in range(group.nodes)
    )


def allocate(cluster: Cluster, wanted: Sequence[tuple[str, int]]) -> list[tuple[str, ...]]:
    """Devices for each (group, count), in that order. A pool that fits a node takes the fullest node with room, so that
    whole nodes stay whole; a larger one takes whole free nodes first. InternalError if they are too few: the request is
    checked before.
    """
    free = {group.name: [list(node) for node in device_names(cluster, group)] for group in cluster.groups}
    return [_take(free[name], count) for name, count in wanted]


def broken_group(devices: Sequence[str], tp: int) -> str | None:
    """The first tensor-parallel group of `tp` neighbouring ranks that is on two nodes, as `4 to 7`; None if each is on
    one."""
    for start in range(0, len(devices) - tp + 1, tp):
        if len({device.rpartition("/")[0] for device in devices[start : start + tp]}) > 1:
            return f"{start} to {start + tp - 1}"
    return None


def _take(nodes: list[list[str]], count: int) -> tuple[str, ...]:
    if sum(map(len, nodes)) < count:
        raise InternalError(f"{count} devices wanted, {sum(map(len, nodes))} left")
    room = [node for node in nodes if len(node) >= count]
    if room:
        return _cut(min(room, key=len), count)
    taken: list[str] = []
    for node in sorted(nodes, key=len, reverse=True):
        taken.extend(_cut(node, min(len(node), count - len(taken))))
    return tuple(taken)


def _cut(node: list[str], count: int) -> tuple[str, ...]:
    taken = tuple(node[:count])
    del node[:count]
    return taken
