"""A quick estimate of a step's time, to compare placements; the simulator's is the one that a plan prints.

Ops are scheduled greedily in data order, each pool doing one thing at a time, the members of an interaction together.
With max_lag k, the bound is the larger of the busiest pool and the chain divided by 1 + k (the maximum cycle ratio with
1 + k tokens on the weights edge).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx

from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.interactions import interactions
from flowrl.graph.once import once
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.placed import Placed, placed_roles
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import PlacementRequest
from flowrl.placement.sync.edge import sync_of
from flowrl.placement.time.ops import Lines, OpTime
from flowrl.plan.plan import Pool


def step_seconds(
    graph: Graph,
    pools: Sequence[Pool],
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    request: PlacementRequest,
    work: Workload | None = None,
) -> float:
    """Seconds of one step in the steady state, validation counted at its share. `work` saves counting again."""
    times = OpTime(work or Workload(graph, shapes, request), pools, cluster)
    placed = {
        each.role.name: each
        for pool in pools
        if pool.devices
        for each in placed_roles(graph, pool, shapes, cluster, request)
    }
    seconds = {op.id: _op_seconds(op, times, placed) for op in graph.ops}
    busy: dict[str, float] = {}
    ready: dict[str, float] = {}
    for group, sources in _order(graph):
        here = [placed[graph.op(id).role].pool.name for id in group if graph.op(id).role in placed]
        start = max([*(ready[source] for source in sources), *(busy.get(pool, 0.0) for pool in here)], default=0.0)
        end = start + max(seconds[id] for id in group)
        ready |= dict.fromkeys(group, end)
        busy |= dict.fromkeys(here, end)
    chain = max(ready.values(), default=0.0) + _sync_seconds(graph, placed)
    load: dict[str, float] = {}
    for op in graph.ops:
        if op.role in placed:
            name = placed[op.role].pool.name
            load[name] = load.get(name, 0.0) + seconds[op.id]
    return max(chain / (1 + _lag(graph)), max(load.values(), default=0.0))


def _lag(graph: Graph) -> int:
    """Steps by which generation may run ahead on every weights edge."""
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.every_updates is None]
    return min((edge.tokens - 1 for edge in edges), default=graph.schedule.max_lag)


def _op_seconds(op: Op, times: OpTime, placed: Mapping[str, Placed]) -> float:
    here = placed.get(op.role)
    if times.work.interaction(op):
        lines = times.together(op, placed)
    else:
        lines = _on_host(op, times) if here is None else times.on_devices(here, op)
    moves = 2 * _sum(times.move_state(here)) if here is not None and here.offloaded and here.shape else 0.0
    return (_sum(lines) * op.firings + moves) / max(1, op.every_steps)


def _on_host(op: Op, times: OpTime) -> Lines:
    """Equal for all candidates of one search, whose work they share."""
    known = times.work.lines
    if ("host", op.id) not in known:
        known["host", op.id] = times.host(op)
    return known["host", op.id]


def _sync_seconds(graph: Graph, placed: Mapping[str, Placed]) -> float:
    total = 0.0
    for edge in (each for each in graph.edges if each.kind is EdgeKind.WEIGHTS):
        source, target = (placed.get(end.split(".")[0]) for end in (edge.source, edge.target))
        if source is not None and target is not None and source.shape is not None:
            total += sync_of(source, target, edge.transport).seconds
    return total


def _sum(lines: Lines) -> float:
    return sum(line.value for line in lines)


@once
def _order(graph: Graph) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Ops in data order, the members of an interaction together, each time with the ops whose data they read."""
    members = {id: group for group in interactions(graph) for id in group}
    digraph: nx.DiGraph[tuple[str, ...]] = nx.DiGraph()
    digraph.add_nodes_from(members.get(op.id, (op.id,)) for op in graph.ops)
    read: dict[tuple[str, ...], list[str]] = {}
    for edge in graph.edges:
        source, target = (members.get(end, (end,)) for end in (edge.source, edge.target))
        if edge.kind in (EdgeKind.DATA, EdgeKind.STATE) and edge.tokens == 0:
            digraph.add_edge(source, target)
        if edge.kind is EdgeKind.DATA:
            read.setdefault(target, []).append(edge.source)
    return tuple((group, tuple(read.get(group, ()))) for group in nx.topological_sort(digraph))
