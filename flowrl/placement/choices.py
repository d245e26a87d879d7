"""The choices of one role on one site: layout, recomputation, micro-batch, and whether it leaves its devices.

Takes RoleCosts; gives RolePlacements, the one that changes least first. Ranks nothing: search does.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.graph.graph import Role
from flowrl.machine.traits import TRAITS
from flowrl.placement.cost.role import RoleCosts, Site
from flowrl.placement.layouts import legal_layouts
from flowrl.placement.request import LayoutRequest
from flowrl.plan.plan import Layout, RolePlacement


class Choices:
    """Of the roles of one graph on one cluster. Made once for a search; asked often."""

    def __init__(self, costs: RoleCosts) -> None:
        self.costs = costs
        self._known: dict[tuple[object, ...], tuple[RolePlacement, ...]] = {}

    def of(self, role: str, site: Site, layout: LayoutRequest | None = None) -> tuple[RolePlacement, ...]:
        """Every choice of a role on a site, the one that changes least first: layouts that cut least, nothing
        recomputed, staying on its devices, micro-batches as written. `layout`: as the flow asks. Empty: none is
        legal."""
        asked = None if layout is None else (layout.tp, layout.pp, layout.cp, layout.ep)
        key = (role, site.key, asked)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(self._made(self.costs.graph.role(role), site, layout))
        return found

    def _made(self, role: Role, site: Site, layout: LayoutRequest | None) -> Iterator[RolePlacement]:
        for cut in self._layouts(role, site, layout):
            for recompute in recomputations(role):
                for offloaded in residencies(role):
                    yield RolePlacement(role=role.name, layout=cut, offloaded=offloaded, recompute=recompute)

    def _layouts(self, role: Role, site: Site, layout: LayoutRequest | None) -> Iterator[Layout]:
        if layout is None:
            yield from legal_layouts(role, self.costs.work.shapes, site.pool.devices, site.group)
            return
        each = layout.tp * layout.pp * layout.cp
        if site.count % each == 0:
            yield Layout(dp=site.count // each, tp=layout.tp, pp=layout.pp, cp=layout.cp, ep=layout.ep)


def recomputations(role: Role) -> tuple[str, ...]:
    """Of its activations: as the flow says, else both ends. Only trainers have any."""
    if role.engine.recompute is not None:
        return (role.engine.recompute,)
    return ("none", "full") if role.trainable else ("none",)


def residencies(role: Role) -> tuple[bool, ...]:
    """Whether it leaves its devices while others work: as the flow says, else both where its backend can."""
    if role.engine.offload is not None:
        return (role.engine.offload,)
    traits = TRAITS.get(role.backend or "")
    return (False, True) if traits is not None and traits.offload else (False,)
