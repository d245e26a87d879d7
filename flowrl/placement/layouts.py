"""The layout of each role on its pool, and which roles leave their devices while others work.

Layouts: what the flow says; else a generator the smallest tp whose engine starts (a larger one if that is far faster
because samples wait for the engine's cache), Megatron the smallest tp·pp that fits alone, everything else dp =
devices; a larger cut where those do not fit together. Roles of one pool leave it in a fixed order (engines, trainers,
scorers), as few as fit. Takes drafts; gives pools with the memory they need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Kind, Role
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import ENGINES, TRAITS, layout_fault, legal_tp
from flowrl.placement.cost.placed import HOST, needs_devices
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.cost.workload import Workload
from flowrl.placement.devices import broken_group
from flowrl.placement.memory.engine import cache_tokens
from flowrl.placement.memory.host import host_memory
from flowrl.placement.memory.pool import memory
from flowrl.placement.options import Draft, Option
from flowrl.plan.plan import Layout, Memory, Pool, Rejected, RolePlacement

_LEAVING_ORDER = (Kind.GENERATOR, Kind.TRAINER, Kind.SCORER, Kind.REWARD, Kind.FUNCTION)
MOST_HOST_SLOTS = 16
WORTH_A_CUT = 1.5
"""How many times as fast generation must be for a larger tp. A cut costs what the modelled times do not know: the
latency of its collectives."""


@dataclass(frozen=True, slots=True)
class Laid:
    """Pools with layouts and residency, what they need, and what was passed over on the way."""

    pools: tuple[Pool, ...]
    memory: tuple[Memory, ...]
    """Of devices without ledger lines, until `Layouts.told` makes them."""
    passed_over: Mapping[str, tuple[Rejected, ...]]
    """By role: smaller layouts that do not fit."""

    @property
    def fits(self) -> bool:
        return all(entry.peak_bytes <= entry.limit_bytes for entry in self.memory)

    @property
    def tightest(self) -> Memory | None:
        return max(self.memory, key=lambda entry: entry.peak_bytes / max(1, entry.limit_bytes), default=None)


@dataclass(frozen=True, slots=True)
class _Generation:
    seconds: float
    waits: bool
    """Whether the cache holds fewer samples of mean length than an engine is given."""


class Layouts:
    """Lays out the options of one graph on one cluster."""

    def __init__(self, work: Workload, cluster: Cluster) -> None:
        self.graph, self.cluster, self.request, self.shapes = work.graph, cluster, work.request, work.shapes
        self.costs = RoleCosts(work, cluster)
        self._work = work

    def lay_out(self, option: Option, recompute: Mapping[str, str]) -> Laid:
        """`recompute` is by role, for those that the flow leaves open."""
        on_cpu = any(draft.group.device.is_cpu for draft in option.pools)
        pools: list[Pool] = []
        passed_over: dict[str, tuple[Rejected, ...]] = {}
        for draft in option.pools:
            pool, over = self._pool(draft, recompute)
            pools.append(pool if on_cpu else self._together(draft, pool, over))
            passed_over |= over
        host = host_pool(self.graph)
        every = (*pools, *([host] if host is not None else ()))
        return Laid(every, self._needed(every), passed_over)

    def told(self, laid: Laid) -> Laid:
        """With the ledger lines of its memory."""
        lines = memory(self.graph, laid.pools, self.shapes, self.cluster, request=self.request, work=self._work)
        return Laid(laid.pools, lines, laid.passed_over)

    def _needed(self, pools: Sequence[Pool]) -> tuple[Memory, ...]:
        """What `memory` gives, of devices without its lines."""
        on_devices = [(pool, self.costs.site(pool, pools)) for pool in pools if pool.devices]
        costs = [(pool, site, self.costs.pool_costs(pool.roles, site)) for pool, site in on_devices]
        needed = [entry for _, site, roles in costs for entry in self.costs.pool_needs(roles, site)]
        everyone = [(pool, tuple(cost.on(pool) for cost in roles)) for pool, _, roles in costs]
        return (*needed, *host_memory(everyone, self.cluster, self._work))

    def _pool(self, draft: Draft, recompute: Mapping[str, str]) -> tuple[Pool, dict[str, tuple[Rejected, ...]]]:
        roles: list[RolePlacement] = []
        passed_over: dict[str, tuple[Rejected, ...]] = {}
        for name in draft.roles:
            engine = self.graph.role(name).engine
            entry = RolePlacement(
                role=name,
                layout=Layout(),
                offloaded=bool(engine.offload) and len(draft.roles) > 1,
                recompute=engine.recompute or recompute.get(name, "none"),
            )
            layout, over = self._layout(draft, entry)
            roles.append(replace(entry, layout=layout))
            if over:
                passed_over[name] = over
        return _pool_of(draft, roles), passed_over

    def _layout(self, draft: Draft, entry: RolePlacement) -> tuple[Layout, tuple[Rejected, ...]]:
        count, role = len(draft.devices), self.graph.role(entry.role)
        if role.name in draft.layouts:
            asked = draft.layouts[role.name]
            each = asked.tp * asked.pp * asked.cp
            return Layout(dp=count // each, tp=asked.tp, pp=asked.pp, cp=asked.cp, ep=asked.ep), ()
        legal = list(self.legal(draft, role))
        over: list[Rejected] = []
        for number, layout in enumerate(legal[:-1]):
            short = self._alone(draft, replace(entry, layout=layout, offloaded=False))
            if short is None:
                return self._far_faster(draft, entry, legal[number:], over)
            over.append(Rejected(option=layout_text(layout), reason="does_not_fit", delta=needs_text(short)))
        return legal[-1], tuple(over)

    def _far_faster(
        self, draft: Draft, entry: RolePlacement, legal: Sequence[Layout], over: list[Rejected]
    ) -> tuple[Layout, tuple[Rejected, ...]]:
        """The first of `legal`, which starts; while samples of an engine wait for its cache, a larger cut that
        generates at least WORTH_A_CUT times as fast."""
        best = legal[0]
        for layout in legal[1:]:
            here = self._generation(draft, replace(entry, layout=best))
            if here is None or not here.waits:
                break
            larger = self._generation(draft, replace(entry, layout=layout))
            if larger is not None and larger.seconds * WORTH_A_CUT <= here.seconds:
                delta = f"+{here.seconds / larger.seconds - 1:.0%} generation time"
                over.append(Rejected(option=layout_text(best), reason="slower", delta=delta))
                best = layout
        return best, tuple(over)

    def _generation(self, draft: Draft, entry: RolePlacement) -> _Generation | None:
        """A step's rollout with the role alone on the pool; None for a role without one, or without a cache."""
        rollouts = (op for op in self.graph.ops if op.role == entry.role and op.method == "generate" and not op.label)
        op = next(rollouts, None)
        if op is None or self.graph.role(entry.role).backend not in ENGINES:
            return None
        site, lengths = self.costs.site(_pool_of(draft, (entry,))), self._work.lengths(op)
        cost = self.costs.role_cost(entry, site)
        room = cache_tokens(cost.placed, lengths, site.limit_bytes)
        wanted = self._work.rows(op).count / entry.layout.dp * lengths.mean
        return _Generation(seconds=cost.seconds[op.id], waits=room < wanted)

    def legal(self, draft: Draft, role: Role) -> Iterator[Layout]:
        """Layouts to try, the one that cuts least first."""
        return legal_layouts(role, self.shapes, draft.devices, draft.group)

    def legal_on(self, role: str, site: Site) -> Iterator[Layout]:
        return legal_layouts(self.graph.role(role), self.shapes, site.pool.devices, site.group)

    def _alone(self, draft: Draft, entry: RolePlacement) -> Memory | None:
        """The first phase that does not fit if the role had the pool to itself; None if all do."""
        return self._short((entry,), _pool_of(draft, (entry,)))

    def _short(self, roles: Sequence[RolePlacement], pool: Pool) -> Memory | None:
        """The first phase that does not fit with these roles on the pool's devices."""
        site = self.costs.site(pool)
        return self.costs.short(self.costs.pool_costs(roles, site), site)

    def _resident(self, pool: Pool) -> Pool:
        """The pool with as few roles offloaded as fit; all that may leave, if nothing fits."""
        movable = [entry.role for entry in pool.roles if self._may_leave(entry.role)]
        if len(pool.roles) < 2 or not movable:
            return pool
        movable.sort(key=lambda name: _LEAVING_ORDER.index(self.graph.role(name).kind))
        site = self.costs.site(pool)
        for count in range(len(movable) + 1):
            tried = _with_offloaded(pool, movable[:count])
            if self.costs.fits(self.costs.pool_costs(tried.roles, site), site):
                return tried
        return _with_offloaded(pool, movable)

    def _together(self, draft: Draft, pool: Pool, over: dict[str, tuple[Rejected, ...]]) -> Pool:
        """The pool with as few roles offloaded as fit. If roles that fit alone do not fit beside what the others leave
        behind, with the first of them that makes all fit by a larger cut; what that passes over goes into `over`."""
        settled = self._resident(pool)
        short = self._short(settled.roles, pool)
        if short is None or len(pool.roles) < 2:
            return settled
        if any(self._alone(draft, replace(entry, offloaded=False)) is not None for entry in pool.roles):
            return settled  # no cut of another makes room for a role that no cut of its own fits
        for entry in pool.roles:
            legal = [] if entry.role in draft.layouts else list(self.legal(draft, self.graph.role(entry.role)))
            for layout in legal[legal.index(entry.layout) + 1 :] if entry.layout in legal else []:
                cut = tuple(replace(each, layout=layout) if each is entry else each for each in pool.roles)
                tried = self._resident(replace(pool, roles=cut))
                if self._short(tried.roles, pool) is None:
                    option = Rejected(option=layout_text(entry.layout), reason="does_not_fit", delta=needs_text(short))
                    over[entry.role] = (*over.get(entry.role, ()), option)
                    return tried
        return settled

    def _may_leave(self, name: str) -> bool:
        role = self.graph.role(name)
        traits = TRAITS.get(role.backend or "")
        return role.engine.offload is None and traits is not None and traits.offload


