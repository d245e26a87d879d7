"""The best choices of all roles for pools of given sizes: exact, within memory of devices and of hosts.

Depth first over the roles, pool by pool: first those that weights edges join, so that hand-overs are known early, then
the longest, each in the stays that no other beats. What cannot be better than the best so far is cut off by the steady
seconds with all open roles at their least (clock.py), and by the memory that the chosen ones need beside the least that
the others leave. Takes Pitches (which roles, on which devices); gives a Settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flowrl.placement.cost.role import RoleCost, Site
from flowrl.placement.search.candidate import Pitch
from flowrl.placement.search.clock import LEAVES, STAYS, Clock, Frame
from flowrl.placement.search.hosts import HostRoom
from flowrl.placement.search.opens import Given, Least, Open, in_turn
from flowrl.placement.search.stays import RoleStays, Stay
from flowrl.placement.time.fast_step import Pair
from flowrl.placement.time.step import Home
from flowrl.plan.plan import Pool, RolePlacement

MOST_LOOKED = 20_000
"""Bounds and choices that a search looks at before it stops and says how far it may be from the best."""
LEAST_NODES = 1_000
"""Choices of a leaf that are looked at, however much was before."""
USUAL_ROLES, USUAL_OPS = 10, 30
"""Of graphs with more of either a look takes longer, in proportion, and fewer are taken: the one rule for every number
of looks. A look at a choice weighs its role against the others of its pool, and one at a box or a move all nodes of the
event graph: with five roles either takes some 15 microseconds, with ten twice as long."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The best choices for some pools."""

    seconds: float
    pools: tuple[Pool, ...]


@dataclass(slots=True)
class Count:
    """How much was looked at, and whether something was left out for it."""

    looked_at: int = 0
    cut_short: bool = False


@dataclass(slots=True)
class Leaves:
    """Settles pools of one graph on one cluster."""

    clock: Clock
    stays: RoleStays
    count: Count = field(default_factory=Count)
    given: dict[object, tuple[Given, ...] | None] = field(default_factory=dict[object, tuple[Given, ...] | None])
    """What the roles of a pool may be, by its site and its roles."""
    was_whole: bool = True
    """Whether all choices of the last pools were looked at, but for those that cannot be better."""
    hosts_bind: bool = False
    """Whether some choice was as good as the best but for memory of hosts: then it is looked at early."""

    def looks(self, count: int, usual_roles: int = USUAL_ROLES) -> int:
        """So many of `count` looks as take no longer than `count` of them in a graph of `usual_roles`."""
        share = min(1.0, usual_roles / max(1, len(self.clock.roles)), USUAL_OPS / max(1, len(self.clock.blank)))
        return max(2 * len(self.clock.roles), round(count * share))

    def settle(
        self,
        pitches: Sequence[Pitch],
        most_seconds: float,
        most_nodes: int | None = None,
        recompute: Mapping[str, str] | None = None,
        more_nodes: int = 0,
    ) -> Settled | None:
        """The first of the quickest choices whose step is shorter than `most_seconds` (of equal ones not), or None.
        With `most_nodes` the best of so many that are looked at, which proves nothing; where none of them will do, the
        first of `more_nodes` that does. `recompute`: by role, where it is given."""
        self.was_whole = True
        return _Search(self, pitches, most_seconds, most_nodes, recompute or {}, more_nodes).run()


