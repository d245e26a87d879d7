"""Which roles may share which devices: the candidates that placement evaluates, in a fixed order.

Takes a graph, a cluster and a checked request; gives Options. Knows no memory and no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from flowrl.graph.graph import Graph, Kind
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.local import LOCAL
from flowrl.placement.checks import size
from flowrl.placement.devices import allocate
from flowrl.placement.placed import needs_devices
from flowrl.placement.request import LayoutRequest, Mode, PlacementRequest

MOST_SPLITS = 15
MOST_ASSIGNMENTS = 64


@dataclass(frozen=True, slots=True)
class Draft:
    """A pool before layouts are chosen."""

    name: str
    devices: tuple[str, ...]
    group: NodeGroup
    roles: tuple[str, ...]
    layouts: dict[str, LayoutRequest] = field(default_factory=dict[str, LayoutRequest])


@dataclass(frozen=True, slots=True)
class Option:
    label: str
    pools: tuple[Draft, ...]


def options(graph: Graph, cluster: Cluster, request: PlacementRequest) -> list[Option]:
    """Every candidate; the first of equals wins. Empty if the cluster is too small or wishes exclude each other."""
    roles = tuple(role.name for role in graph.roles if needs_devices(role))
    if not roles:
        return [Option("host only", ())]
    if request.mode is Mode.POOLS:
        found = list(_explicit(roles, cluster, request))
    else:
        found = [
            *(_colocated(roles, cluster, request) if request.mode is not Mode.DISAGGREGATED else ()),
            *(_splits(graph, roles, cluster) if _may_split(cluster, request) else ()),
        ]
    return [option for option in found if _allowed(option, request)]


def _may_split(cluster: Cluster, request: PlacementRequest) -> bool:
    """On a CPU `auto` takes one process with all cores: splitting them gains nothing."""
    is_cpu = all(group.device.is_cpu for group in cluster.groups)
    return request.mode is Mode.DISAGGREGATED or (request.mode is Mode.AUTO and not is_cpu)


def _allowed(option: Option, request: PlacementRequest) -> bool:
    home = {role: pool.name for pool in option.pools for role in pool.roles}
    if any(home.get(role, pool) != pool for role, pool in request.pin.items()):
        return False
    homes = [[home[role] for role in group if role in home] for group in request.apart]
    return all(len(set(pools)) == len(pools) for pools in homes)


def _colocated(roles: tuple[str, ...], cluster: Cluster, request: PlacementRequest) -> Iterator[Option]:
    for group in cluster.groups:
        one = group.device.is_cpu and (request.mode is Mode.AUTO or cluster.name == LOCAL)
        count = 1 if one else size(group)
        (devices,) = allocate(cluster, [(group.name, count)])
        where = f" on {group.name}" if len(cluster.groups) > 1 else ""
        label = "one process on the CPU" if one else f"colocated: {count} device{'' if count == 1 else 's'}{where}"
        yield Option(label, (Draft("all", devices, group, roles),))


def _splits(graph: Graph, roles: tuple[str, ...], cluster: Cluster) -> Iterator[Option]:
    rollout = tuple(name for name in roles if graph.role(name).kind is Kind.GENERATOR)
    train = tuple(name for name in roles if name not in rollout)
    if not rollout or not train:
        return
    for group in cluster.groups:
        for count in _rollout_sizes(group):
            yield _split(cluster, (group, count, rollout), (group, size(group) - count, train))
    for one, other in product(cluster.groups, repeat=2):
        if one is not other:
            yield _split(cluster, (one, size(one), rollout), (other, size(other), train))


def _split(
    cluster: Cluster, rollout: tuple[NodeGroup, int, tuple[str, ...]], train: tuple[NodeGroup, int, tuple[str, ...]]
) -> Option:
    parts = {"rollout": rollout, "train": train}
    devices = allocate(cluster, [(group.name, count) for group, count, _ in parts.values()])
    drafts = tuple(
        Draft(name, taken, group, roles)
        for (name, (group, _, roles)), taken in zip(parts.items(), devices, strict=True)
    )
    return Option(f"disaggregated: {rollout[1]} rollout, {train[1]} train", drafts)


def _rollout_sizes(group: NodeGroup) -> list[int]:
    """Whole nodes where there are several, else any number of devices; evenly thinned out to MOST_SPLITS."""
    unit = group.devices_per_node if group.nodes > 1 else 1
    counts = list(range(unit, size(group), unit))
    if len(counts) <= MOST_SPLITS:
        return counts
    return sorted({counts[round(i * (len(counts) - 1) / (MOST_SPLITS - 1))] for i in range(MOST_SPLITS)})


def _explicit(roles: tuple[str, ...], cluster: Cluster, request: PlacementRequest) -> Iterator[Option]:
    """The pools as written. A role in none of them goes to each in turn: one option per way."""
    named = {role for pool in request.pools for role in pool.roles}
    free = [role for role in roles if role not in named]
    names = [pool.name for pool in request.pools]
    ways = [[request.pin[role]] if role in request.pin else names for role in free]
    groups = {group.name: group for group in cluster.groups}
    wanted = [(pool.group or cluster.groups[0].name, pool.gpus) for pool in request.pools]
    devices = allocate(cluster, wanted)
    for number, way in enumerate(product(*ways)):
        if number == MOST_ASSIGNMENTS:
            return
        homes = dict(zip(free, way, strict=True))
        drafts = tuple(
            Draft(
                pool.name,
                taken,
                groups[name],
                tuple(role for role in roles if role in pool.roles or homes.get(role) == pool.name),
                dict(pool.layouts),
            )
            for pool, taken, (name, _) in zip(request.pools, devices, wanted, strict=True)
        )
        text = "; ".join(f"{role} in {pool}" for role, pool in homes.items())
        yield Option(text or "the pools as written", tuple(draft for draft in drafts if draft.roles))
