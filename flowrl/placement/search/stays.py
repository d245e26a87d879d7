"""What one role may be on one site, without what another of its choices is at least as good as in every way.

Takes Choices and RoleCosts; gives Stays, the quickest first. A choice is dropped where another takes no longer for any
op and for leaving the devices, holds no more in any phase, on its devices and on the host, and is the same to weights
edges. Of equals the first stays. Knows no pools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import gt

import msgspec

from flowrl.graph.graph import EdgeKind
from flowrl.placement.checks.rows import COLLECTIVE, shares
from flowrl.placement.checks.sharding import copies_fault
from flowrl.placement.choices import Choices
from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.placement.engine_shares import is_open
from flowrl.placement.request import LayoutRequest
from flowrl.placement.search.clock import LEAVES, STAGED, STAYS
from flowrl.placement.time.fast_step import NO_SECONDS, Pair, StepEvaluator
from flowrl.plan.plan import Layout, RolePlacement


class Stay(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One choice of a role on a site."""

    entry: RolePlacement
    cost: RoleCost
    seconds: tuple[float, ...]
    """Of one firing of each of its ops, in the graph's order."""
    moves: Pair
    """Of a move, and of that of its cache (`StepEvaluator.moves`); none if it stays."""
    away: int
    """STAYS, LEAVES or STAGED."""
    busy: float
    """Of all its ops in a step, moves included."""
    peak: int
    """The most of its own lines on a device while it loads or works."""
    left: int
    """The least that it leaves on a device while others work."""
    above: int
    """How much the former is more than the latter."""


