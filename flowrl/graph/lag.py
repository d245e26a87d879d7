"""Lag: how old the weights behind the samples of an update may be.

Takes a graph whose inputs are bound; gives bounds in published versions. Version v of a weights edge is the v-th that
its trainer publishes, 0 the one loaded at the start. The lag of a sample is the newest version published before the
step that trains on it, less the version that made its oldest token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.graph.once import once
from flowrl.graph.params import GenerateParams, UpdateParams
from flowrl.graph.rates import RateGraph, balance_of, step_rates, updates_per_step, versions_per_step
from flowrl.graph.sdf import newest_read, oldest_read


@dataclass(frozen=True, slots=True)
class PathLag:
    """One way of weights into an update: over a `=>` edge into a call of generate, and with its samples to the update.

    All ways from one call of generate to one update have the same lag, so the shortest stands for them.
    """

    update: str
    """Op id."""
    generate: str
    """Op id."""
    path: tuple[str, ...]
    """Ids of the graph's edges, the weights edge first."""
    versions: int
    """The most published versions that a sample may be behind when its step begins. It counts from a sample's oldest
    token: where partial rollouts go on under newer weights, those only make the others younger."""
    drift_minibatches: int
    """The most updates that the op has made since the newest version published before a step when it begins the step's
    last minibatch: the drift inside steps, which is not lag. 0 where the weights are another trainer's."""

    @property
    def edge(self) -> str:
        """Id of the weights edge."""
        return self.path[0]


@once
def path_lags(graph: Graph) -> tuple[PathLag, ...]:
    """The lag of every pair of an update and a call of generate that it trains on, by weights edge; in the order of the
    graph's ops. Needs lowered weights edges (insert_weight_sync) and balanced rates."""
    updates = [op for op in graph.ops if isinstance(op.params, UpdateParams)]
    edges = [e for e in graph.edges if e.kind is EdgeKind.WEIGHTS and updates_per_step(graph, _role(e.source))]
    if not updates or not edges:
        return ()
    rates = step_rates(graph)
    repetitions = balance_of(graph).repetitions
    beyond = _carrying(graph)
    found: list[PathLag] = []
    for update in updates:
        for generate in (op for op in graph.ops if isinstance(op.params, GenerateParams)):
            way = _shortest(generate.id, update.id, beyond)
            if way is None:
                continue
            into = (edge for edge in edges if _role(edge.target) == generate.role)
            found += (_path_lag(graph, rates, repetitions, update, generate, edge, way) for edge in into)
    return tuple(found)


def rollout_of(graph: Graph, op: Op) -> Op | None:
    """The call of generate whose tokens `op` reads, or None."""
    source = next((i.source for i in op.inputs if i.slot in ("tokens", "latents")), None)
    return None if source is None else _generators(graph).get(source)


@once
def _generators(graph: Graph) -> Mapping[str, Op]:
    return {op.id: op for op in graph.ops if op.method == "generate"}


def weights_edge(graph: Graph, source: str, target: str) -> Edge | None:
    """The declared edge that carries the weights of role `source` to role `target`."""
    edges = (e for e in graph.declared if e.kind is EdgeKind.WEIGHTS)
    return next((e for e in edges if e.source == source and e.target == target), None)


def on_policy(graph: Graph, update: Op) -> bool:
    """Whether every sample is made by the very weights that the step's only update starts from: lag 0, published every
    step, one update a step."""
    rollout = rollout_of(graph, update)
    if rollout is None or update.firings != 1 or graph.schedule.partial_rollout:
        return False
    edge = weights_edge(graph, update.role, rollout.role)
    if edge is None or edge.tokens != 1:
        return False
    return edge.every_steps in (None, 1) and edge.every_updates in (None, 1) and not edge.start_step


def versions_in(steps: int, every_steps: int, period: int) -> int:
    """The most publishing steps (1, 1 + every_steps, …) among the `steps` steps before one of the steps 1, 1 + period,
    …"""
    whole, part = divmod(steps, every_steps)
    return whole + (gcd(every_steps, period) - 1 < part)


def _path_lag(
    graph: Graph,
    rates: RateGraph,
    repetitions: Mapping[str, int],
    update: Op,
    generate: Op,
    edge: Edge,
    way: Sequence[Edge],
) -> PathLag:
    behind = _published_since(graph, rates, repetitions, update, generate, edge, way)
    if edge.every_steps is not None:
        behind = versions_in(behind, edge.every_steps, update.every_steps)
    path = (edge.id, *(each.id for each in way))
    return PathLag(update.id, generate.id, path, behind, _drift(graph, update, edge))


def _published_since(
    graph: Graph,
    rates: RateGraph,
    repetitions: Mapping[str, int],
    update: Op,
    generate: Op,
    edge: Edge,
    way: Sequence[Edge],
) -> int:
    """Tokens that the publisher has sent before a step, less the number of the newest one behind the samples that the
    step's first minibatch reads: the sum of the delays along the path."""
    named = {channel.name: channel for channel in rates.channels}
    data = [named[each.id] for each in way if each.id in named]
    weights = [named[edge.id], named[f"receive {edge.id} -> {generate.id}"]]
    step = edge.tokens + 2  # late enough that nothing behind it is of the start
    first = (step - 1) * repetitions[rates.actor_of[update.id]] + 1
    made = newest_read(weights, oldest_read(data, first))
    return (step - 1) * versions_per_step(graph, edge) - made


def _drift(graph: Graph, update: Op, edge: Edge) -> int:
    """Updates after the newest version, before the last minibatch of the step."""
    if _role(edge.source) != update.role:
        return 0
    every, period = edge.every_steps or 1, update.every_steps
    steps = (every - 1) // period + 1
    if edge.start_step:
        before = edge.start_step + -edge.start_step % every  # steps before the one that publishes first
        begun = -(-update.start_step // period)
        steps = max(steps, before // period - begun + 1)
    return steps * updates_per_step(graph, update.role) - 1


def _carrying(graph: Graph) -> dict[str, list[tuple[str, Edge]]]:
    """The ops that rows go on to, with the edge; in an interaction they go both ways."""
    beyond: dict[str, list[tuple[str, Edge]]] = {}
    for edge in graph.edges:
        if edge.kind in (EdgeKind.DATA, EdgeKind.INTERACTION):
            beyond.setdefault(edge.source, []).append((edge.target, edge))
        if edge.kind is EdgeKind.INTERACTION:
            beyond.setdefault(edge.target, []).append((edge.source, edge))
    return beyond


def _shortest(source: str, target: str, beyond: Mapping[str, Sequence[tuple[str, Edge]]]) -> tuple[Edge, ...] | None:
    """The fewest edges from one op to another, the first by name among equals; None where there are none."""
    ways: dict[str, tuple[Edge, ...]] = {source: ()}
    queue = deque([source])
    while queue and target not in ways:
        here = queue.popleft()
        for other, edge in sorted(beyond.get(here, ()), key=lambda step: step[1].id):
            if other not in ways:
                ways[other] = (*ways[here], edge)
                queue.append(other)
    return ways.get(target)


def _role(end: str) -> str:
    """The role at an end of a weights edge, which names the role or one of its ops."""
    return end.partition(".")[0]
