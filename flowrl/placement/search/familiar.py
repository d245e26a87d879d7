"""Ways to share devices that people know by name: all together, a pool for each side, generators apart from trainers.

A search works them out whatever their bounds, so that a decision can say how they compare; on a CPU they are all that
is tried. Takes Ways; gives (pools, sizes), the first of equals first. Knows no memory and no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from flowrl.graph.graph import EdgeKind, Kind
from flowrl.machine.cluster import NodeGroup
from flowrl.machine.local import LOCAL
from flowrl.placement.cost.placed import sides
from flowrl.placement.request import Mode
from flowrl.placement.search.ways import Part, Ways, group_size

MOST_SPLITS = 15
MOST_SPLITS_OF_MANY = 5
"""Of a group with more than EVERY_DEVICES."""
EVERY_DEVICES = 16

Way = tuple[tuple[Part, ...], tuple[int, ...]]


def familiar(ways: Ways) -> list[Way]:
    """Those that the request allows. Empty if the cluster is too small or wishes exclude each other."""
    mode = ways.request.mode
    found = [
        *(_colocated(ways) if mode is not Mode.DISAGGREGATED else ()),
        *(_side_by_side(ways) if mode is Mode.AUTO else ()),
        *(_splits(ways) if _may_split(ways) else ()),
    ]
    return [(parts, sizes) for parts, sizes in found if keeps(ways, parts)]


def keeps(ways: Ways, parts: Sequence[Part]) -> bool:
    """Whether the request allows a way."""
    joined = all(ways.may_join(role, [r for r in part.roles if r != role]) for part in parts for role in part.roles)
    return joined and ways.allowed(parts)


def _may_split(ways: Ways) -> bool:
    """On a CPU `auto` takes one process with all cores: splitting them gains nothing."""
    is_cpu = all(group.device.is_cpu for group in ways.groups.values())
    return ways.request.mode is Mode.DISAGGREGATED or (ways.request.mode is Mode.AUTO and not is_cpu)


def _colocated(ways: Ways) -> Iterator[Way]:
    for name, group in ways.groups.items():
        one = group.device.is_cpu and (ways.request.mode is Mode.AUTO or ways.cluster.name == LOCAL)
        yield (Part(ways.roles, name),), (1 if one else group_size(group),)


def _side_by_side(ways: Ways) -> Iterator[Way]:
    """A pool for each side of an interaction, with the trainers whose weights it takes; other roles go to the first."""
    for side in sides(ways.graph)[:1]:
        homes = {role: _side_of(ways, role, side) for role in ways.roles}
        for name, group in ways.groups.items():
            count = 1 if group.device.is_cpu else group_size(group) // len(side)
            if count < 1 or count * len(side) > group_size(group):
                continue
            parts = tuple(Part(tuple(role for role in ways.roles if homes[role] == each), name) for each in side)
            yield parts, (count,) * len(side)


def _side_of(ways: Ways, role: str, side: tuple[str, ...]) -> str:
    if role in side:
        return role
    taken = (edge.target for edge in ways.graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.source == role)
    return next((name for name in taken if name in side), side[0])


def _splits(ways: Ways) -> Iterator[Way]:
    """Generators on devices of their own; each side of an interaction in a pool of its own."""
    rollout = tuple(name for name in ways.roles if ways.graph.role(name).kind is Kind.GENERATOR)
    train = tuple(name for name in ways.roles if name not in rollout)
    if not rollout or not train:
        return
    shares = _rollout_parts(ways, rollout)
    for name, group in ways.groups.items():
        for count in _rollout_sizes(group):
            if count % len(shares) == 0:
                rest = group_size(group) - count
                yield _split(shares, name, train, name), (*[count // len(shares)] * len(shares), rest)
    for one, other in product(ways.groups.values(), repeat=2):
        if one is not other and group_size(one) % len(shares) == 0:
            sizes = (*[group_size(one) // len(shares)] * len(shares), group_size(other))
            yield _split(shares, one.name, train, other.name), sizes


def _split(shares: Sequence[tuple[str, ...]], group: str, train: tuple[str, ...], other: str) -> tuple[Part, ...]:
    return (*(Part(roles, group) for roles in shares), Part(train, other))


def _rollout_parts(ways: Ways, rollout: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Pools of the generators: one, unless some interact."""
    for side in sides(ways.graph)[:1]:
        rest = tuple(name for name in rollout if name not in side)
        return [(name, *rest) if place == 0 else (name,) for place, name in enumerate(side)]
    return [rollout]


def _rollout_sizes(group: NodeGroup) -> list[int]:
    """Whole nodes where there are several, else any number of devices; evenly thinned out where there are many."""
    unit = group.devices_per_node if group.nodes > 1 else 1
    counts = list(range(unit, group_size(group), unit))
    most = MOST_SPLITS if group_size(group) <= EVERY_DEVICES else MOST_SPLITS_OF_MANY
    if len(counts) <= most:
        return counts
    return sorted({counts[round(i * (len(counts) - 1) / (most - 1))] for i in range(most)})
