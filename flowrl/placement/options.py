"""Which roles may share which devices: the candidates that placement evaluates, in a fixed order.

Takes a graph, a cluster and a checked request; gives Options. Knows no memory and no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from flowrl.graph.graph import EdgeKind, Graph, Kind
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.local import LOCAL
from flowrl.placement.checks.request import size
from flowrl.placement.cost.placed import needs_devices, sides
from flowrl.placement.devices import allocate
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
    apart = (*request.apart, *sides(graph))
    if request.mode is Mode.POOLS:
        found = list(_explicit(roles, cluster, request, apart))
    else:
        found = [
            *(_colocated(roles, cluster, request) if request.mode is not Mode.DISAGGREGATED else ()),
            *(_side_by_side(graph, roles, cluster) if request.mode is Mode.AUTO else ()),
            *(_splits(graph, roles, cluster) if _may_split(cluster, request) else ()),
        ]
    return [option for option in found if _allowed(option, request, apart)]


def _may_split(cluster: Cluster, request: PlacementRequest) -> bool:
    """On a CPU `auto` takes one process with all cores: splitting them gains nothing."""
    is_cpu = all(group.device.is_cpu for group in cluster.groups)
    return request.mode is Mode.DISAGGREGATED or (request.mode is Mode.AUTO and not is_cpu)


def _allowed(option: Option, request: PlacementRequest, apart: Sequence[Sequence[str]]) -> bool:
    home = {role: pool.name for pool in option.pools for role in pool.roles}
    if any(home.get(role, pool) != pool for role, pool in request.pin.items()):
        return False
    return _keeps(home, apart)


def _keeps(home: dict[str, str], apart: Sequence[Sequence[str]]) -> bool:
    homes = [[home[role] for role in group if role in home] for group in apart]
    return all(len(set(pools)) == len(pools) for pools in homes)


def _colocated(roles: tuple[str, ...], cluster: Cluster, request: PlacementRequest) -> Iterator[Option]:
    for group in cluster.groups:
        one = group.device.is_cpu and (request.mode is Mode.AUTO or cluster.name == LOCAL)
        count = 1 if one else size(group)
        (devices,) = allocate(cluster, [(group.name, count)])
        where = f" on {group.name}" if len(cluster.groups) > 1 else ""
        label = "one process on the CPU" if one else f"colocated: {count} device{'' if count == 1 else 's'}{where}"
        yield Option(label, (Draft("all", devices, group, roles),))


def _side_by_side(graph: Graph, roles: tuple[str, ...], cluster: Cluster) -> Iterator[Option]:
    """A pool for each side of an interaction, with the trainers whose weights it takes; other roles go to the first."""
    for side in sides(graph)[:1]:
        for group in cluster.groups:
            count = 1 if group.device.is_cpu else size(group) // len(side)
            if count < 1 or count * len(side) > size(group):
                continue
            homes = {role: _side_of(graph, role, side) for role in roles}
            devices = allocate(cluster, [(group.name, count)] * len(side))
            drafts = tuple(
                Draft(name, taken, group, tuple(role for role in roles if homes[role] == name))
                for name, taken in zip(side, devices, strict=True)
            )
            where = f" on {group.name}" if len(cluster.groups) > 1 else ""
            yield Option(f"side by side: {len(side)} pools of {count}{where}", drafts)


def _side_of(graph: Graph, role: str, side: tuple[str, ...]) -> str:
    if role in side:
        return role
    taken = (edge.target for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.source == role)
    return next((name for name in taken if name in side), side[0])


def _splits(graph: Graph, roles: tuple[str, ...], cluster: Cluster) -> Iterator[Option]:
    """Generators on devices of their own; each side of an interaction in a pool of its name."""
    rollout = tuple(name for name in roles if graph.role(name).kind is Kind.GENERATOR)
    train = tuple(name for name in roles if name not in rollout)
    if not rollout or not train:
        return
    parts = _rollout_parts(graph, rollout)
    for group in cluster.groups:
        for count in _rollout_sizes(group):
            if count % len(parts) == 0:
                yield _split(cluster, (group, count, parts), (group, size(group) - count, train))
    for one, other in product(cluster.groups, repeat=2):
        if one is not other and size(one) % len(parts) == 0:
            yield _split(cluster, (one, size(one), parts), (other, size(other), train))


def _rollout_parts(graph: Graph, rollout: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Pools of the generators, by name: one, unless some interact."""
    for side in sides(graph)[:1]:
        rest = tuple(name for name in rollout if name not in side)
        return {name: (name, *rest) if place == 0 else (name,) for place, name in enumerate(side)}
    return {"rollout": rollout}


def _split(
    cluster: Cluster,
    rollout: tuple[NodeGroup, int, dict[str, tuple[str, ...]]],
    train: tuple[NodeGroup, int, tuple[str, ...]],
) -> Option:
    group, count, parts = rollout
    pools = {name: (group, count // len(parts), roles) for name, roles in parts.items()} | {"train": train}
    devices = allocate(cluster, [(where.name, each) for where, each, _ in pools.values()])
    drafts = tuple(
        Draft(name, taken, where, roles)
        for (name, (where, _, roles)), taken in zip(pools.items(), devices, strict=True)
    )
    where = "" if len(cluster.groups) == 1 else f" (rollout on {group.name}, train on {train[0].name})"
    return Option(f"disaggregated: {count} rollout, {train[1]} train{where}", drafts)


def _rollout_sizes(group: NodeGroup) -> list[int]:
    """Whole nodes where there are several, else any number of devices; evenly thinned out to MOST_SPLITS."""
    unit = group.devices_per_node if group.nodes > 1 else 1
    counts = list(range(unit, size(group), unit))
    if len(counts) <= MOST_SPLITS:
        return counts
    return sorted({counts[round(i * (len(counts) - 1) / (MOST_SPLITS - 1))] for i in range(MOST_SPLITS)})


def _explicit(
    roles: tuple[str, ...], cluster: Cluster, request: PlacementRequest, apart: Sequence[Sequence[str]]
) -> Iterator[Option]:
    """The pools as written. A role in none of them goes to each in turn: one option per way, the first of those that
    keep `apart`."""
    named = {role for pool in request.pools for role in pool.roles}
    free = [role for role in roles if role not in named]
    names = [pool.name for pool in request.pools]
    ways = [[request.pin[role]] if role in request.pin else names for role in free]
    groups = {group.name: group for group in cluster.groups}
    wanted = [(pool.group or cluster.groups[0].name, pool.gpus) for pool in request.pools]
    devices = allocate(cluster, wanted)
    written = {role: pool.name for pool in request.pools for role in pool.roles}
    allowed = (way for way in product(*ways) if _keeps(written | dict(zip(free, way, strict=True)), apart))
    for way in islice(allowed, MOST_ASSIGNMENTS):
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
