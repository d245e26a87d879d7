"""Ways to share devices that other systems have as defaults or in their examples, at the sizes that people write.

A search that cannot prove its best in little work settles each of them as it is written and then starts from it, so a
plan is never worse than one of these. Takes Ways; gives (pools, sizes). Knows no memory and no time.

Sources: verl (all roles on all devices), OpenRLHF (`train_ppo_ray`: GPUs of its own for each model, of equal sizes or
of half for those that do not train; actor with reference, critic with reward, engines alone), ROLL (`device_mapping` of
its examples: judges on a quarter, engines on a third or a fifth of the devices).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowrl.graph.graph import EdgeKind, Kind
from flowrl.machine.cluster import NodeGroup
from flowrl.placement.request import Mode
from flowrl.placement.search.familiar import Way, keeps
from flowrl.placement.search.sizes import is_thinned, sizes_of
from flowrl.placement.search.ways import Part, Ways, group_size

Shares = tuple[tuple[tuple[str, ...], int], ...]
"""Pools, each with its share of the devices."""


def published(ways: Ways) -> list[Way]:
    """Those that the request allows, none twice."""
    if ways.request.mode is not Mode.AUTO:
        return []
    found: dict[Way, None] = {}
    for group in ways.groups.values():
        if group.device.is_cpu:
            continue
        for shares in _shares(ways):
            found.update((way, None) for way in _sized(ways, shares, group))
        found.update((way, None) for way in _beside(ways, group))
    return [way for way in found if keeps(ways, way[0])]


def _shares(ways: Ways) -> Iterator[Shares]:
    kinds = {name: ways.graph.role(name).kind for name in ways.roles}
    engines = tuple(name for name in ways.roles if kinds[name] is Kind.GENERATOR)
    others = tuple(name for name in ways.roles if name not in engines)
    trains = {name for name in ways.roles if name in engines or ways.graph.role(name).trainable}
    judges = tuple(name for name in others if kinds[name] is Kind.REWARD)
    values = tuple(name for name in others if name in judges or _is_critic(ways, name))
    actors = tuple(name for name in others if name not in values)
    yield ((ways.roles, 1),)
    yield tuple(((name,), 1) for name in ways.roles)
    yield tuple(((name,), len(others) if name in engines else 1) for name in ways.roles)
    yield tuple(((name,), 2 if name in trains else 1) for name in ways.roles)
    yield ((engines, 1), (actors, 1), (values, 1))
    yield ((tuple(name for name in ways.roles if name not in judges), 3), (judges, 1))
    yield ((tuple(name for name in others if name not in judges), 2), (engines, 1), (judges, 1))
    yield ((others, 2), (engines, 1))
    yield ((others, 4), (engines, 1))


def _is_critic(ways: Ways, name: str) -> bool:
    """A trainer whose weights nobody takes."""
    taken = (edge.source for edge in ways.graph.edges if edge.kind is EdgeKind.WEIGHTS)
    return ways.graph.role(name).trainable and all(source.split(".")[0] != name for source in taken)


def _sized(ways: Ways, shares: Shares, group: NodeGroup) -> Iterator[Way]:
    """Of about these shares: within a node a power of two, above it whole nodes. Nothing if there are too few."""
    mine = [(roles, share) for roles, share in shares if roles]
    whole = sum(share for _, share in mine)
    sizes = [_even(group_size(group) * share // whole, group.devices_per_node) for _, share in mine]
    if all(sizes):
        yield _way(ways, [roles for roles, _ in mine], sizes, group)


def _beside(ways: Ways, group: NodeGroup) -> Iterator[Way]:
    """Engines on some nodes, all others on the rest; of one node every part."""
    engines = tuple(name for name in ways.roles if ways.graph.role(name).kind is Kind.GENERATOR)
    others = tuple(name for name in ways.roles if name not in engines)
    whole, unit = group_size(group), group.devices_per_node if group.nodes > 1 else 1
    counts: Sequence[int] = range(unit, whole, unit)
    if is_thinned(group):
        counts = [count for count in sizes_of(group) if count < whole]
    if engines and others:
        yield from (_way(ways, [engines, others], [count, whole - count], group) for count in counts)


def _way(ways: Ways, pools: Sequence[tuple[str, ...]], sizes: Sequence[int], group: NodeGroup) -> Way:
    """In the order in which pools are named."""
    size_of = {roles[0]: size for roles, size in zip(pools, sizes, strict=True)}
    parts = ways.in_order([Part(roles, group.name) for roles in pools])
    return parts, tuple(next(size_of[role] for role in part.roles if role in size_of) for part in parts)


def _even(count: int, node: int) -> int:
    if count >= node:
        return count - count % node
    return 1 << count.bit_length() - 1 if count else 0
