"""The cluster: groups of nodes of one device type, with links. A frozen value that a Plan holds."""

from __future__ import annotations

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device. Rates are peak figures with their source; what is achievable is for the cost model."""

    name: str
    """`H100-80G`, …, or `cpu`: one slot of a CPU host."""
    memory_bytes: int
    bf16_flops_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    """To the other devices of its node, one direction."""
    source: str
    is_cpu: bool = False
    host_bytes_per_second: float = 32e9
    """To the memory of its host, one direction."""
    link_seconds: float = 0.0
    """One hop of a collective between devices of a node, whatever its size."""
    link_domain: int | None = None
    """Devices that links join where they join more than a node; a rack of GB200 is one domain of 72."""
    fp8_flops_per_second: float | None = None
    """Peak in 8 bits, of a device that has it."""


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    device: Device
    nodes: int
    devices_per_node: int
    host_memory_bytes: int
    network_bytes_per_second: float
    """Per device, to other nodes, one direction."""
    network_seconds: float = 0.0
    """One hop of a collective between nodes, whatever its size."""
    host_memory_bytes_per_second: float = 100e9
    """Of a node's host memory, shared by its devices."""
    disk_bytes_per_second: float = 1e9
    """Of a node's local disks, shared by its devices."""
    price_per_gpu_hour: float | None = None
    """In the currency of the flow's author."""

    @property
    def linked_devices(self) -> int:
        """Devices that talk by links and not by the network: those of a node, or of a larger link domain."""
        return max(self.devices_per_node, self.device.link_domain or 0)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """As the user gave it: `local`, `16xH100-80G` or a file."""
    groups: tuple[NodeGroup, ...]

    @property
    def device_count(self) -> int:
        return sum(group.nodes * group.devices_per_node for group in self.groups)
