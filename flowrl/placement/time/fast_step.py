"""Seconds of a step for a search that asks tens of thousands of times: the event graph of step.py over arrays.

Made once for a graph's costs. Ops are by their place in the graph's ops, roles on devices by their place in `roles`,
weights edges by their place in `edges`. Places nothing.

    step = StepEvaluator(costs)
    firing = step.host()                                  # seconds of a firing by op, what runs on the host filled in
    for at, seconds in step.of_role(cost): firing[at] = seconds
    spots[role], moves[role] = step.spot(cost, pool), step.moves(cost)     # pool: any number from 0; Spot(FREE): free
    synced[edge] = costs.hand_over(...)                   # (0.0, 0.0) where an end is free or holds no weights
    step.seconds(step.in_step(firing, spots), spots, moves, synced)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrl.graph.graph import Edge, EdgeKind, Kind
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.cost.role import RoleCost, RoleCosts
from flowrl.placement.layouts import MOST_HOST_SLOTS
from flowrl.placement.time.event_graph import FREE, Laid, Spot, Wait, event_graph
from flowrl.program.program import InstructionKind
from flowrl.program.ratio import NumberedArc, of_sorted

Pair = tuple[float, float]
NO_SECONDS: Pair = (0.0, 0.0)
_WHOLE = (InstructionKind.LOAD, InstructionKind.OFFLOAD)


class StepEvaluator:
    """Steps of one graph: the same seconds as `steady_seconds` of step.py, which asks it."""

    def __init__(self, costs: RoleCosts) -> None:
        graph = costs.graph
        self.costs, self.ops = costs, tuple(op.id for op in graph.ops)
        self._event = event_graph(graph)
        self.roles = self._event.roles
        self.edges: tuple[Edge, ...] = tuple(edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS)
        places = {id: at for at, id in enumerate(self.ops)}
        self._of_role = {r.name: tuple((places[op.id], op.id) for op in costs.ops_of(r.name)) for r in graph.roles}
        self._on_devices = tuple(needs_devices(graph.role(op.role)) for op in graph.ops)
        self._groups = [tuple(places[id] for id in node.ops) for node in self._event.nodes if len(node.ops) > 1]
        number = {role: at for at, role in enumerate(self.roles)}
        self._role_of = tuple(number.get(op.role, -1) for op in graph.ops)
        numbers = {edge.id: at for at, edge in enumerate(self.edges)}
        self._sources = tuple(
            (node.firings, places[node.ops[0]], -1)
            if node.edge is None
            else (node.firings, int(node.kind is InstructionKind.RECEIVE_WEIGHTS), numbers[node.edge.id])
            for node in self._event.nodes
        )
        host = [(at, node) for at, node in enumerate(self._event.nodes) if not needs_devices(graph.role(node.roles[0]))]
        self._crowded = tuple(at for at, _ in host) if self._event.on_host > MOST_HOST_SLOTS else ()

    def places(self, role: str) -> tuple[int, ...]:
        """Which ops are the role's."""
        return tuple(at for at, _ in self._of_role[role])

    def host(self) -> list[float]:
        """Seconds of a firing of each op, 0 for those on devices."""
        ops = self.costs.graph.ops
        return [0.0 if away else self.costs.host_seconds(op) for op, away in zip(ops, self._on_devices, strict=True)]

    def of_role(self, cost: RoleCost) -> tuple[tuple[int, float], ...]:
        """Places and seconds of a firing of the role's own ops, with nobody else in sight."""
        return tuple((at, cost.seconds[id]) for at, id in self._of_role[cost.name])

    def of_least(self, role: str, seconds: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
        """The same of a role's least seconds."""
        return tuple((at, seconds[id]) for at, id in self._of_role[role])

    @staticmethod
    def spot(cost: RoleCost, pool: int) -> Spot:
        """Where a role is, if it is in the pool of that number."""
        return Spot(pool, cost.offloaded, cost.offloaded and cost.staged)

    @staticmethod
    def moves(cost: RoleCost) -> Pair:
        """Seconds to leave the devices, or to come back, and of that the part after which an engine has its cache."""
        wakes = cost.offloaded and cost.as_asked.role.kind is Kind.GENERATOR
        cache = cost.as_asked.profile.fixed.wake_seconds / 2 if wakes else 0.0
        return cost.move_seconds, min(cache, cost.move_seconds / 2)

    def in_step(self, firing: Sequence[float], spots: Sequence[Spot]) -> Sequence[float]:
        """Seconds of a firing of each op among the others: all members of an interaction take as long, and the least of
        that where one of them is free."""
        if not self._groups:
            return firing
        found, ops = list(firing), self.costs.graph.ops
        for group in self._groups:
            talking = [at for at in group if self._on_devices[at]]
            spoken = sum(firing[at] for at in talking)
            is_bound = any(spots[self._role_of[at]].pool == FREE for at in talking)
            together = self.costs.together_at_least if is_bound else self.costs.together
            for at in group:
                found[at] = together(ops[at], len(talking), spoken)
        return found

    def seconds(
        self, firing: Sequence[float], spots: Sequence[Spot], moves: Sequence[Pair], synced: Sequence[Pair]
    ) -> float:
        """Of one step: the maximum cycle ratio. `firing`: what `in_step` gives; `moves` by role, `synced` by edge."""
        laid = self._event.laid(tuple(spots))
        nodes = [count * firing[at] if edge < 0 else count * synced[edge][at] for count, at, edge in self._sources]
        least = max((sum(nodes[at] for at in own) + _moved(each, moves) for own, each in laid.loads), default=0.0)
        if self._crowded:
            least = max(least, sum(nodes[at] for at in self._crowded) / MOST_HOST_SLOTS)
        return max(least, self._ratio(laid, nodes, moves, least))

    def _ratio(self, laid: Laid, nodes: Sequence[float], moves: Sequence[Pair], least: float) -> float:
        forward = [_arc(wait, nodes, moves) for wait in laid.forward]
        back = [_arc(wait, nodes, moves) for wait in laid.back]
        count = len(forward)
        return of_sorted(len(nodes), [*forward, *back], range(count), range(count, count + len(back)), at_least=least)[
            0
        ]


def _arc(wait: Wait, nodes: Sequence[float], moves: Sequence[Pair]) -> NumberedArc:
    seconds = nodes[wait.source] if wait.full else 0.0
    if wait.moves:
        seconds += _moved(wait.moves, moves)
    return wait.source, wait.target, seconds, wait.tokens


def _moved(done: Sequence[tuple[int, InstructionKind]], moves: Sequence[Pair]) -> float:
    total = 0.0
    for role, kind in done:
        whole, cache = moves[role]
        total += whole if kind in _WHOLE else cache if kind is InstructionKind.WAKE_CACHE else whole - cache
    return total