class RoleStays:
    """The stays of the roles of one graph. Made once for a search."""

    def __init__(
        self,
        costs: RoleCosts,
        choices: Choices,
        layouts: Mapping[str, LayoutRequest],
        recompute: Mapping[str, str] | None = None,
    ) -> None:
        self.costs, self.choices, self.layouts = costs, choices, layouts
        graph = costs.graph
        self.synced = {
            end.split(".")[0]
            for edge in graph.edges
            if edge.kind is EdgeKind.WEIGHTS
            for end in (edge.source, edge.target)
        }
        self._recompute = recompute or {}
        self._units = {
            role.name: min((shares(costs.work, op).count for op in costs.ops_of(role.name)), default=1 << 60)
            for role in graph.roles
            if role.backend in COLLECTIVE
        }
        self._known: dict[tuple[object, ...], tuple[Stay, ...]] = {}
        self._quick: dict[tuple[object, ...], tuple[float, ...] | None] = {}
        self._needs: dict[tuple[object, ...], tuple[int, RoleCost]] = {}

    def finer(self) -> RoleStays:
        """The same with more shares of a device for engines, of which alone all is worked out anew."""
        found = RoleStays(self.costs, self.choices.finer(), self.layouts, self._recompute)
        alike = {role.name for role in self.costs.graph.roles if not is_open(role)}
        found._known |= {key: each for key, each in self._known.items() if key[0] in alike}
        found._quick |= {key: each for key, each in self._quick.items() if key[0] in alike}
        found._needs |= {key: each for key, each in self._needs.items() if key[0] in alike}
        return found

    def quickest(self, role: str, site: Site) -> tuple[float, ...] | None:
        """The least seconds of a firing of each op, whatever the choice. None if no choice gives every rank a row and
        leaves room for the role alone."""
        key = (role, site)
        if key not in self._quick:
            self._quick[key] = self._least(role, site)
        return self._quick[key]

    def may_share(self, roles: Sequence[str], site: Site) -> bool:
        """Whether the processes of all roles leave room for the largest of them at work. They are not asked what else
        they leave."""
        known = [self._needs[role, site] for role in roles if self.quickest(role, site) and (role, site) in self._needs]
        if len(known) < len(roles):
            return False
        always = self.costs.always([cost for _, cost in known], site)
        return always + max(need for need, _ in known) <= site.limit_bytes

    def _least(self, role: str, site: Site) -> tuple[float, ...] | None:
        """Of entries that differ in recomputation alone, the first that fits is the quickest: the next compute more."""
        ops, shared = self.costs.ops_of(role), bool(self.costs.partners(role))
        trains = self.costs.graph.role(role).trainable
        if not shared and role not in self.layouts and self.choices.is_hopeless(role, site):
            return None
        least: list[float] | None = None
        done: set[tuple[Layout, int | None, float | None]] = set()
        for entry in self._entries(role, site, alone=True, beside=True):
            alike = (entry.layout, entry.micro_batch_tokens, entry.memory_share)
            if alike in done:
                continue
            cost = self.costs.role_cost(entry, site)
            if shared or self._may_fit(cost, site):
                done.add(alike)
                need = 0 if shared else max(cost.held) if trains else cost.own_peak
                known = self._needs.get((role, site))
                if known is None or need < known[0]:
                    self._needs[role, site] = (need, cost)
                seconds = [cost.seconds[op.id] for op in ops]
                least = seconds if least is None else list(map(min, least, seconds))
        return None if least is None else tuple(least)

    def of(self, role: str, site: Site, beside: Sequence[RolePlacement], *, alone: bool) -> tuple[Stay, ...]:
        """The stays beside these roles, of which those that it shares weights with matter; `alone`: it has the pool to
        itself and never leaves it."""
        partners = self.costs.partners(role)
        mates = tuple(each for each in beside if each.role in partners)
        key = (role, site, alone, tuple((each.role, each.offloaded) for each in mates))
        found = self._known.get(key)
        if found is None:
            made = [self._stay(entry, site, mates) for entry in self._entries(role, site, alone=alone)]
            made = [stay for stay in made if self._may_fit(stay.cost, site)]
            found = self._known[key] = tuple(sorted(self._undominated(made), key=lambda stay: stay.busy))
        return found

    def every(self, role: str, site: Site, *, alone: bool) -> tuple[RolePlacement, ...]:
        """All choices, those that leave ranks without rows too."""
        return tuple(self._entries(role, site, alone=alone, starving=True))

    def starves(self, entry: RolePlacement) -> bool:
        """Whether some rank of a collective would have no row."""
        return entry.layout.dp > self._units.get(entry.role, entry.layout.dp)

    def _entries(
        self, role: str, site: Site, *, alone: bool, starving: bool = False, beside: bool = False
    ) -> Iterator[RolePlacement]:
        """`alone`: none that leaves the devices where it may stay; nor, unless others may be `beside` it, that takes
        less of them than it could."""
        wanted = self._recompute.get(role)
        menu = self.choices.of(role, site, self.layouts.get(role))
        # Nothing moves a role that is alone, nor anything on a CPU, whose memory is one.
        unmoved = (alone or site.group.device.is_cpu) and {_but_residency(e) for e in menu if not e.offloaded}
        sole = alone and not beside
        usual = {_but_share(e) for e in menu if e.memory_share is None} if sole else set[tuple[object, ...]]()
        for entry in menu:
            if entry.memory_share is not None and _but_share(entry) in usual:
                continue  # It leaves nobody room.
            if unmoved and entry.offloaded and _but_residency(entry) in unmoved:
                continue
            if wanted not in (None, entry.recompute):
                continue
            layout = entry.layout
            if copies_fault(self.costs.graph.role(role), layout.dp * layout.cp, layout.ep) is not None:
                continue
            if starving or not self.starves(entry):
                yield entry

    def _may_fit(self, cost: RoleCost, site: Site) -> bool:
        start = cost.starting
        always = self.costs.always_of(int(cost.counted), site)
        return (start is None or start[0] <= start[1]) and cost.own_peak + always <= site.limit_bytes

    def _stay(self, entry: RolePlacement, site: Site, mates: Sequence[RolePlacement]) -> Stay:
        cost = self.costs.role_cost(entry, site, mates)
        ops = self.costs.ops_of(entry.role)
        seconds = tuple(cost.seconds[op.id] for op in ops)
        moves = StepEvaluator.moves(cost) if cost.offloaded else NO_SECONDS
        away = (STAGED if cost.staged else LEAVES) if cost.offloaded else STAYS
        peak, left = cost.own_peak, min(cost.remains)
        every = zip(seconds, ops, strict=True)
        busy = 2 * moves[0] + sum(each * op.firings / max(1, op.every_steps) for each, op in every)
        return Stay(entry, cost, seconds, moves, away, busy, peak, left, peak - left)

    def _undominated(self, stays: Sequence[Stay]) -> Iterator[Stay]:
        kinds = [self._compared(stay) for stay in stays]
        rows = [(number, stay, _bytes(stay.cost)) for number, stay in enumerate(stays)]
        alike: dict[tuple[object, ...], list[tuple[int, Stay, tuple[int, ...]]]] = {}
        for kind, row in zip(kinds, rows, strict=True):
            alike.setdefault(kind, []).append(row)
        for kind, (number, stay, mine) in zip(kinds, rows, strict=True):
            others = (each for each in alike[kind] if each[0] != number)
            if not any(_dominates(other, stay, held, mine, earlier=at < number) for at, other, held in others):
                yield stay

    def _compared(self, stay: Stay) -> tuple[object, ...]:
        """What stays that are compared have in common: else phases of their pool differ in kind, or what weights edges
        see of them."""
        layout = stay.entry.layout if stay.entry.role in self.synced else None
        return stay.cost.offloaded, layout, *_kind(stay.cost)


def _dominates(one: Stay, other: Stay, ones: tuple[int, ...], others: tuple[int, ...], *, earlier: bool) -> bool:
    """Whether `one` is at least as good in every way; of equals the earlier is."""
    if one.moves > other.moves or any(map(gt, one.seconds, other.seconds)) or any(map(gt, ones, others)):
        return False
    return earlier or (one.moves, one.seconds, ones) != (other.moves, other.seconds, others)


def _but_residency(entry: RolePlacement) -> tuple[object, ...]:
    return entry.layout, entry.recompute, entry.micro_batch_tokens, entry.memory_share


def _but_share(entry: RolePlacement) -> tuple[object, ...]:
    return entry.layout, entry.recompute, entry.micro_batch_tokens, entry.offloaded


def _kind(cost: RoleCost) -> tuple[object, ...]:
    """What makes phases of a pool differ in kind; those of pipelines of different depth are not compared."""
    return cost.pp, cost.wakes, cost.staged, cost.counted, cost.has_model, cost.loading is None, cost.starting is None


def _bytes(cost: RoleCost) -> tuple[int, ...]:
    """All that a role adds to phases of its pool and of its node."""
    work = (held for stage in cost.work for held in stage.values())
    away = cost.off_device_bytes if cost.offloaded else 0
    return (
        *cost.held,
        *cost.remains,
        *work,
        *(cost.loading or ()),
        *cost.blocks,
        cost.sends,
        cost.receives,
        cost.woken,
        away,
        cost.host_bytes,
    )
