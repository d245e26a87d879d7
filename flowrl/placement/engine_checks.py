"""What an engine or a device would refuse when a role starts on it: adapters, budgets, keys, dtypes, images, groups of
ranks over nodes. Takes a request before anything is placed; gives diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Help, diagnose
from flowrl.diag.near import near_names
from flowrl.graph.graph import Graph, Kind, Model, Role
from flowrl.graph.params import DataParams
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.devices import DEVICE_CARDS
from flowrl.machine.engines import ALL_TARGETS, LORA_RANKS, LORA_TARGETS, RESERVED, lora_rank
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS, legal_tp
from flowrl.placement.devices import allocate
from flowrl.placement.request import PlacementRequest
from flowrl.placement.workload import Workload


def engine_faults(
    graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]
) -> Iterator[Diagnostic]:
    """FR0431 to FR0433, FR0438, FR0439 and FR0844 of every role with a model, FR0533 of every layout."""
    work = Workload(graph, shapes, request)
    for model in graph.models:
        yield from _targets(model)
    for role in graph.roles:
        if role.model is None:
            continue
        model = graph.model(role.model)
        yield from _adapter(role, model)
        yield from _arguments(work, role)
        yield from _dtype(role, model, _groups(role.name, cluster, request))
        yield from _images(graph, role, model, shapes[model.name])
    yield from _over_nodes(graph, cluster, request, shapes)


def _targets(model: Model) -> Iterator[Diagnostic]:
    targets: Any = (model.lora or {}).get("targets", ALL_TARGETS)
    names = [targets] if isinstance(targets, str) else list(targets)
    for name in names:
        if name == ALL_TARGETS or name in LORA_TARGETS:
            continue
        near = near_names(name, LORA_TARGETS)
        helps = [Help(text=f"a target with a near name exists: `{near[0]}`")] if near else []
        known = ", ".join((ALL_TARGETS, *LORA_TARGETS))
        span = model.spans.get("lora") or model.span
        yield diagnose("FR0432", span, model=model.name, name=name, known=known, helps=helps)


def _adapter(role: Role, model: Model) -> Iterator[Diagnostic]:
    backend = role.backend or ""
    if role.kind is not Kind.GENERATOR or model.lora is None or lora_rank(backend, model.lora["rank"]) is not None:
        return
    ranks = LORA_RANKS[backend]
    facts: dict[str, Any] = {"rank": model.lora["rank"], "role": role.name, "backend": backend, "most": ranks[-1]}
    span = model.spans.get("lora") or model.span
    yield diagnose("FR0431", span, model=model.name, ranks=", ".join(map(str, ranks)), **facts)


def _arguments(work: Workload, role: Role) -> Iterator[Diagnostic]:
    """`engine.extra` is passed on as written: what of it cannot be, or cannot be together with the flow."""
    extra, span = role.engine.extra, role.spans.get("extra") or role.span
    for key in sorted(RESERVED.get(role.backend or "", frozenset()) & set(extra)):
        yield diagnose("FR0844", span, role=role.name, key=key)
    budget = extra.get("max_num_batched_tokens")
    if role.backend != "vllm" or role.kind is not Kind.GENERATOR or not isinstance(budget, int):
        return
    longest = max((work.lengths(op).most for op in work.graph.ops if op.role == role.name), default=0)
    if extra.get("enable_chunked_prefill") is False and budget < longest:
        facts: dict[str, Any] = {"budget": budget, "tokens": longest}
        yield diagnose("FR0433", span, role=role.name, **facts)


def _dtype(role: Role, model: Model, groups: Sequence[NodeGroup]) -> Iterator[Diagnostic]:
    """Told where none of the devices that the role may get computes in the dtype of its model."""
    able = [DEVICE_CARDS[group.device.name].dtypes for group in groups if group.device.name in DEVICE_CARDS]
    if not able or len(able) < len(groups) or any(model.dtype in dtypes for dtypes in able):
        return
    traits = TRAITS.get(role.backend or "")
    both = [dtype for dtype in able[0] if traits is None or dtype in traits.dtypes]
    facts: dict[str, Any] = {
        "model": model.name,
        "dtype": model.dtype,
        "device": groups[0].device.name,
        "role": role.name,
    }
    span = model.spans.get("dtype") or model.span or role.span
    yield diagnose("FR0438", span, dtypes=", ".join(able[0]), first=both[0] if both else able[0][0], **facts)


def _images(graph: Graph, role: Role, model: Model, shape: ModelShape) -> Iterator[Diagnostic]:
    """A model without an image encoder would be given text only."""
    if role.kind is not Kind.GENERATOR or getattr(shape, "vision_parameters", 0) or shape.head == "denoiser":
        return
    for op in graph.ops:
        sources = {i.source for i in op.inputs if i.slot == "images"} if op.role == role.name else set[str | None]()
        for data in (o for o in graph.ops if o.id in sources and isinstance(o.params, DataParams)):
            facts: dict[str, Any] = {
                "data": data.id,
                "role": role.name,
                "model": model.name,
                "architecture": shape.architecture,
            }
            yield diagnose("FR0439", data.spans.get("images") or data.span, **facts)


def _groups(name: str, cluster: Cluster, request: PlacementRequest) -> list[NodeGroup]:
    """Every group of nodes that the role may get."""
    home = next((pool for pool in request.pools if name in pool.roles or request.pin.get(name) == pool.name), None)
    wanted = home.group if home is not None else None
    return [group for group in cluster.groups if wanted in (None, group.name)]


def _over_nodes(
    graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]
) -> Iterator[Diagnostic]:
    """Ranks of one tensor-parallel group talk in every layer, so they stand on one node: FR0533."""
    roles, groups = {role.name: role for role in graph.roles}, {group.name: group for group in cluster.groups}
    homes = _homes(cluster, request)
    for pool in request.pools:
        group = groups.get(pool.group or cluster.groups[0].name)
        for name, layout in pool.layouts.items():
            role = roles.get(name)
            traits = TRAITS.get(role.backend or "") if role is not None else None
            if group is None or role is None or role.model is None or traits is None or "tp" not in traits.axes:
                continue
            broken = _broken_group(homes.get(pool.name, ()), layout.tp)
            if layout.tp <= group.devices_per_node and broken is None:
                continue
            legal = legal_tp(traits, shapes[role.model], pool.gpus, group.devices_per_node)
            fits = [tp for tp in legal if _broken_group(homes.get(pool.name, ()), tp) is None]
            facts: dict[str, Any] = {"role": name, "tp": layout.tp, "size": group.devices_per_node, "pool": pool.name}
            facts["broken"] = f"ranks {broken} of it would stand on two" if broken else f"{layout.tp} ranks need more"
            yield diagnose("FR0533", layout.span or pool.span, legal=", ".join(map(str, fits)), **facts)


def _homes(cluster: Cluster, request: PlacementRequest) -> dict[str, tuple[str, ...]]:
    """Devices of each pool; none where they are too few (FR0502 tells that)."""
    sizes = {group.name: group.nodes * group.devices_per_node for group in cluster.groups}
    wanted = [(pool.group or cluster.groups[0].name, pool.gpus) for pool in request.pools]
    for name, count in wanted:
        sizes[name] = sizes.get(name, 0) - count
    if any(left < 0 for left in sizes.values()):
        return {}
    return {pool.name: devices for pool, devices in zip(request.pools, allocate(cluster, wanted), strict=True)}


def _broken_group(devices: Sequence[str], tp: int) -> str | None:
    """The first tensor-parallel group of `tp` neighbouring ranks that is on two nodes, as `4 to 7`."""
    for start in range(0, len(devices) - tp + 1, tp):
        if len({device.rpartition("/")[0] for device in devices[start : start + tp]}) > 1:
            return f"{start} to {start + tp - 1}"
    return None


def warn_positions(graph: Graph, request: PlacementRequest, shapes: Mapping[str, ModelShape]) -> tuple[Diagnostic, ...]:
    """FR0437 for a generator whose samples may be longer than the positions of its model's card, which other ids with
    the same shape may not share; where the number is the model's own, FR0840 refuses."""
    work = Workload(graph, shapes, request)
    found: list[Diagnostic] = []
    for role in graph.roles:
        shape = shapes.get(role.model or "")
        if role.kind is not Kind.GENERATOR or shape is None or shape.own_positions or not shape.max_positions:
            continue
        calls = [op for op in graph.ops if op.role == role.name]
        longest = max(calls, key=lambda op: work.lengths(op).most, default=None)
        if longest is not None and work.lengths(longest).most > shape.max_positions:
            tokens = work.lengths(longest).most
            facts: dict[str, Any] = {
                "tokens": tokens,
                "positions": shape.max_positions,
                "over": tokens - shape.max_positions,
            }
            span = longest.spans.get("max_response_tokens") or role.span
            found.append(diagnose("FR0437", span, op=longest.id, model=shape.name, **facts))
    return tuple(found)
