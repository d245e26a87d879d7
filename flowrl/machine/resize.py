"""Groups of nodes of another size or another device: what a sweep plans a flow on. Takes a group, gives a group."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError, Help, diagnose
from flowrl.diag.span import Span
from flowrl.machine.cluster import NodeGroup
from flowrl.machine.devices import DEVICE_CARDS, DeviceCard, node_group
from flowrl.machine.shorthand import check_size


def resized(group: NodeGroup, card: DeviceCard | None, count: int | None, span: Span | None = None) -> NodeGroup:
    """The group with devices of `card` and with `count` of them; None: as it is. `span`: where the count is written.

    Its nodes, links and price stay where the device does; another device comes in its usual nodes. Up to a node's size
    devices are one node, above it they fill whole nodes. One node of a known device may be a part of its usual node.
    Raises FlowError FR0512 for a count that leaves a node in part, FR0031 for more than can be planned.
    """
    is_other = card is not None and card.device.name != group.device.name
    if not is_other and count is None:
        return group
    wanted = group.nodes * group.devices_per_node if count is None else count
    check_size(wanted, span)
    base = node_group(card, group.name, 1, 1) if card is not None and is_other else group
    size = _node_size(base, wanted)
    if wanted <= size:
        return replace(base, nodes=1, devices_per_node=wanted)
    if wanted % size:
        below, name = wanted // size * size, base.device.name
        helps = (Help(text=f"{below} or {below + size} of {name} are whole nodes"),)
        raise FlowError(diagnose("FR0512", span, helps=helps, name=name, count=wanted, size=size, rest=wanted % size))
    return replace(base, nodes=wanted // size, devices_per_node=size)


def _node_size(group: NodeGroup, wanted: int) -> int:
    """Devices of a node. Slots of a CPU are one host, however many."""
    if group.device.is_cpu:
        return wanted
    card = DEVICE_CARDS.get(group.device.name)
    if group.nodes > 1 or card is None:
        return group.devices_per_node
    return max(group.devices_per_node, card.node_devices)


def shorthand_of(group: NodeGroup) -> str:
    """`16xH100-80G` where its nodes are usual ones or it is a part of one, else `4x4xH100-80G`."""
    name, nodes, each = group.device.name, group.nodes, group.devices_per_node
    card = DEVICE_CARDS.get(name)
    size = 0 if card is None else card.node_devices
    is_short = each == size or (nodes == 1 and (each <= size or group.device.is_cpu))
    return f"{nodes * each}x{name}" if is_short else f"{nodes}x{each}x{name}"
