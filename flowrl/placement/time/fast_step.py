"""The steady seconds of step.py for a search that asks tens of thousands of times: the same sums over arrays of floats.

Made once for a graph's costs. Ops are by their place in the graph's ops, pools by any number from 0; takes seconds of
ops and the pool of each; gives the seconds that `steady_seconds` gives, to the last bit. Places nothing.

    step = StepEvaluator(costs)
    firing = step.host()                       # seconds of a firing by op, what runs on the host filled in
    for at, seconds in step.of_role(cost): firing[at] = seconds
    moves[at] = step.moves(cost)               # for every `at` of the role's ops
    whole = step.in_step(firing, moves, pool_of_op)
    step.seconds(whole, pool_of_op, sync)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrl.graph.graph import EdgeKind, Op
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.cost.role import RoleCost, RoleCosts
from flowrl.placement.time.step import Home, lag, op_order

NOWHERE = -1
"""The pool of an op that no pool of devices waits for: one of the host."""


def free_role(number: int) -> int:
    """The pool of the ops of a role that is not placed yet, whose least seconds make a bound: it is as long as its ops
    take, and holds nobody up. `number` from 0, less than the graph has roles."""
    return -2 - number


class StepEvaluator:
    """Steps of one graph. Every role on devices is in a pool, or counted free; `steady_seconds` of the same is equal.

    What changes in a search is cheap: a role's seconds are read once for a candidate (`of_role`), a step is one pass
    over the ops in data order.
    """

    def __init__(self, costs: RoleCosts) -> None:
        graph = costs.graph
        self.costs, self.ops = costs, tuple(op.id for op in graph.ops)
        self._places = {id: at for at, id in enumerate(self.ops)}
        self._late = 1 + lag(graph)
        self._slots = 2 * len(graph.roles) + 2
        self._of_role = {
            role.name: tuple((self._places[op.id], op.id) for op in costs.ops_of(role.name)) for role in graph.roles
        }
        self._firings = tuple((op.firings, max(1, op.every_steps)) for op in graph.ops)
        self._firing_once = all(each == (1, 1) for each in self._firings)
        self._on_devices = tuple(needs_devices(graph.role(op.role)) for op in graph.ops)
        groups = {tuple(self._places[each.id] for each in costs.work.interaction(op)) for op in graph.ops}
        self._groups = tuple(sorted(group for group in groups if group))
        self._tied = {at: group for group in self._groups for at in group}
        order = [tuple(tuple(self._places[id] for id in ids) for ids in each) for each in op_order(graph)]
        self._order = [(group[0], group[1:], sources) for group, sources in order]
        self._edges = tuple(
            (edge, edge.source.split(".")[0], edge.target.split(".")[0])
            for edge in graph.edges
            if edge.kind is EdgeKind.WEIGHTS
        )

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
    def moves(cost: RoleCost) -> float:
        """Seconds that each op of the role takes more for leaving the devices and coming back."""
        return 2 * cost.move_seconds if cost.offloaded else 0.0

    def in_step(self, firing: Sequence[float], moves: Sequence[float], pool_of_op: Sequence[int]) -> list[float]:
        """Seconds of each op in one step from those of a firing, interactions together and moves included."""
        each = self._together(firing, pool_of_op) if self._groups else firing
        if self._firing_once:
            return [seconds + move for seconds, move in zip(each, moves, strict=True)]
        return [
            (seconds * count + move) / every
            for seconds, move, (count, every) in zip(each, moves, self._firings, strict=True)
        ]

    def seconds(self, op_seconds: Sequence[float], pool_of_op: Sequence[int], sync: float) -> float:
        """Of one step: the longer of its chain of ops with its weights edges (`sync`), over 1 + lag, and of the pool
        that is busiest. `op_seconds` are those of `in_step`; `pool_of_op` has a number from 0 for each pool, NOWHERE,
        or that of a free role."""
        busy, ready = [0.0] * self._slots, [0.0] * len(op_seconds)
        load, chain = busy[:], 0.0
        for first, others, sources in self._order:
            if others:
                end = self._end_of_group((first, *others), sources, op_seconds, pool_of_op, ready, busy)
            else:
                pool = pool_of_op[first]
                start = busy[pool] if pool >= 0 else 0.0
                for source in sources:
                    if ready[source] > start:
                        start = ready[source]
                end = ready[first] = start + op_seconds[first]
                if pool >= 0:
                    busy[pool] = end
            if end > chain:
                chain = end
        for pool, seconds in zip(pool_of_op, op_seconds, strict=True):
            load[pool] += seconds
        load[NOWHERE] = 0.0
        return max((chain + sync) / self._late, max(load))

    def sync_seconds(self, placed: Mapping[str, Home]) -> float:
        """Of all weights edges whose ends are both placed."""
        total = 0.0
        for edge, source, target in self._edges:
            giver, taker = placed.get(source), placed.get(target)
            if giver is not None and taker is not None and giver.cost.has_model:
                total += sum(self.costs.hand_over(edge, (giver.cost, giver.site), (taker.cost, taker.site)))
        return total

    def of_homes(
        self, placed: Mapping[str, Home], least: Mapping[str, Mapping[str, float]] | None = None
    ) -> tuple[list[float], list[int]]:
        """Seconds of each op in one step, and its pool, of roles in their homes and of free ones: the slow way in."""
        least = least or {}
        firing, moves, pools = self.host(), [0.0] * len(self.ops), [NOWHERE] * len(self.ops)
        numbers: dict[str, int] = {}
        for home in placed.values():
            number = numbers.setdefault(home.site.pool.name, len(numbers))
            for at, seconds in self.of_role(home.cost):
                firing[at], moves[at], pools[at] = seconds, self.moves(home.cost), number
        for number, (role, known) in enumerate(least.items()):
            for at, seconds in self.of_least(role, known):
                firing[at], pools[at] = seconds, free_role(number)
        return self.in_step(firing, moves, pools), pools

    def _together(self, firing: Sequence[float], pool_of_op: Sequence[int]) -> list[float]:
        """All members of an interaction take as long; the least of that where one of them is free."""
        found, ops = list(firing), self.costs.graph.ops
        for group in self._groups:
            talking = [at for at in group if self._on_devices[at]]
            spoken = sum(firing[at] for at in talking)
            is_bound = any(pool_of_op[at] < NOWHERE for at in talking)
            for at in group:
                found[at] = self._joint(ops[at], len(talking), spoken, is_bound=is_bound)
        return found

    def _joint(self, op: Op, talking: int, spoken: float, *, is_bound: bool) -> float:
        if is_bound:
            return self.costs.together_at_least(op, talking, spoken)
        return self.costs.together(op, talking, spoken)

    @staticmethod
    def _end_of_group(
        group: Sequence[int],
        sources: Sequence[int],
        op_seconds: Sequence[float],
        pool_of_op: Sequence[int],
        ready: list[float],
        busy: list[float],
    ) -> float:
        """When the members of an interaction are done, who start and end together."""
        pools = [pool_of_op[at] for at in group if pool_of_op[at] >= 0]
        start = max([*(ready[source] for source in sources), *(busy[pool] for pool in pools)], default=0.0)
        end = start + max(op_seconds[at] for at in group)
        for at in group:
            ready[at] = end
        for pool in pools:
            busy[pool] = end
        return end
