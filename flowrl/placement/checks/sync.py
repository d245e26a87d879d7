"""Weights edges that no transport or no trainer can serve. Takes a graph, and pools once they are there; gives
diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.graph import Edge, EdgeKind, Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.machine.sync import HANDS_OVER, TRANSPORTS, legal_transports, transport_fault
from flowrl.placement.cost.placed import group_of
from flowrl.plan.plan import Pool


def sync_faults(graph: Graph, shapes: Mapping[str, ModelShape]) -> Iterator[Diagnostic]:
    """FR0352 for weights that do not fit their receiver, FR0434 for a transport that is none, FR0435 for weights that
    the trainer cannot name."""
    for edge in _synced(graph):
        if edge.transport is not None and edge.transport not in TRANSPORTS:
            near = near_names(edge.transport, TRANSPORTS)
            text = f"a transport with a near name exists: `{near[0]}`" if near else ""
            helps = [Respelt(text=text, span=edge.span, old=edge.transport, new=near[0])] if near else []
            known = ", ".join(TRANSPORTS)
            yield diagnose("FR0434", edge.span, transport=edge.transport, edge=edge.id, known=known, helps=helps)
        yield from _unnamed(graph, edge, shapes)
        yield from _misshapen(graph, edge, shapes)


def _unnamed(graph: Graph, edge: Edge, shapes: Mapping[str, ModelShape]) -> Iterator[Diagnostic]:
    trainer = graph.role(edge.source)
    shape = shapes.get(trainer.model or "")
    known = HANDS_OVER.get(trainer.backend or "")
    if shape is None or known is None or shape.architecture in known:
        return
    receiver = graph.role(edge.target).backend
    yield diagnose(
        "FR0435",
        edge.span,
        edge=edge.id,
        model=trainer.model,
        architecture=shape.architecture,
        backend=trainer.backend,
        receiver=receiver,
        role=trainer.name,
        known=", ".join(sorted(known)),
    )


MEASURES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts")
"""What two models must have alike so that the weights of one fit into the other."""


def _misshapen(graph: Graph, edge: Edge, shapes: Mapping[str, ModelShape]) -> Iterator[Diagnostic]:
    source, target = graph.role(edge.source), graph.role(edge.target)
    have, want = shapes.get(source.model or ""), shapes.get(target.model or "")
    if have is None or want is None:
        return
    differ = next((name for name in MEASURES if getattr(have, name) != getattr(want, name)), None)
    if differ is not None:
        facts: dict[str, Any] = {"have": f"{differ} {getattr(have, differ):,}", "want": f"{getattr(want, differ):,}"}
        yield diagnose("FR0352", edge.span, source=edge.source, target=edge.target, model=source.model, **facts)


def unreachable(graph: Graph, cluster: Cluster, pools: Sequence[Pool]) -> Iterator[Diagnostic]:
    """FR0436 for a weights edge whose transport does not reach from its trainer's devices to its receiver's."""
    home = {entry.role: pool for pool in pools if pool.devices for entry in pool.roles}
    for edge in _synced(graph):
        transport = TRANSPORTS.get(edge.transport or "")
        source, target = home.get(edge.source), home.get(edge.target)
        if transport is None or source is None or target is None:
            continue
        on_cpu = any(group_of(pool, cluster).device.is_cpu for pool in (source, target))
        fault = transport_fault(transport, source.devices, target.devices, on_cpu)
        if fault is not None:
            legal = " or ".join(f"`{name}`" for name in legal_transports(source.devices, target.devices, on_cpu))
            facts: dict[str, Any] = {"edge": edge.id, "source": source.name, "target": target.name}
            yield diagnose("FR0436", edge.span, fault=fault, legal=legal, **facts)


def _synced(graph: Graph) -> Iterator[Edge]:
    roles = {role.name for role in graph.roles}
    edges = (edge for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS)
    yield from (edge for edge in edges if {edge.source, edge.target} <= roles)
