"""How trainers and scorers are asked to be cut, where their backend could not: experts over ranks, copies of states.

Takes a request; gives diagnostics. Looks at pools that the flow gives; of those that placement would choose,
search.py leaves out what `copies_fault` finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Graph, Kind, Role
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS
from flowrl.placement.request import LayoutRequest, PlacementRequest, PoolRequest


def sharding_faults(graph: Graph, request: PlacementRequest, shapes: Mapping[str, ModelShape]) -> Iterator[Diagnostic]:
    """FR0450 for `shard_devices` that do not share out the ranks, FR0451 for `ep` that does not share out experts."""
    roles = {role.name: role for role in graph.roles}
    for pool in request.pools:
        for name in pool.roles:
            role = roles.get(name)
            traits = TRAITS.get(role.backend or "") if role is not None else None
            if role is None or role.model is None or role.kind is Kind.GENERATOR or traits is None:
                continue
            asked = pool.layouts.get(name)
            if asked is None and traits.searched:
                continue
            layout = asked or LayoutRequest()
            if pool.gpus % (layout.tp * layout.pp * layout.cp):
                continue
            fault = copies_fault(role, pool.gpus // (layout.tp * layout.pp), layout.ep)
            if fault is not None:
                yield fault
            yield from _experts(role, pool, layout, shapes[role.model])


def copies_fault(role: Role, ranks: int, ep: int = 1) -> Diagnostic | None:
    """FR0450 if `ranks` of dp and cp do not hold whole copies of the role's states; None if they do."""
    size = role.engine.shard_devices
    if size is None or (ranks % size == 0 and size % ep == 0):
        return None
    legal = [each for each in range(1, ranks + 1) if ranks % each == 0 and each % ep == 0]
    over = f"{size} does not divide the {ranks} ranks of dp and cp: {ranks % size} left over"
    whole = over if ranks % size else f"{size} ranks do not hold the experts of ep {ep} whole"
    facts: dict[str, Any] = {"role": role.name, "size": size, "fault": whole, "legal": ", ".join(map(str, legal))}
    return diagnose("FR0450", role.spans.get("engine.shard_devices", role.span), **facts)


def _experts(role: Role, pool: PoolRequest, layout: LayoutRequest, shape: ModelShape) -> Iterator[Diagnostic]:
    traits = TRAITS[role.backend or ""]
    if layout.ep == 1 or "ep" not in traits.axes:
        return
    ranks = pool.gpus // layout.pp if role.backend == "megatron" else pool.gpus // (layout.tp * layout.pp)
    fault = _fault(layout.ep, ranks, shape.experts, "dp, cp and tp" if role.backend == "megatron" else "dp and cp")
    if fault is None:
        return
    legal = [each for each in range(1, ranks + 1) if _fault(each, ranks, shape.experts, "") is None]
    known = ", ".join(map(str, legal)) if shape.experts else "1"
    facts: dict[str, Any] = {
        "role": role.name,
        "ep": layout.ep,
        "experts": shape.experts,
        "fault": fault,
        "legal": known,
    }
    yield diagnose("FR0451", layout.span or pool.span, **facts)


def _fault(ep: int, ranks: int, experts: int, over: str) -> str | None:
    if not experts:
        return "the model has no experts"
    if experts % ep:
        return f"ep {ep} does not divide the {experts} experts: {experts % ep} left over"
    return None if ranks % ep == 0 else f"ep {ep} does not divide the {ranks} ranks of {over}"
