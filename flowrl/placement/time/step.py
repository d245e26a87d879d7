"""Seconds of one step in the steady state, to compare placements by: equal to what the plan's program takes.

The maximum cycle ratio of the event graph that a placement's program has (event_graph.py), over modelled seconds: each
pool does one thing at a time in a fixed order, the members of an interaction start together, roles that leave their
devices are moved around each visit, and a weights edge carries 1 + lag versions. Validation, checkpoints and warm-ups
are no part of it, as they are none of the simulated step.

It rises with the seconds of every op, move and hand-over, and with every role that joins a pool: each is on the arcs of
circles, whose number grows, and no circle gets shorter. So a search may leave roles out and get a bound. Of a flow with
more roles on the host than it has slots it is a lower bound of what the simulator says (execution/expand.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowrl.graph.graph import Edge, EdgeKind, Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import PlacementRequest
from flowrl.placement.time.event_graph import FREE, Spot
from flowrl.placement.time.fast_step import NO_SECONDS, StepEvaluator
from flowrl.plan.plan import Pool


def step_seconds(
    graph: Graph,
    pools: Sequence[Pool],
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    request: PlacementRequest,
    costs: RoleCosts | None = None,
) -> float:
    """Seconds of one step in the steady state, as the program of `pools` takes. `costs` saves counting again."""
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
    step, least = StepEvaluator(costs), least or {}
    firing, number = step.host(), dict[str, int]()
    spots, moves = [Spot(FREE)] * len(step.roles), [NO_SECONDS] * len(step.roles)
    for at, role in enumerate(step.roles):
        home = placed.get(role)
        if home is not None:
            spots[at] = step.spot(home.cost, number.setdefault(home.site.pool.name, len(number)))
            moves[at] = step.moves(home.cost)
        for place, seconds in step.of_role(home.cost) if home is not None else step.of_least(role, least.get(role, {})):
            firing[place] = seconds
    synced = [hand_over(costs, edge, placed) for edge in step.edges]
    return step.seconds(step.in_step(firing, spots), spots, moves, synced)


def hand_over(costs: RoleCosts, edge: Edge, placed: Mapping[str, Home]) -> tuple[float, float]:
    """Seconds of a weights edge at its two ends; nothing where one of them is not placed, or holds no weights."""
    source, target = (placed.get(end.split(".")[0]) for end in (edge.source, edge.target))
    if source is None or target is None or not source.cost.has_model:
        return NO_SECONDS
    return costs.hand_over(edge, (source.cost, source.site), (target.cost, target.site))


def lag(graph: Graph) -> int:
    """Steps by which generation may run ahead on every weights edge."""
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.every_updates is None]
    return min((edge.tokens - 1 for edge in edges), default=graph.schedule.max_lag)
