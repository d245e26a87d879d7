"""Works out ways to share devices: where their pools lie, the best choices of their roles, and what that scores.

Takes pools with sizes; keeps the best candidate and what was tried. Decides nothing of what is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec.structs import replace

from flowrl.placement.choices import Choices, recomputations
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.devices import largest_first
from flowrl.placement.engine_shares import grown, is_open
from flowrl.placement.layouts import host_pool
from flowrl.placement.memory.host import host_memory, least_of_controller
from flowrl.placement.search.branch import Seat
from flowrl.placement.search.candidate import Candidate, Draft, Laid, Option, Pitch
from flowrl.placement.search.clock import Clock
from flowrl.placement.search.floors import Floors
from flowrl.placement.search.leaf import Leaves
from flowrl.placement.search.nearest import MOST_ROUNDS, squeezed
from flowrl.placement.search.objective import WORST, Objective, Score
from flowrl.placement.search.sizes import Places
from flowrl.placement.search.stays import RoleStays
from flowrl.placement.search.ways import Part, Ways, group_size
from flowrl.placement.time.step import step_seconds
from flowrl.plan.plan import Memory, Pool

MOST_NODES_FINER = 1_000
"""Choices of the best way that are looked at once more, with finer shares of a device for engines."""
MOST_NODES_TOLD = 100
"""Choices of a way that is worked out to be told of, however slow it is."""


class Settler:
    """Of one request."""

    def __init__(
        self, costs: RoleCosts, choices: Choices, ways: Ways, objective: Objective, *, near: bool = True
    ) -> None:
        self.costs, self.ways, self.objective = costs, ways, objective
        self.near = near
        """Whether ways that do not fit are brought as near to it as can be, or left out."""
        layouts = {role: layout for pool in ways.request.pools for role, layout in pool.layouts.items()}
        self.stays, self.places = RoleStays(costs, choices, layouts), Places(costs)
        self.leaves = Leaves(Clock(costs), self.stays)
        self.floors = Floors(self.stays, self.places)
        self.tried: dict[str, Candidate] = {}
        self.best: Candidate | None = None
        self.score: Score = WORST
        self._host = host_pool(ways.graph)

    def in_order(self) -> tuple[str, ...]:
        """Roles on devices, those with most work first."""

        def work(role: str) -> float:
            groups = [group for group in self.costs.cluster.groups if not group.device.is_cpu]
            sites = [self.places.site(self.places.alone(group.name, group_size(group))) for group in groups]
            least = [each for each in (self.stays.quickest(role, site) for site in sites) if each is not None]
            return min((self.floors.in_step(role, each) for each in least), default=inf)

        return tuple(sorted(self.ways.roles, key=lambda role: -work(role)))

    def a_host_may_do(self) -> bool:
        """Whether some node of GPUs has room for the rows of a step: no placement fits else."""
        groups = [group for group in self.costs.cluster.groups if not group.device.is_cpu]
        return any(least_of_controller(group, self.costs.work) <= group.host_memory_bytes for group in groups)

    # -- ways ---------------------------------------------------------------------------------------------------------

    def settle_seats(self, seats: Sequence[Seat], places: Sequence[int], most_nodes: int | None = None) -> bool:
        """If it may be better than the best so far. Whether all choices were looked at, of which `most_nodes` may be
        too few."""
        sizes = [seat.sizes[place] for seat, place in zip(seats, places, strict=True)]
        option = self._option([seat.part for seat in seats], sizes)
        wanted = [(draft.group.name, len(draft.devices)) for draft in option.pools]
        self._settle(option, self.objective.most_seconds(wanted, self.score), most_nodes)
        return self.leaves.was_whole

    def settle_quickly(
        self, parts: Sequence[Part], sizes: Sequence[int], than: Score, nodes: tuple[int, int]
    ) -> Score | None:
        """What these pools score if that is less than `than`, by as many choices as `Leaves.settle` says; None else.
        Not proven. Kept if it is better than the best so far."""
        option = self._option(parts, sizes)
        wanted = [(draft.group.name, len(draft.devices)) for draft in option.pools]
        most, more = nodes
        within = self.objective.most_seconds(wanted, than)
        settled = self.leaves.settle(self._pitches(option), within, most, more_nodes=more)
        if settled is None:
            return None
        score = self.objective.score(settled.seconds, wanted)
        if score < self.score:
            self._keep(self._candidate(option, settled.pools))
        return score

    def settle_way(self, parts: Sequence[Part], sizes: Sequence[int]) -> Candidate | None:
        """Whether it is better than others or not. On GPUs a few choices are looked at: branch and bound has all. Gives
        what it came to."""
        on_cpu = any(self.places.groups[part.group].device.is_cpu for part in parts)
        option = self._option(parts, sizes)
        self.settle_option(option, None if on_cpu else MOST_NODES_TOLD)
        return self.tried.get(option.label)

    def settle_written(self, seats: Sequence[Seat], homes: Mapping[str, str]) -> None:
        """The pools of the flow, and roles in them that it leaves open."""
        requests = self.ways.request.pools
        wanted = [(seat.group, seat.sizes[0]) for seat in seats]
        devices = self.places.devices(wanted, range(len(wanted)))
        drafts = [
            Draft(
                pool.name,
                taken,
                self.places.groups[seat.group],
                tuple(role for role in self.ways.roles if role in pool.roles or homes.get(role) == pool.name),
                dict(pool.layouts),
            )
            for pool, seat, taken in zip(requests, seats, devices, strict=True)
        ]
        text = "; ".join(f"{role} in {pool}" for role, pool in homes.items())
        self.settle_option(Option(text or "the pools as written", tuple(draft for draft in drafts if draft.roles)))

    def settle_option(self, option: Option, most_nodes: int | None = None) -> None:
        """These pools; if nothing fits, what is nearest to it."""
        if not self._settle(option, inf, most_nodes) and self.near:
            near = self._near(option)
            if near is not None:
                self._keep(near)

    def settle_host(self) -> None:
        """A flow without roles on devices."""
        self._keep(self._candidate(Option("host only", ()), ()))

    def settle_some(self) -> None:
        """Some way that is allowed, for when no familiar one is: as few pools as the wishes allow, of equal sizes."""
        group = max(self.costs.cluster.groups, key=group_size)
        parts: list[list[str]] = []
        for role in self.ways.roles:
            home = next((part for part in parts if self.ways.may_join(role, part)), None)
            home.append(role) if home is not None else parts.append([role])
        way = self.ways.in_order([Part(tuple(part), group.name) for part in parts])
        each = group_size(group) // max(1, len(way))
        if each and len(way) <= self.ways.most_pools and self.ways.allowed(way):
            self.settle_way(way, [each] * len(way))

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _option(self, parts: Sequence[Part], sizes: Sequence[int]) -> Option:
        names = self.ways.names(parts)
        wanted = [(part.group, size) for part, size in zip(parts, sizes, strict=True)]
        devices = self.places.devices(wanted, largest_first(wanted))
        drafts = tuple(
            Draft(name, taken, self.places.groups[part.group], part.roles)
            for name, taken, part in zip(names, devices, parts, strict=True)
        )
        return Option(self.ways.label(parts, sizes, names), drafts)

    def _settle(self, option: Option, most_seconds: float, most_nodes: int | None = None) -> bool:
        settled = self.leaves.settle(self._pitches(option), most_seconds, most_nodes)
        if settled is None:
            return False
        self._keep(self._candidate(option, settled.pools))
        return True

    def _pitches(self, option: Option) -> list[Pitch]:
        pools = [
            Pool(name=draft.name, devices=draft.devices, device=draft.group.device.name, roles=())
            for draft in option.pools
        ]
        return [
            Pitch(draft.name, draft.roles, draft.group, draft.devices, self._site(draft, pool, pools))
            for draft, pool in zip(option.pools, pools, strict=True)
        ]

    def _site(self, draft: Draft, pool: Pool, pools: Sequence[Pool]) -> Site:
        if draft.group.device.is_cpu:
            return self.costs.site(pool, pools)
        return self.places.site(self.places.shape(draft.group.name, draft.devices))

    def _candidate(self, option: Option, pools: Sequence[Pool], *, starved: bool = False) -> Candidate:
        every = (*pools, *([self._host] if self._host is not None else ()))
        costs, work = self.costs, self.costs.work
        seconds = step_seconds(work.graph, every, work.shapes, costs.cluster, work.request, costs=costs)
        wanted = [(draft.group.name, len(draft.devices)) for draft in option.pools]
        value, late = self.objective.score(seconds, wanted)[0], seconds > self.objective.at_most
        return Candidate(option, Laid(every, self._needed(every)), seconds, value, starved, late)

    def _keep(self, candidate: Candidate) -> None:
        self.tried[candidate.option.label] = candidate
        wanted = [(draft.group.name, len(draft.devices)) for draft in candidate.option.pools]
        score = self.objective.score(candidate.seconds, wanted)
        if candidate.usable and score < self.score:
            self.best, self.score = candidate, score

    def with_room(self, best: Candidate) -> Candidate:
        """The best, its pools worked out with finer shares of a device for engines, which then get all that the others
        leave."""
        if not any(is_open(self.ways.graph.role(r)) for d in best.option.pools if len(d.roles) > 1 for r in d.roles):
            return best
        pitches = self._pitches(best.option)
        settled = Leaves(self.leaves.clock, self.stays.finer()).settle(pitches, best.seconds, MOST_NODES_FINER)
        if settled is not None:
            best = self._candidate(best.option, settled.pools)
        device_pools = [pool for pool in best.laid.pools if pool.devices]
        if all(entry.memory_share is None for pool in device_pools for entry in pool.roles):
            return best
        sites = [self.costs.site(pool, best.laid.pools) for pool in device_pools]
        pools = [
            replace(pool, roles=grown(self.costs, pool.roles, site))
            for pool, site in zip(device_pools, sites, strict=True)
        ]
        return self._candidate(best.option, pools)

    def squeeze(self) -> None:
        """Bring every way that was tried as near to fitting as its roles' choices allow."""
        for candidate in list(self.tried.values()):
            near = self._near(candidate.option, MOST_ROUNDS)
            if near is not None and near.rank() < candidate.rank():
                self._keep(near)

    def _near(self, option: Option, rounds: int = 0) -> Candidate | None:
        found = squeezed(self.stays, self._pitches(option), rounds)
        return None if found is None else self._candidate(option, found[0], starved=found[1])

    def _needed(self, pools: Sequence[Pool]) -> tuple[Memory, ...]:
        """What `memory` gives, of devices without its lines."""
        on_devices = [(pool, self.costs.site(pool, pools)) for pool in pools if pool.devices]
        costs = [(pool, site, self.costs.pool_costs(pool.roles, site)) for pool, site in on_devices]
        needed = [entry for _, site, roles in costs for entry in self.costs.pool_needs(roles, site)]
        everyone = [(pool, tuple(cost.on(pool) for cost in roles)) for pool, _, roles in costs]
        return (*needed, *host_memory(everyone, self.costs.cluster, self.costs.work))

    # -- what the best is told beside ---------------------------------------------------------------------------------

    def sites(self, best: Candidate) -> dict[str, Site]:
        """Where each of its roles on devices is."""
        return {role: pitch.site for pitch in self._pitches(best.option) for role in pitch.roles}

    def recomputed(self, best: Candidate) -> dict[str, tuple[Candidate, ...]]:
        """For each trainer whose flow leaves it open, the best on the same pools with each other recomputation of its
        activations, those of the others as they are."""
        entries = {entry.role: entry for pool in best.laid.pools if pool.devices for entry in pool.roles}
        open_roles = [r for r in self.ways.graph.roles if r.trainable and r.engine.recompute is None]
        chosen = {role.name: entries[role.name].recompute for role in open_roles if role.name in entries}
        found: dict[str, tuple[Candidate, ...]] = {}
        for role in open_roles:
            others = (way for way in recomputations(role) if way != chosen.get(role.name, way))
            tried = (self._with_recompute(best.option, {**chosen, role.name: way}) for way in others)
            found[role.name] = tuple(each for each in tried if each is not None)
        return found

    def _with_recompute(self, option: Option, recompute: Mapping[str, str]) -> Candidate | None:
        pitches = self._pitches(option)
        settled = self.leaves.settle(pitches, inf, MOST_NODES_TOLD, recompute)
        if settled is not None:
            return self._candidate(option, settled.pools)
        stays = RoleStays(self.costs, self.stays.choices, self.stays.layouts, recompute)
        near = squeezed(stays, pitches)
        return None if near is None else self._candidate(option, near[0], starved=near[1])
