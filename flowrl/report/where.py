"""WHERE: each pool's devices on a map of the cluster, and the roles that live there with their layouts."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.placement.devices import device_names
from flowrl.plan.plan import Layout, Pool, RolePlacement, StagePlan
from flowrl.report.numbers import count
from flowrl.report.page import joined, shorten

_NODE_BY_NODE = 8
"""More nodes than this are drawn with one block each."""


def where(stage: StagePlan, cluster: Cluster, width: int) -> list[str]:
    """For each pool a line with its map, then a line per role; the host's roles on one line."""
    lines: list[str] = []
    names = max((len(pool.name) for pool in stage.pools), default=0)
    for pool in stage.pools:
        if not pool.devices:
            lines += _host(stage.graph, pool, names, width)
            continue
        what = f"{count(len(pool.devices))} × {pool.device}"
        room = width - names - len(what) - 4
        lines.append(shorten(f"{pool.name:<{names}}  {device_map(pool, cluster, room)}  {what}", width))
        lines += [shorten(" " * (names + 2) + row, width) for row in _roles(stage.graph, pool.roles)]
    return lines


def device_map(pool: Pool, cluster: Cluster, room: int) -> str:
    """One block per device, node after node; one per node in a cluster of many nodes, or where `room` columns do not
    hold the others. █ of the pool, ▌ partly, ░ not."""
    own = set(pool.devices)
    nodes = [node for group in cluster.groups for node in device_names(cluster, group)]
    each = " ".join("".join("█" if device in own else "░" for device in node) for node in nodes)
    if len(nodes) > _NODE_BY_NODE or len(each) > room:
        return "".join(_whole(own, node) for node in nodes)
    return each


def _whole(own: set[str], node: Sequence[str]) -> str:
    used = sum(device in own for device in node)
    return "█" if used == len(node) else "▌" if used else "░"


def _roles(graph: Graph, placed: Sequence[RolePlacement]) -> list[str]:
    rows = [
        (p.role, graph.role(p.role).backend or "", layout(p.layout), "offloaded when idle" if p.offloaded else "")
        for p in placed
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows
    ]


def layout(value: Layout) -> str:
    """`dp8 tp2`: what divides the role; `one device` where nothing does."""
    axes = [("dp", value.dp), ("tp", value.tp), ("pp", value.pp), ("cp", value.cp), ("ep", value.ep)]
    return " ".join(f"{name}{size}" for name, size in axes if size > 1) or "one device"


def _host(graph: Graph, pool: Pool, names: int, width: int) -> list[str]:
    roles = [placed.role for placed in pool.roles]
    head = f"{pool.name:<{names}}  "
    parts = joined(roles, width - len(head), separator=", ")
    return [head + parts[0], *(" " * len(head) + part for part in parts[1:])]
