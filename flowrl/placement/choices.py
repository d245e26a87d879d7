"""The choices of one role on one site: layout, recomputation, micro-batch, and whether it leaves its devices.

An engine may also take less memory than it usually does (engine_shares.py).
Takes RoleCosts; gives RolePlacements, the one that changes least first. docs/adr/0085 has the rules of the menu: they
decide what a search looks at, so its proof is over this menu. Ranks nothing and knows no neighbour: search does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from msgspec.structs import replace

from flowrl.graph.graph import Role
from flowrl.machine.shape import DTYPE_BYTES
from flowrl.machine.traits import ENGINES, TRAITS
from flowrl.placement.checks.rows import COLLECTIVE, shares
from flowrl.placement.cost.bound import busy_seconds
from flowrl.placement.cost.placed import needs_devices
from flowrl.placement.cost.role import RoleCost, RoleCosts, Site
from flowrl.placement.cuts import Ground, cuts, least_first, needed_axes, searched_axes
from flowrl.placement.engine_shares import FINE_PARTS, PARTS, smaller_shares
from flowrl.placement.floors import Floor
from flowrl.placement.layouts import change_text, layout_text, needs_text, reason_alone
from flowrl.placement.micro_batches import Sizes, sizes_of
from flowrl.placement.request import LayoutRequest
from flowrl.plan.plan import Layout, Memory, Rejected, RolePlacement

WIDEST = 4
"""How many times as many devices a copy of the model may take as in the first layout that fits: what a role needs of
its devices beyond that, it shares with others, and they may leave."""
WIDEST_ENGINE = 8
"""The same of an engine: with few samples each device more makes a step of decoding shorter."""
WIDEST_BESIDE = 16
"""The same where some role of the graph may not leave its devices."""
DEEPEST = 8
"""Stages of a pipeline beyond which only the two widest sizes of tp are tried."""
FILLED = 4
"""Micro-batches for each stage of a pipeline beyond which it is full enough: it stands idle for a fifth of the time."""
CROWDED = 0.75
"""Share of a device that a role takes alone, beyond which what others leave there may not fit beside it."""
GATHERS = ("fsdp", "deepspeed")
"""Backends that gather layers anew for each micro-batch, so that larger ones are faster."""
MOST_TOLD = 6
"""Layouts that a decision lists."""


@dataclass(frozen=True, slots=True)
class Menu:
    """Layouts of a role on a site."""

    layouts: tuple[Layout, ...]
    """That are tried, least cut first."""
    over: tuple[Layout, ...] = ()
    """Legal ones that do not fit even alone, the nearest to fitting last."""
    untried: int = 0
    """How many more are legal and left out by rule: they take more devices than need be, or share experts otherwise."""
    starved: int = 0
    """How many more have more ranks than there are rows."""
    fits: bool = True
    """Whether a layout fits with the devices to itself."""

    def told(self) -> str:
        """What was left out by rule, in words; empty if nothing was."""
        texts = [
            f"{len(self.over)} do not fit" if self.over else "",
            f"{self.starved} have more ranks than there are rows" if self.starved else "",
            f"{self.untried} cut more than need be" if self.untried else "",
        ]
        return ", ".join(text for text in texts if text)


class Choices:
    """Of the roles of one graph on one cluster. Made once for a search; asked often."""

    def __init__(self, costs: RoleCosts) -> None:
        self.costs, self.work, self.graph = costs, costs.work, costs.graph
        self._known: dict[tuple[object, ...], tuple[RolePlacement, ...]] = {}
        self._menus: dict[tuple[object, ...], Menu] = {}
        self._parts: tuple[float, ...] = PARTS
        self._floors: dict[str, Floor] = {}
        self._other: dict[tuple[object, ...], Sizes] = {}
        placed = (role for role in self.graph.roles if needs_devices(role))
        self._widest = WIDEST if all(True in residencies(role) for role in placed) else WIDEST_BESIDE

    def finer(self) -> Choices:
        """The same with more shares of a device for engines."""
        found = Choices(self.costs)
        found._menus, found._parts = self._menus, FINE_PARTS
        return found

    def of(self, role: str, site: Site, layout: LayoutRequest | None = None) -> tuple[RolePlacement, ...]:
        """Every choice of a role on a site, the one that changes least first: layouts that cut least, nothing
        recomputed, micro-batches as written, staying on its devices. `layout`: as the flow asks. Empty: none is
        legal."""
        asked = None if layout is None else (layout.tp, layout.pp, layout.cp, layout.ep)
        key = (role, asked, site.key, site.even)
        found = self._known.get(key)
        if found is None:
            layouts = self.menu(role, site).layouts if layout is None else _asked(layout, site)
            entries = (entry for cut in layouts for entry in self.ways(self.graph.role(role), cut, site))
            found = self._known[key] = tuple(entries)
        return found

    def menu(self, role: str, site: Site) -> Menu:
        """The layouts that are tried where the flow asks for none."""
        key = (role, site.key, site.even)
        found = self._menus.get(key)
        if found is None:
            found = self._menus[key] = self._menu(self.graph.role(role), site)
        return found

    def is_hopeless(self, role: str, site: Site) -> bool:
        """Whether not even weights and states of any legal layout fit; only where the flow asks for none."""
        menu = self.menu(role, site)
        if menu.fits or role not in self._floors or not menu.layouts:
            return False
        here = self.graph.role(role)
        return self._floor(here).bytes(menu.layouts[0]) > self._limit(here, site)

    def least_bytes(self, role: str, layout: Layout) -> float:
        """What weights and states of a layout need of a device; 0 where that is not known without a cost."""
        return self._floor(self.graph.role(role)).bytes(layout)

    def passed_over(self, role: str, site: Site, chosen: Layout) -> tuple[Rejected, ...]:
        """Other layouts with how they compare, each with the devices to itself in its fastest way that fits: the
        nearest that do not fit, then the fastest."""
        menu = self.menu(role, site)
        faults = [(layout, self._fault(role, layout, site)) for layout in menu.over[-MOST_TOLD // 2 :]]
        found = [
            Rejected(option=layout_text(layout), reason="does_not_fit", delta=needs_text(short))
            for layout, short in faults
            if short is not None and layout != chosen
        ]
        times = {layout: self._alone(role, layout, site) for layout in menu.layouts}
        here = times.get(chosen) or self._alone(role, chosen, site)
        others = sorted(
            (layout for layout, seconds in times.items() if seconds is not None and layout != chosen),
            key=lambda layout: times[layout] or 0.0,
        )
        for layout in others[: MOST_TOLD - len(found)]:
            more = (times[layout] or 0.0) / max(here or 0.0, 1e-12) - 1.0
            delta = f"{change_text(more)} time of its own" if here is not None else None
            found.append(Rejected(option=layout_text(layout), reason=reason_alone(more), delta=delta))
        return tuple(found)

    # -- layouts ------------------------------------------------------------------------------------------------------

    def _menu(self, role: Role, site: Site) -> Menu:
        shape = self.work.shapes.get(role.model or "")
        if shape is None or role.backend not in TRAITS:
            return Menu((Layout(dp=site.count),))
        axes = searched_axes(role)
        found = self._with_axes(role, site, axes)
        wider = axes | needed_axes(role, shape)
        if wider != axes and not (found.fits and self._has_room(role, site, found)):
            with_need = self._with_axes(role, site, wider)
            found = with_need if with_need.fits else found
        return found

    def _has_room(self, role: Role, site: Site, menu: Menu) -> bool:
        """Whether an engine's weights leave half of its share for its cache, and the first layout of others that fits
        cuts little more than weights and states alone ask for."""
        floor, limit = self._floor(role), self._limit(role, site)
        if role.backend in ENGINES:
            return 2 * floor.bytes(menu.layouts[-1]) <= limit
        bare = next(
            (each for each in sorted((*menu.over, *menu.layouts), key=least_first) if floor.bytes(each) <= limit), None
        )
        return bare is None or _copy(menu.layouts[0]) <= WIDEST * _copy(bare)

    def _with_axes(self, role: Role, site: Site, axes: frozenset[str]) -> Menu:
        legal = cuts(role, self._floor(role).shape, self._ground(site), axes)
        rows = self._rows(role)
        fed = [layout for layout in legal if layout.dp <= rows] or legal
        floor, limit = self._floor(role), self._limit(role, site)
        light = self._worth_it(role, [layout for layout in fed if floor.bytes(layout) <= limit], site)
        first = next((layout for layout in light if self._fits(role, layout, site)), None)
        if first is None:
            nearest = min(fed, key=floor.bytes, default=None)
            rest = (layout for layout in fed if layout != nearest)
            over = tuple(sorted(rest, key=floor.bytes, reverse=True))
            return Menu(() if nearest is None else (nearest,), over, fits=False)
        at = light.index(first)
        tried = (first,) if site.group.device.is_cpu else self._window(role, light[at:], site)
        heavy = sorted((each for each in fed if floor.bytes(each) > limit), key=floor.bytes, reverse=True)
        over = (*heavy, *light[:at])
        return Menu(tried, over, untried=len(fed) - len(tried) - len(over), starved=len(legal) - len(fed))

    def _worth_it(self, role: Role, layouts: Sequence[Layout], site: Site) -> list[Layout]:
        """Of those that may fit: with experts the largest ep whose ranks talk by links (else the least), and none; a
        deep pipeline only with wide tp; of an engine that needs several nodes, the widest tp."""
        linked = self._ground(site).linked
        found: list[Layout] = []
        for _, group in groupby(layouts, key=lambda each: (each.tp, each.pp, each.cp)):
            same = list(group)
            near = [each for each in same if each.ep <= linked]
            whole = [each for each in near[:-1] if each.ep == 1]
            found += [*whole, near[-1]] if near else same[:1]
        if role.backend in ENGINES:
            widest = max((each.tp for each in found), default=1)
            return [each for each in found if each.pp * each.ep == 1 or each.tp == widest]
        least: dict[int, int] = {}
        for each in found:
            least[_copy(each)] = min(least.get(_copy(each), each.pp), each.pp)
        return [each for each in found if each.pp <= max(DEEPEST, 2 * least[_copy(each)])]

    def _window(self, role: Role, layouts: Sequence[Layout], site: Site) -> tuple[Layout, ...]:
        """Of those from the first that fits on, what takes at most so many times its devices. Experts whose tokens
        travel the network are slow but need fewest devices: what fits with experts near counts as the first, and of
        those far apart what takes fewer devices is tried."""
        linked = site.count if role.backend in ENGINES else self._ground(site).linked
        near = (each for each in layouts if each.ep <= linked and self._fits(role, each, site))
        base = _copy(next(near, layouts[0]))
        widest = max(self._widest, WIDEST_ENGINE) if role.backend in ENGINES else self._widest
        return tuple(
            each
            for each in layouts
            if base <= _copy(each) * WIDEST and _copy(each) <= base * widest
            if each.ep <= linked or _copy(each) < base or base == _copy(layouts[0])
        )

    def _fits(self, role: Role, layout: Layout, site: Site) -> bool:
        return any(self.costs.fits((cost,), site) for cost in self._squeezed(role, layout, site))

    def _fault(self, name: str, layout: Layout, site: Site) -> Memory | None:
        """The first phase that does not fit though the role has the devices to itself and is squeezed as far as it
        goes; None if all do. Weights that it may share with a neighbour are taken for shared."""
        short: Memory | None = None
        for cost in self._squeezed(self.graph.role(name), layout, site):
            short = self.costs.short((cost,), site)
            if short is None:
                return None
        return short

    def _squeezed(self, role: Role, layout: Layout, site: Site) -> Iterator[RoleCost]:
        """With least activations and micro-batches, with weights of its own and beside each role that may lend some."""
        entry = RolePlacement(role=role.name, layout=layout, recompute=recomputations(role)[-1])
        smallest = self._sizes(role, layout).shrunk[-1:]
        entry = replace(entry, micro_batch_tokens=smallest[0] if smallest else None)
        for lender in ("", *sorted(self.costs.lenders(role.name))):
            beside = (RolePlacement(role=lender, layout=layout),) if lender else ()
            yield self.costs.role_cost(entry, site, beside)

    def _alone(self, role: str, layout: Layout, site: Site) -> float | None:
        """Seconds of its ops in a step in the fastest way that fits alone; None if none does."""
        entries = (each for each in self.ways(self.graph.role(role), layout, site) if not each.offloaded)
        costs = (self.costs.role_cost(each, site) for each in entries)
        return min((busy_seconds(self.costs, each) for each in costs if self.costs.fits((each,), site)), default=None)

    # -- ways of one layout -------------------------------------------------------------------------------------------

    def ways(self, role: Role, layout: Layout, site: Site) -> Iterator[RolePlacement]:
        """Every choice with that layout. Nothing is recomputed and no micro-batch is smaller where the role as written
        needs half of the device."""
        away = residencies(role, on_cpu=site.group.device.is_cpu)
        all_ways = recomputations(role)
        for way in all_ways:
            entry = RolePlacement(role=role.name, layout=layout, recompute=way)
            share = self._share(entry, site)
            for size in (None, *self._other_sizes(role, layout, site, share, last=way == all_ways[-1])):
                for offloaded in away:
                    yield replace(entry, offloaded=offloaded, micro_batch_tokens=size)
            if 2 * share <= 1.0:
                break
        if role.backend in ENGINES and not site.group.device.is_cpu:
            yield from self._smaller(role, RolePlacement(role=role.name, layout=layout), away, site)

    def _smaller(self, role: Role, usual: RolePlacement, away: Sequence[bool], site: Site) -> Iterator[RolePlacement]:
        """An engine with less memory than it usually takes, so that others have room to stay: it leaves where it may,
        for then they have all of it while they work."""
        for share in smaller_shares(role, self.costs.role_cost(usual, site), self._parts):
            yield replace(usual, offloaded=away[-1], memory_share=share)

    def _other_sizes(self, role: Role, layout: Layout, site: Site, share: float, last: bool) -> Iterator[int]:
        """Smaller ones where memory is short, or a pipeline is to be filled; larger ones where layers are gathered for
        each micro-batch and there is room. In the last way nothing else saves memory, so the smallest is there as well
        where roles beside it find little room."""
        if site.group.device.is_cpu:
            return
        sizes = self._sizes(role, layout)
        room = CROWDED if last else 1.0
        short = 0 if 2 * share <= 1.0 else 1 if share <= room else 2
        if layout.pp > 1:
            thin = [size for size in sizes.shrunk if sizes.tokens < FILLED * layout.pp * 2 * size]
            short = max(short, len(thin))
        yield from sizes.shrunk[:short]
        if role.backend in GATHERS and 2 * share <= 1.0:
            yield from sizes.grown if 4 * share <= 1.0 else sizes.grown[:1]

    def _share(self, entry: RolePlacement, site: Site) -> float:
        """The most that it needs of a device in any phase, alone."""
        return self.costs.fullest((self.costs.role_cost(entry, site),), site)

    def _sizes(self, role: Role, layout: Layout) -> Sizes:
        key = (role.name, layout.dp, layout.cp)
        found = self._other.get(key)
        if found is None:
            found = self._other[key] = sizes_of(self.work, role, self.costs.ops_of(role.name), layout)
        return found

    # -- what they depend on ------------------------------------------------------------------------------------------

    def _ground(self, site: Site) -> Ground:
        return Ground(site.count, site.group.devices_per_node, site.even, site.group.linked_devices)

    def _rows(self, role: Role) -> float:
        """The most data-parallel ranks that each get a row in every op."""
        if role.backend not in COLLECTIVE:
            return float("inf")
        return min((shares(self.work, op).count for op in self.costs.ops_of(role.name)), default=float("inf"))

    def _floor(self, role: Role) -> Floor:
        found = self._floors.get(role.name)
        if found is None:
            model = self.graph.model(role.model or "")
            shape, trains_all = self.work.shapes[model.name], role.trainable and model.lora is None
            found = self._floors[role.name] = Floor(role, shape, DTYPE_BYTES[model.dtype], trains_all)
        return found

    def _limit(self, role: Role, site: Site) -> int:
        return self._floor(role).limit(site.limit_bytes, self.work.request.profile)


def recomputations(role: Role) -> tuple[str, ...]:
    """Of its activations, least first: as the flow says, else what its backend can. Only trainers have any."""
    if role.engine.recompute is not None:
        return (role.engine.recompute,)
    traits = TRAITS.get(role.backend or "")
    return traits.recomputes if role.trainable and traits is not None else ("none",)


def residencies(role: Role, *, on_cpu: bool = False) -> tuple[bool, ...]:
    """Whether it leaves its devices while others work: as the flow says, else both where its backend can. On a CPU
    memory is one, and nothing leaves unasked."""
    if role.engine.offload is not None:
        return (role.engine.offload,)
    traits = TRAITS.get(role.backend or "")
    return (False, True) if traits is not None and traits.offload and not on_cpu else (False,)


def _asked(layout: LayoutRequest, site: Site) -> tuple[Layout, ...]:
    each = layout.tp * layout.pp * layout.cp
    if site.count % each:
        return ()
    return (Layout(dp=site.count // each, tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep),)


def _copy(layout: Layout) -> int:
    """Devices of one copy of the model."""
    return layout.tp * layout.pp * layout.cp
