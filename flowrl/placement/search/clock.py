"""Seconds of a step for a search: of roles that are placed, and of roles of which only the least seconds are known.

Takes RoleCosts; the figures are those of step.py, the maximum cycle ratio of the program's event graph. A Frame is that
graph for one way to share pools and to leave them. Leaving out that a role leaves, or a hand-over, only makes it
shorter, so frames bound what is half decided. A frame keeps the circles that were critical, since one of them mostly is
again. Everything is by number: ops by their place in the graph, roles by their place among those on devices, pools
from 0. Knows no devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter, mul

from flowrl.graph.graph import Edge
from flowrl.placement.cost.role import RoleCost, RoleCosts
from flowrl.placement.time.event_graph import FREE, Moves, Spot, Wait, event_graph
from flowrl.placement.time.fast_step import NO_SECONDS, Pair, StepEvaluator
from flowrl.placement.time.step import Home, hand_over
from flowrl.program.program import InstructionKind
from flowrl.program.ratio import Turned

MOST_FRAMES = 20_000
"""That are kept at once."""
MOST_RINGS = 8
"""Circles that a frame keeps, those first that were the longest last."""
STAYS, LEAVES, STAGED = 0, 1, 2
"""What a role does while others work: it stays on the devices, leaves them, or leaves them and wakes in two parts."""
_SHARE: Mapping[InstructionKind, tuple[float, float]] = {
    InstructionKind.LOAD: (1.0, 0.0),
    InstructionKind.OFFLOAD: (1.0, 0.0),
    InstructionKind.WAKE_WEIGHTS: (1.0, -1.0),
    InstructionKind.WAKE_CACHE: (0.0, 1.0),
}
"""Of the seconds of a whole move, and of those of its cache."""
Ring = tuple[tuple[int, ...], Moves, int]
"""Nodes of a circle, moves on it, and its tokens."""


_Known = tuple[Callable[[Sequence[float]], Sequence[float]], Ring]


def _known(ring: Ring) -> _Known:
    return _getter(ring[0]), ring


class Frame:
    """One event graph. `nodes` are the seconds of its nodes, `moves` of each role those of a move and of its cache."""

    def __init__(self, count: int, waits: Sequence[Wait], rings: Sequence[Ring]) -> None:
        forward = sorted((wait for wait in waits if wait.tokens == 0), key=lambda wait: wait.source)
        self._waits = (*forward, *(wait for wait in waits if wait.tokens))
        self._turned = Turned(count, [(each.source, each.target, each.tokens) for each in self._waits])
        self._full = _getter([each.source if each.full else count for each in self._waits])
        self._moved = [(place, each.moves) for place, each in enumerate(self._waits) if each.moves]
        self._rings = [_known(ring) for ring in rings]

    def reaches(self, nodes: Sequence[float], moves: Sequence[Pair], most: float) -> bool:
        """Whether no step is shorter than `most`."""
        for place, (passed, (_, moved, tokens)) in enumerate(self._rings):
            seconds = sum(passed(nodes))
            if moved:
                seconds += _moved(moved, moves)
            if seconds >= most * tokens:
                if place:
                    self._rings.insert(0, self._rings.pop(place))
                return True
        circle = self._turned.longer(self._seconds(nodes, moves), most)
        if circle:
            self._keep(circle)
        return bool(circle)

    def least(self, nodes: Sequence[float], moves: Sequence[Pair], at_least: float = 0.0) -> float:
        """The seconds of a step, if they are more than `at_least`."""
        return self.critical(nodes, moves, at_least)[0]

    def critical(
        self, nodes: Sequence[float], moves: Sequence[Pair], at_least: float = 0.0
    ) -> tuple[float, tuple[int, ...]]:
        """The same with the nodes of a circle that takes as long; none if all take less."""
        longest: tuple[int, ...] = ()
        for passed, (ring, moved, tokens) in self._rings:
            ratio = (sum(passed(nodes)) + (_moved(moved, moves) if moved else 0.0)) / tokens
            if ratio > at_least:
                at_least, longest = ratio, ring
        found, circle = self._turned.largest(self._seconds(nodes, moves), at_least)
        return found, self._keep(circle) if circle else longest

    def _seconds(self, nodes: Sequence[float], moves: Sequence[Pair]) -> list[float]:
        """Of each wait."""
        seconds = list(self._full((*nodes, 0.0)))
        for place, moved in self._moved:
            seconds[place] += _moved(moved, moves)
        return seconds

    def _keep(self, circle: Sequence[int]) -> tuple[int, ...]:
        """Remember the circle of these waits; its nodes."""
        passed = [self._waits[place] for place in circle]
        ring = tuple(wait.source for wait in passed if wait.full)
        moved = tuple(move for wait in passed for move in wait.moves)
        self._rings.insert(0, _known((ring, moved, sum(wait.tokens for wait in passed))))
        del self._rings[MOST_RINGS:]
        return ring


def _getter(places: Sequence[int]) -> Callable[[Sequence[float]], Sequence[float]]:
    """What gives the items at these places, however many they are."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda items: [items[at] for at in places]


