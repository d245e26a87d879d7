"""What a device and its links achieve of their peak figures: the profile's shares times the catalogue's peaks.

Takes a placed role; gives rates and latencies of its devices and of the groups that its ranks form. Knows no formula of
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

from flowrl.machine.local import LOCAL
from flowrl.machine.profile import DeviceRates
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed

AXES = ("tp", "cp", "dp", "pp")
"""From the axis whose ranks are neighbours outwards: Megatron Core's order, and that of a device mesh of FSDP2."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that take part in one collective: how many, and how many of them share a node."""

    size: int
    inside: int
    bytes_per_second: float
    """Of a ring over all of them: the slowest link, at the share that the profile states."""
    alone_bytes_per_second: float
    """Of one rank to another node, its own network cards."""
    link_bytes_per_second: float
    """Inside a node."""
    seconds: float
    """Latency of passing once through a tree over all of them: the logarithm of hops inside, and of those between."""
    how: str

    def __hash__(self) -> int:
        return hash((self.size, self.inside, self.bytes_per_second))

    @property
    def crosses(self) -> bool:
        return self.inside < self.size


def shares(placed: Placed) -> DeviceRates:
    """Of the role's backend on its device."""
    return placed.rates


def rate_inputs(placed: Placed, share: str, cluster_name: str, slots_in_use: int) -> dict[str, Given]:
    """X floating-point operations, Y bytes of memory, Z bytes of the slowest link of the role's devices, a second.

    On `local` a slot uses its part of the cores: all of them if it is the only one.
    """
    key = ("rates", share, cluster_name, slots_in_use, placed.count, placed.linked)
    found: dict[str, Given] | None = placed.kept.get(key)
    if found is None:
        found = placed.kept[key] = _rate_inputs(placed, share, cluster_name, slots_in_use)
    return found


def _rate_inputs(placed: Placed, share: str, cluster_name: str, slots_in_use: int) -> dict[str, Given]:
    device, achieved = placed.device, shares(placed)
    cores = max(1, placed.group.devices_per_node // max(1, slots_in_use)) if cluster_name == LOCAL else 1
    flops = getattr(achieved, share) * device.bf16_flops_per_second * cores
    catalogue = f"catalogue {device.name}"
    ranks = group_of_ranks(placed, placed.count)
    return {
        "X": Given(flops, f"{getattr(achieved, share):.0%} of {catalogue} bf16 peak ({placed.profile.origin})"),
        "Y": Given(achieved.decode * device.memory_bytes_per_second * cores, f"{achieved.decode:.0%} of {catalogue}"),
        "Z": Given(ranks.bytes_per_second, ranks.how),
    }


def axis_group(placed: Placed, axis: str) -> Group:
    """The ranks of one axis of the role's layout. Expert parallel ranks are neighbours (Megatron Core with expert
    tensor parallelism of 1)."""
    layout = placed.layout
    if axis == "ep":
        return group_of_ranks(placed, layout.ep)
    stride = 1
    for each in AXES:
        if each == axis:
            break
        stride *= getattr(layout, each)
    return group_of_ranks(placed, getattr(layout, axis), stride)


def group_of_ranks(placed: Placed, size: int, stride: int = 1) -> Group:
    """`size` ranks, each `stride` after the last, in the pool's order of devices."""
    linked = placed.linked
    inside = max(1, min(size, linked // stride)) if linked < placed.count else size
    key = ("ranks", size, inside)
    found: Group | None = placed.kept.get(key)
    if found is None:
        found = placed.kept[key] = _group_of(placed, size, inside)
    return found


def _group_of(placed: Placed, size: int, inside: int) -> Group:
    device, achieved = placed.device, shares(placed)
    return _group(
        size,
        inside,
        device.name,
        device.link_bytes_per_second * achieved.link,
        placed.group.network_bytes_per_second * achieved.network,
        device.link_seconds * achieved.link_latency,
        placed.group.network_seconds * achieved.network_latency,
    )


@lru_cache(maxsize=4096)
def _group(
    size: int, inside: int, name: str, link: float, network: float, link_seconds: float, network_seconds: float
) -> Group:
    """Between nodes each rank's card carries its own ring, so a node's ranks together, at most the device link."""
    nodes = ceil(size / inside)
    between = network * inside
    rate, how = link, f"device link of {name}, as achieved"
    if nodes > 1 and between < link:
        rate, how = between, f"{inside} network cards at a time, as achieved"
    hops = ceil(log2(inside)) * link_seconds + ceil(log2(nodes)) * network_seconds
    return Group(size, inside, rate, network, link, hops, how)