class _Search:
    """One depth-first search."""

    def __init__(
        self,
        leaves: Leaves,
        pitches: Sequence[Pitch],
        most_seconds: float,
        most_nodes: int | None,
        recompute: Mapping[str, str],
        more_nodes: int = 0,
    ) -> None:
        self.leaves, self.pitches, self.most = leaves, pitches, most_seconds
        self.left = most_nodes or max(leaves.looks(LEAST_NODES), leaves.looks(MOST_LOOKED) - leaves.count.looked_at)
        self.must_prove, self.more = most_nodes is None, more_nodes
        self.costs, self.clock, self.stays = leaves.stays.costs, leaves.clock, leaves.stays
        self._recompute = recompute
        self.chosen: list[list[Stay]] = [[] for _ in pitches]
        self.best: list[list[Stay]] | None = None
        self.firing, self.moves = list(self.clock.blank), list(self.clock.unmoved)
        self.away = [STAYS] * len(self.clock.roles)
        self.pool_of = [0] * len(self.clock.roles)
        self._homes: dict[str, Home] = {}
        self._within: dict[tuple[str, int, int], Least | None] = {}
        self._frames: dict[tuple[int, ...], Frame] = {}
        self._hosts: HostRoom | None = None
        self._real: list[Site] | None = None
        self.order = in_turn(pitches, self.clock, self.stays)
        for each in self.order:
            self.pool_of[each.number] = each.pool

    def run(self) -> Settled | None:
        if not self._fill() or (self.leaves.hosts_bind and self._watch_hosts()):
            return None
        self._descend(0, {})
        return None if self.best is None else Settled(self.most, self._pools(self.best))

    def _fill(self) -> bool:
        """The least of every op, and of what roles leave; False if some role has no place here, or nothing of it could
        be better than the best so far."""
        for number in range(len(self.pitches)):
            mine = [each for each in self.order if each.pool == number]
            given = self._given(number, mine)
            if given is None:
                return False
            for each, (quick, left, away, move, stays) in zip(mine, given, strict=True):
                each.quick, each.left, each.away, each.move, each.stays = quick, left, away, move, stays
        for level, each in enumerate(self.order):
            after = [other for other in self.order[level + 1 :] if other.pool == each.pool]
            each.rest = sum([other.left for other in after])
            each.later = [other for other in after if other.stays]
            each.least = (each.quick, each.away, each.move)
            self._reset(each)
        return not self._is_long({})

    def _given(self, pool: int, mine: Sequence[Open]) -> tuple[Given, ...] | None:
        """What the roles of a pool may be, whatever the others are; None if one of them has no place. Kept."""
        asked = tuple((each.role, self._recompute.get(each.role)) for each in mine)
        key, known = (self.pitches[pool].site, asked), self.leaves.given
        if key not in known:
            fits = self._has_stays(pool, mine) and self._thin(pool, mine)
            found = ((each.quick, each.left, each.away, each.move, each.stays) for each in mine)
            known[key] = tuple(found) if fits else None
        return known[key]

    def _has_stays(self, pool: int, mine: Sequence[Open]) -> bool:
        pitch = self.pitches[pool]
        for each in mine:
            quick = self.stays.quickest(each.role, pitch.site)
            if quick is None:
                return False
            each.quick = quick
            if self.costs.partners(each.role).isdisjoint(pitch.roles):
                each.stays = self._stays(each, ())
                if not each.stays:
                    return False
                each.left = min(stay.left for stay in each.stays)
        return True

    def _stays(self, each: Open, beside: Sequence[RolePlacement]) -> tuple[Stay, ...]:
        found = self.stays.of(each.role, self.pitches[each.pool].site, beside, alone=each.alone)
        wanted = self._recompute.get(each.role)
        return found if wanted is None else tuple(stay for stay in found if stay.entry.recompute == wanted)

    def _thin(self, pool: int, mine: Sequence[Open]) -> bool:
        """Drop stays for which the others of the pool have no room whatever they choose; False if none is left."""
        if any(not each.stays for each in mine):
            return True
        site = self.pitches[pool].site
        for _ in range(2):
            least = sum(each.left for each in mine)
            peaks = {each.role: min(stay.peak for stay in each.stays) for each in mine}
            for each in mine:
                others = max((peaks[o.role] - o.left for o in mine if o is not each), default=0)
                room = site.limit_bytes - self.costs.always((each.stays[0].cost,), site) - (least - each.left)
                each.stays = tuple(
                    stay for stay in each.stays if stay.peak <= room and (each.alone or stay.left + others <= room)
                )
                if not each.stays:
                    return False
                each.left = min(stay.left for stay in each.stays)
        for each in mine:
            each.quick, each.away, each.move = self._least_of(each.stays)
        return True

    def _least_of(self, stays: Sequence[Stay]) -> Least:
        away, move = STAYS, (0.0, 0.0)
        if all(stay.cost.offloaded for stay in stays):
            away, move = LEAVES, (min([stay.cost.move_seconds for stay in stays]), 0.0)
        return tuple(map(min, *[stay.seconds for stay in stays])) if len(stays) > 1 else stays[0].seconds, away, move

    def _leave_room(self, each: Open) -> list[tuple[Open, Least]] | None:
        """Raise the least of the open roles of its pool to that of the stays which those that are chosen leave room
        for. What it was before; None if some role has none left."""
        if not each.later:
            return []
        mine, site = self.chosen[each.pool], self.pitches[each.pool].site
        counted = sum([stay.cost.counted for stay in mine])
        every = sum([stay.left for stay in mine]) + each.rest
        room = site.limit_bytes - self.costs.always_of(counted, site) - every
        beside = room - max([stay.above for stay in mine])
        before: list[tuple[Open, Least]] = []
        for other in each.later:
            found = self._least_within(other, room + other.left, beside + other.left)
            if found is None:
                self._restore(before)
                return None
            if found != other.least:
                assert other.least is not None
                before.append((other, other.least))
                other.least = found
                self._reset(other)
        return before

    def _least_within(self, each: Open, most: int, left: int) -> Least | None:
        """Of the stays that need at most `most` bytes at work and leave at most `left`."""
        key = (each.role, most, left)
        if key not in self._within:
            stays = [stay for stay in each.stays if stay.peak <= most and stay.left <= left]
            self._within[key] = self._least_of(stays) if stays else None
        return self._within[key]

    def _restore(self, before: Sequence[tuple[Open, Least]]) -> None:
        for each, least in before:
            each.least = least
            self._reset(each)

    def _put(self, each: Open, seconds: Sequence[float]) -> None:
        for place, value in zip(self.clock.places[each.role], seconds, strict=True):
            self.firing[place] = value

    def _reset(self, each: Open) -> None:
        """As long as it is open."""
        assert each.least is not None
        quick, self.away[each.number], self.moves[each.number] = each.least
        self._put(each, quick)

    def _descend(self, level: int, synced: Mapping[int, Pair]) -> None:
        if level == len(self.order):
            self._finish()
            return
        each, count = self.order[level], self.leaves.count
        mine, number = self.chosen[each.pool], each.number
        for stay in each.stays or self._stays(each, [stay.entry for stay in mine]):
            if self.left <= 0 and self.more > 0 and self.best is None:
                self.left, self.more = 1, self.more - 1
            if self.left <= 0:
                self.leaves.was_whole = False
                count.cut_short |= self.must_prove
                break
            self.left -= 1
            count.looked_at += 1
            if not self._may_fit(each, stay):
                continue
            self._put(each, stay.seconds)
            self.away[number], self.moves[number] = stay.away, stay.moves
            mine.append(stay)
            if not self._is_long(synced):
                self._go_on(each, stay, level, synced)
            mine.pop()
        if self._hosts is not None:
            self._hosts.take(each.role)
        self._reset(each)

    def _go_on(self, each: Open, stay: Stay, level: int, synced: Mapping[int, Pair]) -> None:
        """With what the chosen ones leave the others room for."""
        if self._hosts is not None:
            self._hosts.put(each.role, stay)
            if self._hosts.is_over():
                return
        before = self._leave_room(each)
        if before is None:
            return
        if not (before and self._is_long(synced)) and self._fits(each.pool):
            self._hand_over(each, stay, level, synced)
        self._restore(before)

    def _hand_over(self, each: Open, stay: Stay, level: int, synced: Mapping[int, Pair]) -> None:
        """With what is handed over between roles that are chosen."""
        self._homes[each.role] = Home(stay.cost, self._real_sites()[each.pool])
        more = {
            number: self.clock.synced(number, self._homes)
            for number in each.edges
            if all(end in self._homes for end in self.clock.edges[number][1:])
        }
        joined = {**synced, **more} if more else synced
        if not more or not self._is_long(joined):
            self._descend(level + 1, joined)
        del self._homes[each.role]

    def _is_long(self, synced: Mapping[int, Pair]) -> bool:
        """Whether no completion is shorter than the best so far."""
        return self._frame().reaches(self.clock.nodes(self.firing, synced), self.moves, self.most)

    def _frame(self) -> Frame:
        key = tuple(self.away)
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = self.clock.frame(self.pool_of, key)
        return found

    def _may_fit(self, each: Open, stay: Stay) -> bool:
        """Beside those that are chosen, with the least that the open ones leave."""
        left, above, counted = each.rest + stay.left, stay.above, int(stay.cost.counted)
        for other in self.chosen[each.pool]:
            left += other.left
            counted += other.cost.counted
            if other.above > above:
                above = other.above
        site = self.pitches[each.pool].site
        return above + left + self.costs.always_of(counted, site) <= site.limit_bytes

    def _fits(self, pool: int) -> bool:
        """Whether the roles that are chosen fit: others only add to what they need."""
        return self.costs.fits(self._in_order(pool, self.chosen[pool]), self.pitches[pool].site)

    def _in_order(self, pool: int, stays: Sequence[Stay]) -> tuple[RoleCost, ...]:
        by_role = {stay.entry.role: stay.cost for stay in stays}
        return tuple(by_role[role] for role in self.pitches[pool].roles if role in by_role)

    def _finish(self) -> None:
        """A whole choice: its bound is its step."""
        synced = {number: self.clock.synced(number, self._homes) for number in range(len(self.clock.edges))}
        nodes = self.clock.nodes(self.firing, synced)
        seconds = self._frame().least(nodes, self.moves)
        if seconds >= self.most:
            return
        if self._fits_on_hosts(self.chosen):
            self.most, self.best = seconds, [list(stays) for stays in self.chosen]
        elif self._hosts is None:
            self._watch_hosts()

    def _real_sites(self) -> list[Site]:
        if self._real is None:
            self._real = [self._real_site(each) for each in self.pitches]
        return self._real

    def _real_site(self, pitch: Pitch) -> Site:
        empty = Pool(name=pitch.name, devices=pitch.devices, device=pitch.group.device.name, roles=())
        return pitch.site if pitch.group.device.is_cpu else self.costs.site(empty)

    def _watch_hosts(self) -> bool:
        """From now on, in all leaves: whether what is chosen leaves some host too little, whatever the rest will be."""
        self.leaves.hosts_bind = True
        nodes = self.costs.hosts(
            [
                (Pool(name=pitch.name, devices=pitch.devices, device=pitch.group.device.name, roles=()), own)
                for number, pitch in enumerate(self.pitches)
                for own in [[self._any(each) for each in self.order if each.pool == number]]
            ]
        )
        pools = {role: pitch.name for pitch in self.pitches for role in pitch.roles}
        self._hosts = HostRoom(nodes, pools, {each.role: each.stays for each in self.order})
        for stay in (stay for mine in self.chosen for stay in mine):
            self._hosts.put(stay.entry.role, stay)
        return self._hosts.is_over()

    def _any(self, each: Open) -> RoleCost:
        """Some choice of a role: which it is makes no difference to what stands on its nodes."""
        site = self.pitches[each.pool].site
        return self.costs.role_cost(self.stays.every(each.role, site, alone=each.alone)[0], site)

    def _pools(self, chosen: Sequence[Sequence[Stay]]) -> tuple[Pool, ...]:
        pools: list[Pool] = []
        for pitch, stays in zip(self.pitches, chosen, strict=True):
            entries = {stay.entry.role: stay.entry for stay in stays}
            roles = tuple(entries[role] for role in pitch.roles)
            device = pitch.group.device.name
            pools.append(Pool(name=pitch.name, devices=pitch.devices, device=device, roles=roles))
        return tuple(pools)

    def _fits_on_hosts(self, chosen: Sequence[Sequence[Stay]]) -> bool:
        pools = self._pools(chosen)
        placed = [(pool, self._in_order(number, chosen[number])) for number, pool in enumerate(pools)]
        needed = self.costs.host_needs(placed)
        return all(entry.peak_bytes <= entry.limit_bytes for entry in needed)
