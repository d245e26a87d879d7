"""A quick estimate of a step's time, to compare placements; the simulator's is the one that a plan prints.

Ops are scheduled greedily in data order, each pool doing one thing at a time, the members of an interaction together.
With max_lag k, the bound is the larger of the busiest pool and the chain divided by 1 + k (the maximum cycle ratio with
1 + k tokens on the weights edge).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx

from flowrl.graph.graph import EdgeKind, Graph, Op
from flowrl.graph.interactions import interactions
from flowrl.graph.once import once
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import PlacementRequest
from flowrl.plan.plan import Pool


def step_seconds(
    graph: Graph,
    pools: Sequence[Pool],
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    request: PlacementRequest,
    costs: RoleCosts | None = None,
) -> float:
    """Seconds of one step in the steady state, validation counted at its share. `costs` saves counting again."""
    costs = costs or RoleCosts(Workload(graph, shapes, request), cluster)
    return steady_seconds(costs, placed_costs(costs, pools))


@dataclass(frozen=True, slots=True)
class Home:
    """A role that is placed: its cost, and the devices that it shares with others of the same site."""

    cost: RoleCost
    site: Site


def placed_costs(costs: RoleCosts, pools: Sequence[Pool]) -> dict[str, Home]:
    """Every role on devices, by name."""
    found: dict[str, Home] = {}
    for pool in pools:
        if pool.devices:
            site = costs.site(pool, pools)
            found |= {cost.name: Home(cost, site) for cost in costs.pool_costs(pool.roles, site)}
    return found


def steady_seconds(
    costs: RoleCosts,
    placed: Mapping[str, Home],
    least: Mapping[str, Mapping[str, float]] | None = None,
) -> float:
    """Of the roles that are placed. `least`: seconds of a firing of each op, by role, for roles on devices that are not
    placed yet; then it is a bound: no placement of them that does not take less for any op makes a shorter step. What a
    role that is not placed adds to a pool, waits for or hands over is counted as nothing.
    """
    least = least or {}
    seconds = _op_seconds(costs, placed, least)
    chain = _chain(costs.graph, seconds, placed) + _sync_seconds(costs, placed)
    load: dict[str, float] = {}
    for op in costs.graph.ops:
        if op.role in placed:
            name = placed[op.role].site.pool.name
            load[name] = load.get(name, 0.0) + seconds[op.id]
    alone = (sum(seconds[op.id] for op in costs.graph.ops if op.role == role) for role in least)
    return max(chain / (1 + lag(costs.graph)), max(load.values(), default=0.0), max(alone, default=0.0))


def lag(graph: Graph) -> int:
    """Steps by which generation may run ahead on every weights edge."""
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.every_updates is None]
    return min((edge.tokens - 1 for edge in edges), default=graph.schedule.max_lag)


def _chain(graph: Graph, seconds: Mapping[str, float], placed: Mapping[str, Home]) -> float:
    """When the last op ends."""
    busy: dict[str, float] = {}
    ready: dict[str, float] = {}
    for group, sources in op_order(graph):
        here = [placed[role].site.pool.name for role in (graph.op(id).role for id in group) if role in placed]
        start = max([*(ready[source] for source in sources), *(busy.get(pool, 0.0) for pool in here)], default=0.0)
        end = start + max(seconds[id] for id in group)
        ready |= dict.fromkeys(group, end)
        busy |= dict.fromkeys(here, end)
    return max(ready.values(), default=0.0)


def _op_seconds(
    costs: RoleCosts, placed: Mapping[str, Home], least: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Of each op in one step, moves of its role included."""

    def own(op: Op) -> float:
        if op.role in placed:
            return placed[op.role].cost.seconds[op.id]
        return least[op.role][op.id] if op.role in least else costs.host_seconds(op)

    found: dict[str, float] = {}
    for op in costs.graph.ops:
        members = costs.work.interaction(op)
        talking = [each for each in members if each.role in placed or each.role in least]
        if members:
            is_bound = any(member.role in least for member in talking)
            together = costs.together_at_least if is_bound else costs.together
            each = together(op, len(talking), sum(own(member) for member in talking))
        else:
            each = own(op)
        here = placed.get(op.role)
        moves = 2 * here.cost.move_seconds if here is not None and here.cost.offloaded else 0.0
        found[op.id] = (each * op.firings + moves) / max(1, op.every_steps)
    return found


def _sync_seconds(costs: RoleCosts, placed: Mapping[str, Home]) -> float:
    total = 0.0
    for edge in (each for each in costs.graph.edges if each.kind is EdgeKind.WEIGHTS):
        source, target = (placed.get(end.split(".")[0]) for end in (edge.source, edge.target))
        if source is not None and target is not None and source.cost.has_model:
            total += sum(costs.hand_over(edge, (source.cost, source.site), (target.cost, target.site)))
    return total


@once
def op_order(graph: Graph) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
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
