"""Wishes → a request that asks for them, on the pools of a plan: other roles stay where they are, pool sizes, layouts,
residency and recomputation are chosen anew.

Sizes go uphill: devices move between pools, half of them first and one unit last, as long as that is faster. Takes a
stage's situation and the pools of its plan; gives a graph and a request to plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from msgspec.structs import replace

from flowrl.diag.diagnostic import FlowError
from flowrl.explain.question import Wish
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.shape import ModelShape
from flowrl.placement.cost.placed import group_of, needs_devices
from flowrl.placement.request import LayoutRequest, Mode, PlacementRequest, PoolRequest
from flowrl.placement.search import Candidate, search
from flowrl.plan.plan import Pool

MOST_TRIES = 24
"""Placements that are worked out to find sizes."""
CONVENTIONAL = {"all": Mode.COLOCATED, "rollout": Mode.DISAGGREGATED, "train": Mode.DISAGGREGATED}
"""Pools that a question may name though the plan has others: those of the other modes."""

Shapes = Mapping[str, ModelShape]


@dataclass(frozen=True, slots=True)
class Situation:
    graph: Graph
    cluster: Cluster
    request: PlacementRequest


@dataclass(frozen=True, slots=True)
class _Draft:
    """A pool that is asked for. `roles` may be empty: its devices are then left over."""

    name: str
    group: NodeGroup
    roles: tuple[str, ...]
    gpus: int
    fixed: bool = False


@dataclass(slots=True)
class _Home:
    """Pools as they are asked for, one wish after another."""

    pools: dict[str, _Draft]
    layouts: dict[str, LayoutRequest] = field(default_factory=dict[str, LayoutRequest])

    def of(self, role: str) -> _Draft:
        return next(pool for pool in self.pools.values() if role in pool.roles)

    def move(self, role: str, target: str) -> None:
        """What is left without a role gives its devices to where the last of them went."""
        source, goal = self.of(role), self.pools[target]
        if source.name == target:
            return
        rest = tuple(name for name in source.roles if name != role)
        given = source.gpus if not rest and source.group is goal.group and not source.fixed else 0
        self.pools[source.name] = _changed(source, rest, source.gpus - given)
        self.pools[target] = _changed(goal, (*goal.roles, role), goal.gpus + (0 if goal.fixed else given))

    def part(self, role: str) -> None:
        """A pool of its own, of half of the devices that it shared."""
        source = self.of(role)
        if len(source.roles) == 1:
            return
        half = max(1, source.gpus // 2) if source.gpus > 1 else 0
        name = role if role not in self.pools else f"{role} apart"
        rest = tuple(each for each in source.roles if each != role)
        self.pools[source.name] = _changed(source, rest, source.gpus - half)
        self.pools[name] = _Draft(name, source.group, (role,), half)


def _changed(pool: _Draft, roles: tuple[str, ...], gpus: int) -> _Draft:
    return _Draft(pool.name, pool.group, roles, gpus, pool.fixed)


def wished(wishes: Sequence[Wish], at: Situation, pools: Sequence[Pool], shapes: Shapes) -> Situation:
    """The situation in which the wishes are asked for. `pools`: those of the plan. Raises FlowError where no placement
    can meet them, whatever its sizes."""
    graph = _with_engines(at.graph, wishes)
    asked = next((wish.mode for wish in wishes if wish.mode is not None), None) or _mode_of_pools(wishes, pools)
    request = at.request if asked is None else replace(at.request, mode=asked, pools=(), pin={}, span=None)
    now = Situation(graph, at.cluster, request)
    placed = [wish for wish in wishes if wish.pool or wish.axes or wish.apart or len(wish.roles) > 1]
    if not placed:
        return now
    if asked is None and request.mode is not Mode.POOLS and all(wish.apart for wish in placed):
        return Situation(graph, at.cluster, replace(request, mode=Mode.AUTO, apart=_all_apart(graph, request, placed)))
    base = pools if asked is None else _best(now, shapes).laid.pools
    home = _homes(base, at)
    for wish in wishes:
        _ask(home, wish)
    return _sized(now, _started(home), home.layouts, shapes)


def _all_apart(graph: Graph, request: PlacementRequest, wishes: Iterable[Wish]) -> tuple[tuple[str, ...], ...]:
    """What the flow keeps apart and what the wishes do: a search meets that by itself, in its best way."""
    pairs = [
        (wish.roles[0], role.name)
        for wish in wishes
        if len(wish.roles) == 1
        for role in graph.roles
        if needs_devices(role) and role.name != wish.roles[0]
    ]
    groups = [wish.roles for wish in wishes if len(wish.roles) > 1]
    return (*request.apart, *groups, *pairs)


def _with_engines(graph: Graph, wishes: Iterable[Wish]) -> Graph:
    changes: dict[str, dict[str, object]] = {}
    for wish in wishes:
        if wish.stays is not None:
            changes.setdefault(wish.roles[0], {})["offload"] = not wish.stays
        if wish.recompute is not None:
            changes.setdefault(wish.roles[0], {})["recompute"] = wish.recompute
    if not changes:
        return graph
    roles = (
        replace(role, engine=replace(role.engine, **changes[role.name])) if role.name in changes else role
        for role in graph.roles
    )
    return replace(graph, roles=tuple(roles))


def _mode_of_pools(wishes: Sequence[Wish], pools: Sequence[Pool]) -> Mode | None:
    """The mode that has the pools that are named, if the plan has not."""
    there = {pool.name for pool in pools}
    missing = [wish.pool for wish in wishes if wish.pool is not None and wish.pool not in there]
    return CONVENTIONAL[missing[0]] if missing else None


def _homes(pools: Sequence[Pool], at: Situation) -> _Home:
    on_devices = [pool for pool in pools if pool.devices]
    drafts = {
        pool.name: _Draft(
            pool.name, group_of(pool, at.cluster), tuple(entry.role for entry in pool.roles), len(pool.devices)
        )
        for pool in on_devices
    }
    written = {role: layout for pool in at.request.pools for role, layout in pool.layouts.items()}
    return _Home(drafts, dict(written))


def _ask(home: _Home, wish: Wish) -> None:
    if wish.axes:
        home.layouts[wish.roles[0]] = _layout(wish.axes)
    elif wish.gpus is not None and wish.pool is not None:
        pool = home.pools[wish.pool]
        home.pools[wish.pool] = _Draft(pool.name, pool.group, pool.roles, wish.gpus, fixed=True)
    elif wish.pool is not None:
        home.move(wish.roles[0], wish.pool)
    elif wish.apart:
        _apart(home, wish.roles)
    elif len(wish.roles) > 1:
        target = home.of(wish.roles[1]).name
        for role in wish.roles:
            home.move(role, target)


def _layout(axes: Mapping[str, int]) -> LayoutRequest:
    return LayoutRequest(tp=axes.get("tp", 1), pp=axes.get("pp", 1), cp=axes.get("cp", 1), ep=axes.get("ep", 1))


def _apart(home: _Home, roles: Sequence[str]) -> None:
    taken: set[str] = set()
    for role in roles:
        if len(roles) == 1 or home.of(role).name in taken:
            home.part(role)
        taken.add(home.of(role).name)


def _started(home: _Home) -> dict[str, _Draft]:
    """Pools with roles, none larger together than their group: what is over is taken from the largest that may give."""
    pools = {name: pool for name, pool in home.pools.items() if pool.roles}
    for group in {id(pool.group): pool.group for pool in pools.values()}.values():
        own = [name for name, pool in pools.items() if pool.group is group]
        over = sum(pools[name].gpus for name in own) - group.nodes * group.devices_per_node
        for name in sorted(own, key=lambda each: -pools[each].gpus):
            pool = pools[name]
            if over > 0 and not pool.fixed:
                given = min(over, pool.gpus - 1)
                pools[name], over = _changed(pool, pool.roles, pool.gpus - given), over - given
    return pools


def _sized(at: Situation, pools: dict[str, _Draft], layouts: Mapping[str, LayoutRequest], shapes: Shapes) -> Situation:
    """The request with the fastest sizes that going uphill finds. Where none is legal, the first's fault is raised."""
    best, now = _request(at, pools, layouts), None
    fault: FlowError | None = None
    try:
        now = _best(Situation(at.graph, at.cluster, best), shapes).rank()
    except FlowError as error:
        fault = error
    left = MOST_TRIES
    while left > 0:
        better = False
        for changed in _moves(pools):
            if left == 0:
                break
            left -= 1
            asked = _request(at, changed, layouts)
            try:
                rank = _best(Situation(at.graph, at.cluster, asked), shapes).rank()
            except FlowError:
                continue
            if now is None or rank < now:
                pools, best, now, better = changed, asked, rank, True
                break
        if not better:
            break
    if now is None and fault is not None:
        raise fault
    return Situation(at.graph, at.cluster, best)


