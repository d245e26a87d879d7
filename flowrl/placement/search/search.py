"""The best placement of a request, proven: the front door of this package. No explanations: decisions.py tells them.

Takes a graph, a cluster and a request; gives a Found. First the ways that people know are worked out, so that a
decision can compare them; then branch and bound looks at all others (branch.py). On CPUs, whose slots share cores and
memory, the familiar ways are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product
from math import inf

from msgspec.structs import replace

from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.checks.request import check_request
from flowrl.placement.checks.sharding import copies_fault
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCosts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.memory.pool import memory
from flowrl.placement.request import STEP_TIME, Mode, PlacementRequest
from flowrl.placement.search.branch import Box, Branch, Ground, Seat
from flowrl.placement.search.candidate import Candidate, Found, Laid, Option
from flowrl.placement.search.circles import left_for_later
from flowrl.placement.search.climb import Climb
from flowrl.placement.search.familiar import familiar
from flowrl.placement.search.faults import nothing_left, refused, too_slow
from flowrl.placement.search.in_parts import StepInParts, compared
from flowrl.placement.search.leaf import MOST_LOOKED, USUAL_ROLES
from flowrl.placement.search.nearby import Nearby
from flowrl.placement.search.objective import objective_of
from flowrl.placement.search.published import published
from flowrl.placement.search.settle import Settler
from flowrl.placement.search.sizes import EVERY_SIZE, cluster_sizes, is_thinned, refined, space_of
from flowrl.placement.search.ways import Ways, group_size
from flowrl.plan.plan import SearchReport

MOST_LOOKED_FIRST = 8_000
"""Before anything but branch and bound: what is proven to be near the best by then needs few local moves."""
MOST_LOOKED_OF_SMALL = 16_000
"""Of groups of which every size is tried, with more roles than ROLES_ON_FEW: a plan of eight takes about a second.
Some such flows have a better placement that more looks find; the gap says how much it may be."""
MOST_NODES_CLIMBED = 1_000
"""Choices of a way that a climb came by: branch and bound has it again."""
MOST_CLIMBED = 10_000
"""Looks for a climb by bounds."""
MOST_MOVED = 6_000
"""Looks for local moves from placements that are known."""
FEW_DEVICES, MOST_MOVED_ON_FEW = 8, 2_000
"""On so few devices a look at a move takes three times as long as one of branch and bound, which proves most of them
out by itself."""
ROLES_ON_FEW = 5
"""From so many roles on looks are fewer there. Up to so many the best is to be proven where every size is tried: of the
oracle's 300 random flows the longest proof, of 1-142, takes 16,196 looks."""
WORTH_MOVING = 0.15
"""Of the best, what may be gained for all of them; where less may, in proportion fewer."""
MOST_APART = 6
"""Roles of which a climb also starts with each on its own."""
MOST_ASSIGNMENTS = 64
"""Ways to place the roles that explicit pools leave open of which each is worked out."""


def search(
    graph: Graph,
    cluster: Cluster,
    request: PlacementRequest,
    shapes: Mapping[str, ModelShape],
    *,
    only: Option | None = None,
    choices: Choices | None = None,
    near: bool = True,
    in_parts: StepInParts | None = None,
    any_that_fits: bool = False,
) -> Found:
    """The best candidate and those of other ways of pools; on the pools of `only`, if it is given, and among `choices`
    of the roles. Where nothing fits, `best` is what is nearest to it; without `near` that is not looked for, and
    FlowError raised. With `in_parts` the best ways are compared once more by it (in_parts.py), and the best of them is
    taken. `any_that_fits`: the first that are found, for whoever asks only whether there is one. Raises FlowError as
    `place` says."""
    check_request(graph, cluster, request, shapes)
    found = _Search(graph, cluster, request, shapes, choices, near=near, in_parts=in_parts, any_that_fits=any_that_fits)
    return found.run(only)


