"""What a device and its links achieve of their peak figures, and fixed costs. All assumed until a profile measures it.

Sources of the orders of magnitude: published FSDP and Megatron runs on A100 and H100 reach 40 to 55 % of bf16 peak in
training (Llama 3 herd of models, arXiv:2407.21783, table 4: 38 to 43 %); decode kernels reach 60 to 80 % of memory
bandwidth; NCCL reaches 70 to 90 % of a link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowrl.machine.local import LOCAL
from flowrl.placement.cost.ledger import Given
from flowrl.placement.cost.placed import Placed


@dataclass(frozen=True, slots=True)
class Shares:
    """Achieved shares of peak, and seconds that do not depend on size."""

    train: float
    forward: float
    decode: float
    link: float
    layer_seconds: float
    """Of launching one layer's kernels, forward and backward."""
    decode_layer_seconds: float
    """Of one layer in one decode step."""
    decode_step_seconds: float


GPU = Shares(
    train=0.42,
    forward=0.5,
    decode=0.65,
    link=0.75,
    layer_seconds=3e-4,
    decode_layer_seconds=2e-5,
    decode_step_seconds=2e-3,
)
CPU = Shares(
    train=0.7,
    forward=0.7,
    decode=0.7,
    link=0.7,
    layer_seconds=2e-3,
    decode_layer_seconds=5e-4,
    decode_step_seconds=1e-3,
)
DISK_BYTES_PER_SECOND = 1e9
SYNC_SECONDS = 0.02
"""Of one hand-over of weights beside its bytes: a lock, a cache reset."""

PROFILE: Mapping[str, object] = {
    "gpu": GPU,
    "cpu": CPU,
    "disk_bytes_per_second": DISK_BYTES_PER_SECOND,
    "sync_seconds": SYNC_SECONDS,
}
"""Everything that `digests.profile` of a plan is made from."""


def shares(placed: Placed) -> Shares:
    return CPU if placed.device.is_cpu else GPU


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
        "X": Given(flops, f"{getattr(achieved, share):.0%} of {catalogue} bf16 peak (assumed share)"),
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