def _moves(pools: dict[str, _Draft]) -> Iterator[dict[str, _Draft]]:
    """Every pair of pools of a group with devices moved from one to the other, many first; then idle devices taken."""
    for amount in _amounts(pools):
        for one, other in permutations(pools, 2):
            giver, taker = pools[one], pools[other]
            if giver.group is taker.group and not giver.fixed and not taker.fixed and giver.gpus > amount:
                yield {
                    **pools,
                    one: _changed(giver, giver.roles, giver.gpus - amount),
                    other: _changed(taker, taker.roles, taker.gpus + amount),
                }
    for name, pool in pools.items():
        used = sum(each.gpus for each in pools.values() if each.group is pool.group)
        idle = pool.group.nodes * pool.group.devices_per_node - used
        if idle > 0 and not pool.fixed:
            yield {**pools, name: _changed(pool, pool.roles, pool.gpus + idle)}


def _amounts(pools: Mapping[str, _Draft]) -> list[int]:
    """Half of the largest pool and its halves, down to one device."""
    amount = max(pool.gpus for pool in pools.values()) // 2
    amounts: list[int] = []
    while amount > 0:
        amounts.append(amount)
        amount //= 2
    return amounts


def _request(at: Situation, pools: Mapping[str, _Draft], layouts: Mapping[str, LayoutRequest]) -> PlacementRequest:
    several = len(at.cluster.groups) > 1
    asked = tuple(
        PoolRequest(
            name=pool.name,
            gpus=pool.gpus,
            group=pool.group.name if several else None,
            roles=pool.roles,
            layouts={role: layout for role, layout in layouts.items() if role in pool.roles},
        )
        for pool in pools.values()
    )
    return replace(at.request, mode=Mode.POOLS, pools=asked, pin={}, span=None)