class _Search:
    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        request: PlacementRequest,
        shapes: Mapping[str, ModelShape],
        choices: Choices | None = None,
        *,
        near: bool = True,
        in_parts: StepInParts | None = None,
        any_that_fits: bool = False,
    ) -> None:
        self.in_parts, self.any_that_fits = in_parts, any_that_fits
        self.graph, self.cluster, self.request, self.shapes = graph, cluster, request, shapes
        self.work = Workload(graph, shapes, request)
        costs = RoleCosts(self.work, cluster)
        self.ways = Ways(graph, cluster, request)
        self.objective = objective_of(request, cluster)
        self.settler = Settler(costs, choices or Choices(costs), self.ways, self.objective, near=near)
        self.open_bound = inf
        self.written = choices is not None
        """Whether the choices of roles are given one by one: then none is made finer."""

    @left_for_later()
    def run(self, only: Option | None) -> Found:
        """See `search`."""
        if only is not None:
            self.settler.settle_option(only)
        elif not self.ways.roles:
            self.settler.settle_host()
        else:
            self._look()
        best = self.settler.best
        if best is None:
            best = self._nearest(only)
        if self.any_that_fits and best.usable:
            return Found(best, (best,), self._report(best), self.settler.stays.choices)
        whole, again = best, dict[str, Candidate]()
        if self.in_parts is not None and only is None and best.usable:
            again = compared(self.settler, self.cluster, self.in_parts)
            label = min(again.values(), key=Candidate.rank).option.label
            best = self.settler.tried[label]
        told = self._told(best if self.written or not best.usable else self.settler.with_room(best))
        report = self._report(told if best is whole else whole)
        tried = tuple(told if each is best else each for each in self.settler.tried.values())
        choices = self.settler.stays.choices
        if only is not None:
            return Found(told, tried, report, choices)
        sites, recomputed = self.settler.sites(best), self.settler.recomputed(best)
        return Found(told, tried, report, choices, sites, recomputed, again)

    def _look(self) -> None:
        if self.request.mode is Mode.POOLS:
            self._look_at_pools()
            return
        for parts, sizes in familiar(self.ways):
            self.settler.settle_way(parts, sizes)
            if self.any_that_fits and self.settler.best is not None and self.settler.best.usable:
                return
        ground = self._ground()
        if ground.sizes and self.settler.a_host_may_do():
            branch = Branch(ground, self.settler.settle_seats, lambda: self.settler.score)
            branch.start(ground.start())
            self.open_bound = branch.run(self._looks(ground, MOST_LOOKED_FIRST))
            if self.open_bound < inf:
                self._climb(ground)
                self._look_nearby(ground)
            is_small = all(room <= EVERY_SIZE for room in ground.room.values())
            is_proven = len(self.ways.roles) <= ROLES_ON_FEW
            most = MOST_LOOKED_OF_SMALL if is_small and not is_proven else MOST_LOOKED
            enough = None if is_small else MOST_LOOKED // 2
            self.open_bound = branch.run(
                self._looks(ground, most), None if enough is None else self._looks(ground, enough)
            )
            self._refine(ground)

    @staticmethod
    def _is_few(ground: Ground) -> bool:
        return sum(ground.room.values()) <= FEW_DEVICES

    def _looks(self, ground: Ground, count: int) -> int:
        """Few devices hold little that many looks would find."""
        return self.settler.leaves.looks(count, ROLES_ON_FEW if self._is_few(ground) else USUAL_ROLES)

    def _refine(self, ground: Ground) -> None:
        """Sizes around those of the best, where these were thinned."""
        best, groups = self.settler.best, {group.name: group for group in self.cluster.groups}
        if best is None or ground.whole or not all(draft.group.name in ground.room for draft in best.option.pools):
            return
        seats = [
            Seat(draft.roles, name, refined(groups[name], len(draft.devices)))
            for draft in best.option.pools
            if is_thinned(groups[name := draft.group.name])
        ]
        if len(seats) == len(best.option.pools):
            near = Branch(ground, self.settler.settle_seats, lambda: self.settler.score)
            near.start(Box(tuple(seats), (0,) * len(seats), tuple(len(seat.sizes) - 1 for seat in seats)))
            near.run(ground.count.looked_at + self._looks(ground, MOST_LOOKED // 4))

    def _climb(self, ground: Ground) -> None:
        """From the best that is known, and from every role on its own, where not every size is tried: see climb.py."""
        if ground.whole or all(room <= EVERY_SIZE for room in ground.room.values()):
            return
        best, group = self.settler.best, max(ground.room, key=lambda name: ground.room[name])
        parts = [(draft.roles, draft.group.name) for draft in best.option.pools] if best is not None else []
        starts = [parts] if all(name in ground.sizes for _, name in parts) else []
        if len(self.ways.roles) <= MOST_APART:
            starts.append([((role,), group) for role in self.ways.roles])
        end = ground.count.looked_at + self._looks(ground, MOST_CLIMBED)
        for _, seats, places in Climb(ground, end).ways(
            [[Seat(roles, name, ground.sizes[name]) for roles, name in start] for start in starts if start]
        ):
            self.settler.settle_seats(seats, places, MOST_NODES_CLIMBED)

    def _look_nearby(self, ground: Ground) -> None:
        """Around the best and what other systems do, which is settled as it is: see published.py and nearby.py."""
        if ground.whole:
            return
        ways = published(self.ways)
        for parts, sizes in ways:
            self.settler.settle_quickly(parts, sizes, self.settler.score, (MOST_NODES_CLIMBED, 0))
        gain = min(1.0, (self.settler.score[0] / self.open_bound - 1.0) / WORTH_MOVING) if self.open_bound > 0 else 1.0
        most = MOST_MOVED_ON_FEW if self._is_few(ground) else MOST_MOVED
        end = ground.count.looked_at + self._looks(ground, round(gain * most))
        Nearby(ground, self.settler, Climb(ground, end), end).run(ways)

    def _ground(self) -> Ground:
        """Of groups of GPUs: slots of a CPU cost what others leave them."""
        sizes = cluster_sizes(self.cluster)
        groups = {group.name: group for group in self.cluster.groups if not group.device.is_cpu}
        whole = self.request.mode is Mode.COLOCATED
        return Ground(
            ways=self.ways,
            room={name: group_size(group) for name, group in groups.items()},
            sizes={name: sizes[name][-1:] if whole else sizes[name] for name in groups},
            order=self.settler.in_order(),
            clock=self.settler.leaves.clock,
            floors=self.settler.floors,
            objective=self.objective,
            count=self.settler.leaves.count,
        )

    def _look_at_pools(self) -> None:
        """The pools as written; roles in none of them go where the step is best."""
        seats = [self._seat(pool.name) for pool in self.request.pools]
        placed = {role for seat in seats for role in seat.roles}
        free = [role for role in self.ways.roles if role not in placed]
        pins = self.request.pin
        names = [pool.name for pool in self.request.pools]
        choices = [[pins[role]] if role in pins else names for role in free]
        every = (dict(zip(free, way, strict=True)) for way in product(*choices))
        fitting = (homes for homes in every if self._keeps(seats, homes))
        for homes in islice(fitting, MOST_ASSIGNMENTS):
            self.settler.settle_written(seats, homes)
        self.settler.leaves.count.cut_short |= next(fitting, None) is not None

    def _seat(self, name: str) -> Seat:
        pool = next(each for each in self.request.pools if each.name == name)
        roles = tuple(role for role in self.ways.roles if role in pool.roles)
        return Seat(roles, pool.group or self.cluster.groups[0].name, (pool.gpus,), fixed=True)

    def _keeps(self, seats: Sequence[Seat], homes: Mapping[str, str]) -> bool:
        for pool, seat in zip(self.request.pools, seats, strict=True):
            roles = [*seat.roles, *(role for role, name in homes.items() if name == pool.name)]
            if not all(self.ways.may_join(role, [r for r in roles if r != role]) for role in roles):
                return False
        return True

    def _nearest(self, only: Option | None) -> Candidate:
        """What is nearest to a placement that fits, or FlowError if no sizes of memory would help."""
        if not self.settler.near:
            raise FlowError(nothing_left(self.graph, self.cluster, self.request))
        if self.request.step_seconds_at_most is not None and only is None:
            self._refuse_slow()
        if not self.settler.tried and only is None and self.request.mode is not Mode.POOLS:
            self.settler.settle_some()
        self.settler.squeeze()
        near = min(self.settler.tried.values(), key=Candidate.rank, default=None)
        if near is None:
            raise FlowError(self._uncopied() or nothing_left(self.graph, self.cluster, self.request))
        if near.starved:
            raise FlowError(refused(self.graph, self.work, near))
        return near

    def _refuse_slow(self) -> None:
        """Raise FlowError if there are placements, and none is as fast as the flow asks."""
        fastest = replace(self.request, objective=STEP_TIME, step_seconds_at_most=None)
        found = _Search(self.graph, self.cluster, fastest, self.shapes).run(None)
        if found.best.usable:
            raise FlowError(too_slow(self.request, found.best))

    def _uncopied(self) -> Diagnostic | None:
        """FR0450 of the first role whose `shard_devices` no pool shares out."""
        sizes = cluster_sizes(self.cluster)
        for role in (self.graph.role(name) for name in self.ways.roles):
            faults = [copies_fault(role, count) for each in sizes.values() for count in reversed(each)]
            if faults and all(fault is not None for fault in faults):
                return faults[0]
        if self.request.mode in (Mode.COLOCATED, Mode.POOLS):
            whole = [size[-1] for size in sizes.values()]
            faults = [copies_fault(self.graph.role(name), count) for name in self.ways.roles for count in whole]
            return next((fault for fault in faults if fault is not None), None)
        return None

    def _told(self, best: Candidate) -> Candidate:
        """With the ledger lines of its memory."""
        pools = best.laid.pools
        lines = memory(self.graph, pools, self.shapes, self.cluster, request=self.request, work=self.work)
        return Candidate(best.option, Laid(pools, lines), best.seconds, best.value, best.starved, best.late)

    def _report(self, best: Candidate) -> SearchReport:
        count, value = self.settler.leaves.count, best.value
        stopped = self.open_bound < value
        gap = value / self.open_bound - 1.0 if stopped and self.open_bound > 0 else 0.0
        return SearchReport(
            gap=gap,
            bound=min(self.open_bound, value),
            looked_at=count.looked_at,
            exhaustive=not stopped and not count.cut_short,
            space=space_of(self.cluster.groups),
        )
