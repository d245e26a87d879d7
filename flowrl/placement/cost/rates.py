"""What a device and its links achieve of their peak figures: the profile's shares times the catalogue's peaks."""

from __future__ import annotations

from flowrl.machine.local import LOCAL
from flowrl.machine.profile import DeviceRates
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed


def shares(placed: Placed) -> DeviceRates:
    """Of the role's backend on its device."""
    return placed.rates


def rate_inputs(placed: Placed, share: str, cluster_name: str, slots_in_use: int) -> dict[str, Given]:
    """X floating-point operations, Y bytes of memory, Z bytes of the slowest link of the role's devices, a second.

    On `local` a slot uses its part of the cores: all of them if it is the only one.
    """
    device, achieved = placed.device, shares(placed)
    cores = max(1, placed.group.devices_per_node // max(1, slots_in_use)) if cluster_name == LOCAL else 1
    flops = getattr(achieved, share) * device.bf16_flops_per_second * cores
    catalogue = f"catalogue {device.name}"
    link, how = link_bytes_per_second(placed)
    return {
        "X": Given(flops, f"{getattr(achieved, share):.0%} of {catalogue} bf16 peak ({placed.profile.origin})"),
        "Y": Given(achieved.decode * device.memory_bytes_per_second * cores, f"{achieved.decode:.0%} of {catalogue}"),
        "Z": Given(achieved.link * link, f"{achieved.link:.0%} of {how}"),
    }


def link_bytes_per_second(placed: Placed) -> tuple[float, str]:
    """Of a collective over all devices of the pool: within a node the device link; between nodes each device's network
    card carries its share, so a node's cards together, at most the device link."""
    nodes: dict[str, int] = {}
    for device in placed.pool.devices:
        node = device.rsplit("/", 1)[0]
        nodes[node] = nodes.get(node, 0) + 1
    inside = placed.device.link_bytes_per_second
    if len(nodes) == 1:
        return inside, f"catalogue {placed.device.name} device link"
    between = placed.group.network_bytes_per_second * min(nodes.values())
    if between < inside:
        return between, f"{min(nodes.values())} network cards a node"
    return inside, f"catalogue {placed.device.name} device link"
