"""Peak memory of every device pool, per phase of its work. Takes a graph and pools; gives Memory values that add up.

Phases: `load ROLE` · `start ROLE` (an engine against its own share of the device) · each op by its id, validation's
too · the steps of each weights edge (sync.py). In each phase the roles of the pool that are not offloaded hold what
they hold (role.py), and engines that sleep leave a part behind (phases.py). Devices that do the same are one entry:
`node0/0 .. node1/7`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.profile import Profile
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.ledger import Given, bytes_of, line
from flowrl.placement.cost.placed import Placed, group_of, placed_roles
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.engine import is_engine
from flowrl.placement.memory.host import host_memory
from flowrl.placement.memory.phases import phases, stage_groups
from flowrl.placement.memory.role import RoleMemory
from flowrl.placement.memory.training import Lines
from flowrl.placement.request import PlacementRequest
from flowrl.plan.plan import Decision, Memory, Pool


def memory(
    graph: Graph,
    pools: Sequence[Pool],
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    *,
    request: PlacementRequest | None = None,
    decisions: Sequence[Decision] = (),
    work: Workload | None = None,
) -> tuple[Memory, ...]:
    """Peaks of all device pools in the order of the pools, and of a host's memory where roles are offloaded to it.

    `request` gives origins and assumptions, `decisions` the ids that origins name; `work` saves counting again.
    """
    request = request or PlacementRequest()
    everyone = [
        (pool, placed_roles(graph, pool, shapes, cluster, request, decisions)) for pool in pools if pool.devices
    ]
    work = work or Workload(graph, shapes, request)
    on_devices = (
        entry
        for pool, placed in everyone
        for entry in pool_memory(work, pool, placed, limit_bytes(pool, pools, cluster))
    )
    return (*on_devices, *host_memory(everyone, cluster, work))


def pool_memory(work: Workload, pool: Pool, placed: tuple[Placed, ...], limit: int) -> tuple[Memory, ...]:
    """The phases of one pool on its devices."""
    return tuple(_phases(work, pool, placed, limit))


def limit_bytes(pool: Pool, pools: Sequence[Pool], cluster: Cluster) -> int:
    """Memory of one device. Slots of a CPU host share its memory: the slots in use on a node have equal parts."""
    group = group_of(pool, cluster)
    if not group.device.is_cpu:
        return group.device.memory_bytes
    node = pool.devices[0].rsplit("/", 1)[0]
    used = sum(device.rsplit("/", 1)[0] == node for other in pools for device in other.devices)
    return group.host_memory_bytes // max(1, used)


def _phases(work: Workload, pool: Pool, placed: tuple[Placed, ...], limit: int) -> Iterator[Memory]:
    sides = [RoleMemory(work, each, limit) for each in placed]
    is_cpu = any(each.device.is_cpu for each in placed)
    counted = sum(is_cpu or not is_engine(each) for each in placed)
    always = overhead_lines(work.request.profile, pool, counted, limit, is_cpu=is_cpu)
    for first, end, stages in stage_groups(tuple(side.pp for side in sides), len(pool.devices)):
        by_role = {side.name: stage for side, stage in zip(sides, stages, strict=True)}
        for phase, lines, own_limit in phases(work.graph, sides, by_role, always, []):
            yield Memory(
                pool=pool.name,
                device=devices_text(pool.devices, first, end),
                phase=phase,
                peak_bytes=bytes_of(lines),
                limit_bytes=limit if own_limit is None else own_limit,
                lines=tuple(lines),
            )


def devices_text(devices: Sequence[str], first: int, end: int) -> str:
    """Devices that do the same."""
    return devices[first] if end - first == 1 else f"{devices[first]} .. {devices[end - 1]}"


def overhead_lines(profile: Profile, pool: Pool, counted: int, limit: int, *, is_cpu: bool) -> Lines:
    """In every phase: processes of the `counted` roles (engines on GPUs have their own lines), and the reserve."""
    known = profile.memory
    process = (
        Given(known.cpu_process_bytes, f"python with torch: {known.source}")
        if is_cpu
        else Given(known.context_bytes, f"CUDA context, cuBLAS, NCCL: {known.source}")
    )
    inputs = {
        "r": Given(known.reserve_share, f"fragmentation: {known.source}"),
        "M": Given(limit, f"catalogue {pool.device}"),
        "C": process,
        "roles": Given(counted, f"pool {pool.name}"),
    }
    processes = [line("processes", None, "bytes", "C*roles", inputs)] if counted else []
    return [*processes, line("reserve for fragmentation", None, "bytes", "r*M", inputs)]
