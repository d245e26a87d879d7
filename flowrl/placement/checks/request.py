"""Faults of a placement as it is written: names, counts, layouts, and what an engine would refuse. Takes a request;
gives diagnostics, all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, Label, Respelt, diagnose
from flowrl.diag.near import near_names
from flowrl.diag.span import Span
from flowrl.graph.graph import EdgeKind, Graph, Kind, Role
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS, illegal_axis, layout_fault, legal_tp
from flowrl.placement.checks.engine import engine_faults
from flowrl.placement.checks.sharding import sharding_faults
from flowrl.placement.checks.sync import sync_faults
from flowrl.placement.checks.tokenizers import tokenizer_faults
from flowrl.placement.checks.wishes import contradictions
from flowrl.placement.cost.placed import HOST, needs_devices, sides
from flowrl.placement.cost.workload import Workload
from flowrl.placement.request import OBJECTIVES, PRICE, LayoutRequest, Mode, PlacementRequest, PoolRequest

AUTO_POOLS = {
    Mode.AUTO: ("all", "rollout", "train"),
    Mode.COLOCATED: ("all",),
    Mode.DISAGGREGATED: ("rollout", "train"),
}


def check_request(graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]) -> None:
    """Raise FlowError with every fault (FR0410, FR0411, FR0502 to FR0506, FR0508, FR0509, FR0513, FR0518, FR0520,
    FR0535, FR0840, FR0853, and those of engine_checks.py, sync_checks.py and tokenizer_checks.py)."""
    faults = [
        *_role_names(graph, request),
        *_pool_names(graph, request),
        *_doubled(request),
        *contradictions(graph, request),
        *_sides_in_one_pool(graph, request),
        *_objective(cluster, request),
        *_counts(cluster, request),
        *_layouts(graph, cluster, request, shapes),
        *_engines(graph, cluster, request, shapes),
        *engine_faults(graph, cluster, request, shapes),
        *sharding_faults(graph, request, shapes),
        *sync_faults(graph, shapes),
        *tokenizer_faults(graph, shapes),
    ]
    if faults:
        raise FlowError(faults)


def _role_names(graph: Graph, request: PlacementRequest) -> Iterator[Diagnostic]:
    roles = {role.name: role for role in graph.roles}
    gone = {removal.id for removal in graph.removed}
    for name, where, span in _mentions(request):
        if name in roles and not needs_devices(roles[name]):
            yield diagnose("FR0509", span, role=name, kind=roles[name].kind, where=where)
        elif name not in roles and name not in gone:
            placed = [each for each, role in roles.items() if needs_devices(role)]
            yield _unknown("FR0505", name, placed, span, where=where)
    for pool in request.pools:
        for name, layout in pool.layouts.items():
            if name in roles and name not in pool.roles and request.pin.get(name) != pool.name:
                where = f"the layouts of pool `{pool.name}`, which does not hold it"
                yield _unknown("FR0505", name, list(pool.roles), layout.span or pool.span, where=where)


def _mentions(request: PlacementRequest) -> Iterator[tuple[str, str, Span | None]]:
    for pool in request.pools:
        for name in pool.roles:
            yield name, f"the roles of pool `{pool.name}`", pool.role_spans.get(name, pool.span)
        for name, layout in pool.layouts.items():
            if name not in pool.roles:
                yield name, f"the layouts of pool `{pool.name}`", layout.span or pool.span
    for name in request.pin:
        yield name, "`placement.pin`", request.pin_spans.get(name, request.span)
    for group, span in zip_longest(request.apart, request.apart_spans):
        for name in group:
            yield name, "`placement.apart`", span or request.span


def _unknown(code: str, name: str, known: list[str], span: Span | None, **facts: Any) -> Diagnostic:
    near = near_names(name, known)
    text = f"a near name exists: `{near[0]}`" if near else ""
    helps = [Respelt(text=text, span=span, old=name, new=near[0])] if near else []
    return diagnose(code, span, name=name, known=", ".join(known), helps=helps, **facts)


def _pool_names(graph: Graph, request: PlacementRequest) -> Iterator[Diagnostic]:
    own = [role for roles in sides(graph) for role in roles]
    known = [pool.name for pool in request.pools] or [*AUTO_POOLS.get(request.mode, ()), *own]
    for role, pool in request.pin.items():
        if pool not in known:
            yield _unknown(
                "FR0506", pool, known, request.pin_spans.get(role, request.span), where=f"`placement.pin` of `{role}`"
            )
    for pool in request.pools:
        if pool.name == HOST:
            yield diagnose("FR0516", pool.span)


def _doubled(request: PlacementRequest) -> Iterator[Diagnostic]:
    first: dict[str, PoolRequest] = {}
    for pool in request.pools:
        for name in pool.roles:
            if name not in first:
                first[name] = pool
                continue
            before = first[name]
            span, also = pool.role_spans.get(name, pool.span), before.role_spans.get(name, before.span)
            labels = [Label(also, f"it is in pool `{before.name}` already")] if also is not None else []
            yield diagnose("FR0504", span, role=name, pool=pool.name, first=before.name, also=labels)


def _sides_in_one_pool(graph: Graph, request: PlacementRequest) -> Iterator[Diagnostic]:
    home = {name: pool.name for pool in request.pools for name in pool.roles} | request.pin
    for roles in sides(graph):
        homes = [home[name] for name in roles if name in home]
        shared = next((pool for pool in homes if homes.count(pool) > 1), None)
        if shared is not None or request.mode is Mode.COLOCATED:
            names = " and ".join(f"`{name}`" for name in roles)
            edges = (e for e in graph.declared if e.kind is EdgeKind.INTERACTION and e.source.split(".")[0] in roles)
            also = [Label(edge.span, "they interact here") for edge in edges if edge.span is not None][:1]
            yield diagnose(
                "FR0517", request.span or graph.role(roles[0]).span, also=also, roles=names, pool=shared or "all"
            )


def _objective(cluster: Cluster, request: PlacementRequest) -> Iterator[Diagnostic]:
    span = request.objective_span
    if request.objective not in OBJECTIVES:
        near = near_names(request.objective, OBJECTIVES)
        text = f"a near name exists: `{near[0]}`" if near else ""
        helps = [Respelt(text=text, span=span, old=request.objective, new=near[0])] if near else []
        yield diagnose("FR0518", span, helps=helps, name=request.objective, known=", ".join(OBJECTIVES))
    if request.objective == PRICE:
        free = [group.name for group in cluster.groups if group.price_per_gpu_hour is None]
        if free:
            several = len(cluster.groups) > 1
            where = f"group{'s' if len(free) > 1 else ''} {', '.join(free)}" if several else cluster.name
            yield diagnose("FR0535", span, where=where)


def _counts(cluster: Cluster, request: PlacementRequest) -> Iterator[Diagnostic]:
    groups = {group.name: group for group in cluster.groups}
    for pool in request.pools:
        if pool.group is not None and pool.group not in groups:
            yield _unknown("FR0513", pool.group, list(groups), pool.group_span or pool.span, pool=pool.name)
        if pool.group is None and len(groups) > 1:
            yield diagnose("FR0519", pool.span, pool=pool.name, known=", ".join(groups))
    wanted: dict[str, list[PoolRequest]] = {}
    for pool in request.pools:
        wanted.setdefault(pool.group or cluster.groups[0].name, []).append(pool)
    for name, pools in wanted.items():
        if name not in groups:
            continue
        there, needed = size(groups[name]), sum(pool.gpus for pool in pools)
        if needed > there:
            text = " + ".join(f"{pool.gpus} (`{pool.name}`)" for pool in pools)
            facts: dict[str, Any] = {"needed": needed, "there": there, "over": needed - there, "sum": text}
            span = pools[-1].span or request.span
            where = cluster.name if len(groups) == 1 else f"{cluster.name}, group {name},"
            yield diagnose("FR0502", span, helps=_more_slots(groups[name], needed), cluster=where, **facts)


def _more_slots(group: NodeGroup, needed: int) -> list[Help]:
    """On a CPU slots are declared, not counted: they may exceed the cores."""
    if not group.device.is_cpu:
        return []
    return [
        Help(text=f"declare the slots: `cluster: {{gpu: cpu, gpus_per_node: {needed}}}`; they may exceed the cores")
    ]


def size(group: NodeGroup) -> int:
    return group.nodes * group.devices_per_node


def _layouts(
    graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]
) -> Iterator[Diagnostic]:
    roles = {role.name: role for role in graph.roles}
    groups = {group.name: group for group in cluster.groups}
    for pool in request.pools:
        group = groups.get(pool.group or cluster.groups[0].name)
        for name, layout in pool.layouts.items():
            role = roles.get(name)
            if role is None or role.model is None or role.backend is None or group is None:
                continue
            fault = _layout(name, role.backend, layout, pool, shapes[role.model], group)
            if fault is not None:
                yield fault


def _layout(
    role: str, backend: str, layout: LayoutRequest, pool: PoolRequest, shape: ModelShape, group: NodeGroup
) -> Diagnostic | None:
    traits, span = TRAITS[backend], layout.span or pool.span
    sizes = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    axis = illegal_axis(traits, sizes)
    if axis is not None:
        facts: dict[str, Any] = {"axis": axis, "size": sizes[axis], "role": role, "backend": backend}
        return diagnose("FR0410", span, axes=", ".join(traits.axes), **facts)
    fault = layout_fault(traits, shape, layout.tp, layout.pp)
    if fault is not None:
        sizes_of_tp = ", ".join(str(tp) for tp in legal_tp(traits, shape, pool.gpus, group.devices_per_node))
        deep = layout_fault(traits, shape, layout.tp, 1) is None
        axis, legal = ("pp", f"1 to {shape.layers}") if deep else ("tp", sizes_of_tp)
        return diagnose("FR0411", span, role=role, fault=fault, axis=axis, legal=legal)
    each = layout.tp * layout.pp * layout.cp
    if pool.gpus % each == 0:
        return None
    below, above = pool.gpus // each * each, -(-pool.gpus // each) * each
    nearest = " or ".join(str(count) for count in (below, above) if count)
    sums: dict[str, Any] = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "each": each, "rest": pool.gpus % each}
    return diagnose("FR0503", span, role=role, pool=pool.name, gpus=pool.gpus, nearest=nearest, **sums)


def _engines(
    graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]
) -> Iterator[Diagnostic]:
    """What an engine would refuse when it starts, or at its first token."""
    work = Workload(graph, shapes, request)
    for role in graph.roles:
        traits = TRAITS.get(role.backend or "")
        if role.kind is not Kind.GENERATOR or role.model is None or traits is None:
            continue
        shape = shapes[role.model]
        if traits.bound_to_positions and shape.own_positions:
            yield from _too_long(work, role, shape)
        sizes = traits.cpu_head_sizes
        if sizes is not None and shape.head_dim not in sizes and _on_cpu(role.name, cluster, request):
            facts: dict[str, Any] = {"hidden": shape.hidden, "heads": shape.heads, "size": shape.head_dim}
            yield diagnose(
                "FR0853",
                role.spans.get("backend") or role.span,
                role=role.name,
                sizes=", ".join(map(str, sizes)),
                **facts,
            )


def _too_long(work: Workload, role: Role, shape: ModelShape) -> Iterator[Diagnostic]:
    longest = max((work.lengths(op).most for op in work.graph.ops if op.role == role.name), default=0)
    if longest > shape.max_positions:
        facts: dict[str, Any] = {
            "tokens": longest,
            "positions": shape.max_positions,
            "over": longest - shape.max_positions,
        }
        yield diagnose("FR0840", role.span, role=role.name, **facts)


def _on_cpu(name: str, cluster: Cluster, request: PlacementRequest) -> bool:
    """Whether every place that the role may get is a CPU."""
    home = next((pool.group for pool in request.pools if name in pool.roles), None)
    return all(group.device.is_cpu for group in cluster.groups if home in (None, group.name))