def legal_layouts(
    role: Role, shapes: Mapping[str, ModelShape], devices: Sequence[str], group: NodeGroup
) -> Iterator[Layout]:
    """Layouts of a role that placement tries on devices of `group`, the one that cuts least first."""
    count = len(devices)
    traits = TRAITS.get(role.backend or "")
    if role.model is None or traits is None or not traits.searched:
        yield Layout(dp=count)
        return
    shape = shapes[role.model]
    tensor = [tp for tp in legal_tp(traits, shape, count, group.devices_per_node) if broken_group(devices, tp) is None]
    deep = range(1, group.nodes + 1) if "pp" in traits.searched else range(1, 2)
    cuts = [
        (tp, pp)
        for tp in tensor
        for pp in deep
        if count % (tp * pp) == 0 and shape.layers % pp == 0 and layout_fault(traits, shape, tp, pp) is None
        if count // (tp * pp) % (role.engine.shard_devices or 1) == 0
    ]
    for tp, pp in sorted(cuts, key=lambda cut: (cut[0] * cut[1], cut[1])):
        yield Layout(dp=count // (tp * pp), tp=tp, pp=pp)


def _pool_of(draft: Draft, roles: Sequence[RolePlacement]) -> Pool:
    return Pool(name=draft.name, devices=draft.devices, device=draft.group.device.name, roles=tuple(roles))


def _with_offloaded(pool: Pool, names: Sequence[str]) -> Pool:
    roles = tuple(replace(each, offloaded=True) if each.role in names else each for each in pool.roles)
    return replace(pool, roles=roles)


def host_pool(graph: Graph) -> Pool | None:
    """Every role without a device: a lane for each."""
    roles = [role for role in graph.roles if not needs_devices(role)]
    if not roles:
        return None
    return Pool(
        name=HOST,
        devices=(),
        device=HOST,
        roles=tuple(RolePlacement(role=role.name, layout=Layout()) for role in roles),
        slots=min(MOST_HOST_SLOTS, max(2, len(roles))),
    )


def layout_text(layout: Layout) -> str:
    """`dp4 tp2`: dp, and the other axes that are larger than 1."""
    others = (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp), ("ep", layout.ep))
    return " ".join([f"dp{layout.dp}", *(f"{name}{size}" for name, size in others if size > 1)])


def needs_text(entry: Memory) -> str:
    """What a phase needs against its limit: `151.3 of 139.0 GiB in actor_train.update`."""
    gib = 2**30
    return f"{entry.peak_bytes / gib:.1f} of {entry.limit_bytes / gib:.1f} GiB in {entry.phase}"