def to_write(wishes: Sequence[Wish], before: PlacementRequest, asked: PlacementRequest) -> tuple[str, ...]:
    """The lines of a flow that ask for the same."""
    lines: list[str] = []
    for wish in wishes:
        if wish.stays is not None:
            lines.append(f"roles.{wish.roles[0]}.engine.offload: {'false' if wish.stays else 'true'}")
        if wish.recompute is not None:
            lines.append(f"roles.{wish.roles[0]}.engine.recompute: {wish.recompute}")
    if asked.mode is not Mode.POOLS and asked.mode is not before.mode:
        lines.append(f"placement: {asked.mode}")
    if asked.apart != before.apart:
        lines += ["placement:", f"  apart: {_lists(asked.apart)}"]
    if asked.mode is Mode.POOLS and asked.pools != before.pools:
        lines += ["placement:", "  pools:", *(line for pool in asked.pools for line in _pool_lines(pool))]
    return tuple(lines)


def _lists(groups: Iterable[Sequence[str]]) -> str:
    """`[[critic, reference], [critic, actor_infer]]`."""
    return f"[{', '.join(f'[{names}]' for names in (', '.join(group) for group in groups))}]"


def _pool_lines(pool: PoolRequest) -> Iterator[str]:
    yield f"    {pool.name}:"
    yield f"      gpus: {pool.gpus}"
    if pool.group is not None:
        yield f"      group: {pool.group}"
    yield f"      roles: [{', '.join(pool.roles)}]"
    if pool.layouts:
        cuts = (f"{role}: {{{_axes(layout)}}}" for role, layout in pool.layouts.items())
        yield f"      layouts: {{{', '.join(cuts)}}}"


def _axes(layout: LayoutRequest) -> str:
    sizes = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    return ", ".join(f"{name}: {size}" for name, size in sizes.items() if size > 1 or name == "tp")


def _best(at: Situation, shapes: Shapes) -> Candidate:
    return search(at.graph, at.cluster, at.request, shapes).best