def _moved(done: Moves, moves: Sequence[Pair]) -> float:
    total = 0.0
    for role, kind in done:
        whole, cache = _SHARE[kind]
        total += whole * moves[role][0] + cache * moves[role][1]
    return total


class Clock:
    """Of one graph."""

    def __init__(self, costs: RoleCosts) -> None:
        self.costs = costs
        self._step, self._event = StepEvaluator(costs), event_graph(costs.graph)
        self.roles = self._step.roles
        self.number = {role: at for at, role in enumerate(self.roles)}
        self.places: Mapping[str, tuple[int, ...]] = {role: self._step.places(role) for role in self.roles}
        self.blank = tuple(self._step.host())
        self.unmoved: tuple[Pair, ...] = (NO_SECONDS,) * len(self.roles)
        self.edges: tuple[tuple[Edge, str, str], ...] = tuple(
            (edge, edge.source.split(".")[0], edge.target.split(".")[0]) for edge in self._step.edges
        )
        self._free = [Spot(FREE)] * len(self.roles)
        base = self._event.laid(tuple(self._free))
        self._base = (*base.forward, *base.back)
        places = {id: at for at, id in enumerate(self._step.ops)}
        self._nodes = [(node.firings, places[node.ops[0]] if node.edge is None else -1) for node in self._event.nodes]
        self._counts = [count for count, _ in self._nodes]
        self._ops_of_nodes = _getter([at for _, at in self._nodes])  # The last is 0: of nodes that are no op's.
        self._lane = {
            role: [at for at, node in enumerate(self._event.nodes) if role in node.roles] for role in self.roles
        }
        numbers = {edge.id: at for at, edge in enumerate(self._step.edges)}
        self._ends = [
            (at, node.firings, numbers[node.edge.id], int(node.kind is InstructionKind.RECEIVE_WEIGHTS))
            for at, node in enumerate(self._event.nodes)
            if node.edge is not None
        ]
        self._frames: dict[tuple[object, ...], Frame] = {}

    # -- frames -------------------------------------------------------------------------------------------------------

    def frame(self, pool_of: Sequence[int], away: Sequence[int] = ()) -> Frame:
        """Of roles in pools, by number; FREE for those that hold nobody up. `away`: what each does while others work;
        none of them leaves if it is not given."""
        leaves = any(away)
        key = (tuple(pool_of), tuple(away) if leaves else ())
        found = self._frames.get(key)
        if found is None:
            if len(self._frames) >= MOST_FRAMES:
                self._frames.clear()
            found = self._frames[key] = self._leaving(pool_of, away) if leaves else self._staying(pool_of)
        return found

    def _staying(self, pool_of: Sequence[int]) -> Frame:
        waits, rings = list(self._base), list[Ring]()
        lanes: dict[int, set[int]] = {}
        for number, (role, pool) in enumerate(zip(self.roles, pool_of, strict=True)):
            lanes.setdefault(pool if pool != FREE else FREE - 1 - number, set()).update(self._lane[role])
        for lane in (sorted(nodes) for nodes in lanes.values() if nodes):
            waits += [Wait(one, other, True, 0) for one, other in pairwise(lane)]
            waits.append(Wait(lane[-1], lane[0], True, 1))
            rings.append((tuple(lane), (), 1))
        return Frame(len(self._nodes), waits, rings)

    def _leaving(self, pool_of: Sequence[int], away: Sequence[int]) -> Frame:
        spots = tuple(Spot(pool, way > STAYS, way == STAGED) for pool, way in zip(pool_of, away, strict=True))
        laid = self._event.laid(spots)
        return Frame(len(self._nodes), (*laid.forward, *laid.back), [(own, moves, 1) for own, moves in laid.loads])

    def nodes(self, firing: Sequence[float], synced: Mapping[int, Pair] | None = None) -> list[float]:
        """Seconds of the nodes of a frame where ops take these of a firing, and weights edges these, by number; others
        take none."""
        found = list(map(mul, self._counts, self._ops_of_nodes((*self._step.in_step(firing, self._free), 0.0))))
        if synced:
            for at, count, edge, end in self._ends:
                if edge in synced:
                    found[at] = count * synced[edge][end]
        return found

    def roles_of(self, nodes: Sequence[int]) -> set[str]:
        """Whose these nodes are."""
        return {role for at in nodes for role in self._event.nodes[at].roles}

    # -- whole placements ---------------------------------------------------------------------------------------------

    def moves(self, cost: RoleCost) -> Pair:
        """Seconds of a move of a role, and of that of its cache."""
        return self._step.moves(cost)

    def synced(self, number: int, homes: Mapping[str, Home]) -> Pair:
        """Seconds of both ends of a weights edge between roles that are placed."""
        return hand_over(self.costs, self._step.edges[number], homes)
