"""What an engine or a device would refuse when a role starts on it: adapters, budgets, keys, dtypes, images, groups of
ranks over nodes. Takes a request before anything is placed; gives diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, diagnose
from flowrl.graph.graph import Graph, Kind, Model, Role
from flowrl.graph.params import DataParams
from flowrl.machine.cluster import Cluster, NodeGroup
from flowrl.machine.devices import ALL_DTYPES, DEVICE_CARDS
from flowrl.machine.engines import LORA_RANKS, RESERVED, lora_rank
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import ENGINES, RING_ATTENTION, TRAITS, Traits, context_fault, legal_cp, legal_tp
from flowrl.placement.cost.workload import Workload
from flowrl.placement.devices import allocate, broken_group
from flowrl.placement.request import LayoutRequest, PlacementRequest


def engine_faults(
    graph: Graph, cluster: Cluster, request: PlacementRequest, shapes: Mapping[str, ModelShape]
) -> Iterator[Diagnostic]:
    """FR0431, FR0433, FR0438, FR0439, FR0460 to FR0462, FR0545, FR0844 of every role with a model, FR0533 of every
    layout."""
    work = Workload(graph, shapes, request)
    for model in graph.models:
        yield from _dtype(graph, model, cluster, request)
    for role in graph.roles:
        if role.model is None:
            continue
        model = graph.model(role.model)
        yield from _adapter(role, model)
        yield from _arguments(work, role)
        yield from _eight_bits(role, cluster, request)
        yield from _images(graph, role, model, shapes[model.name])
    yield from _over_nodes(graph, cluster, request, shapes)


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
        yield diagnose("FR0844", role.spans.get(f"engine.{key}", span), role=role.name, key=key)
    if role.backend not in ENGINES or role.kind is not Kind.GENERATOR:
        return
    longest = max((work.lengths(op).most for op in work.graph.ops if op.role == role.name), default=0)
    given, budget = role.engine.max_model_tokens, role.engine.max_batch_tokens
    if given is not None and given < longest:
        place = role.spans.get("engine.max_model_tokens", role.span)
        yield diagnose("FR0460", place, role=role.name, given=given, tokens=longest)
    yield from _limits(work, role)
    if role.backend != "vllm" or budget is None:
        return
    if extra.get("enable_chunked_prefill") is False and budget < longest:
        facts: dict[str, Any] = {"budget": budget, "tokens": longest}
        yield diagnose("FR0433", role.spans.get("engine.max_batch_tokens", span), role=role.name, **facts)


def _limits(work: Workload, role: Role) -> Iterator[Diagnostic]:
    """Limits that vLLM refuses when it starts: ModelConfig's check of max_model_len against the model's positions, and
    SchedulerConfig's of max_num_batched_tokens against max_num_seqs."""
    shape, engine, traits = work.shapes[role.model or ""], role.engine, TRAITS[role.backend or ""]
    given, budget = engine.max_model_tokens, engine.max_batch_tokens
    bound = traits.bound_to_positions and shape.own_positions
    if bound and given is not None and given > shape.max_positions:
        place = role.spans.get("engine.max_model_tokens", role.span)
        yield diagnose("FR0462", place, role=role.name, given=given, positions=shape.max_positions)
    if role.backend == "vllm" and budget is not None and budget < (engine.max_sequences or 0):
        place = role.spans.get("engine.max_batch_tokens", role.span)
        yield diagnose("FR0461", place, role=role.name, budget=budget, sequences=engine.max_sequences)


def _dtype(graph: Graph, model: Model, cluster: Cluster, request: PlacementRequest) -> Iterator[Diagnostic]:
    """Told where none of the devices that a role may get computes in the dtype of its model."""
    stuck: list[Role] = []
    legal = set(ALL_DTYPES)
    device = ""
    for role in (each for each in graph.roles if each.model == model.name):
        groups = _groups(role.name, cluster, request)
        able = [DEVICE_CARDS[group.device.name].dtypes for group in groups if group.device.name in DEVICE_CARDS]
        if able and len(able) == len(groups) and not any(model.dtype in dtypes for dtypes in able):
            stuck.append(role)
            traits = TRAITS.get(role.backend or "")
            legal &= {dtype for dtypes in able for dtype in dtypes}
            legal &= set(traits.dtypes if traits is not None else ALL_DTYPES)
            device = groups[0].device.name
    if stuck:
        facts: dict[str, Any] = {"model": model.name, "dtype": model.dtype, "device": device}
        roles = f"{' and '.join(f'`{role.name}`' for role in stuck)} run{'s' if len(stuck) == 1 else ''}"
        span = model.spans.get("dtype") or model.span or stuck[0].span
        dtypes = DEVICE_CARDS[device].dtypes
        first = next((dtype for dtype in dtypes if dtype in legal), dtypes[0])
        yield diagnose("FR0438", span, roles=roles, dtypes=", ".join(dtypes), first=first, **facts)


def _eight_bits(role: Role, cluster: Cluster, request: PlacementRequest) -> Iterator[Diagnostic]:
    devices = [group.device for group in _groups(role.name, cluster, request)]
    if role.engine.compute_dtype != "fp8" or any(device.fp8_flops_per_second for device in devices):
        return
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    yield diagnose("FR0545", role.spans.get("engine.compute_dtype", role.span), role=role.name, devices=names)


def context_faults(role: str, traits: Traits, layout: LayoutRequest, shape: ModelShape) -> Iterator[Diagnostic]:
    """FR0430 for a size of cp that does not share out the heads, where the backend has that axis (else FR0410) and cuts
    by heads: Megatron Core's passes keys and values around a ring, which any size of cp can."""
    by_heads = "cp" in traits.axes and traits.backend not in RING_ATTENTION
    fault = context_fault(shape, layout.cp, layout.tp) if by_heads else None
    if fault is not None:
        facts: dict[str, Any] = {"cp": layout.cp, "heads": shape.heads, "kv_heads": shape.kv_heads}
        legal = ", ".join(map(str, legal_cp(shape, layout.tp)))
        yield diagnose("FR0430", layout.span, role=role, fault=fault, legal=legal, **facts)


def _images(graph: Graph, role: Role, model: Model, shape: ModelShape) -> Iterator[Diagnostic]:
    """A model without an image encoder would be given text only."""
    if role.kind is not Kind.GENERATOR or getattr(shape, "vision_parameters", 0) or shape.head == "denoiser":
        return
    for op in (each for each in graph.ops if each.role == role.name):
        sources = {i.source for i in op.inputs if i.slot == "images"}
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
    """Ranks of one tensor-parallel group talk in every layer, so they stand on one node: FR0533. An engine of a model
    that no node holds may fill several nodes of several devices (vLLM's and SGLang's multi-node serving)."""
    roles, groups = {role.name: role for role in graph.roles}, {group.name: group for group in cluster.groups}
    homes = _homes(cluster, request)
    for pool in request.pools:
        group = groups.get(pool.group or cluster.groups[0].name)
        for name, layout in pool.layouts.items():
            role = roles.get(name)
            traits = TRAITS.get(role.backend or "") if role is not None else None
            if group is None or role is None or role.model is None or traits is None:
                continue
            yield from context_faults(name, traits, layout, shapes[role.model])
            if "tp" not in traits.axes:
                continue
            broken = broken_group(homes.get(pool.name, ()), layout.tp)
            if layout.tp <= group.devices_per_node and broken is None:
                continue
            if traits.backend in ENGINES and _fills_nodes(homes.get(pool.name, ()), layout.tp, group.devices_per_node):
                continue
            legal = legal_tp(traits, shapes[role.model], pool.gpus, group.devices_per_node)
            fits = [tp for tp in legal if broken_group(homes.get(pool.name, ()), tp) is None]
            facts: dict[str, Any] = {
                "role": name,
                "tp": layout.tp,
                "size": _devices(group.devices_per_node),
                "pool": pool.name,
            }
            facts["broken"] = f"ranks {broken} of it would stand on two" if broken else "it needs more"
            yield diagnose("FR0533", layout.span or pool.span, legal=", ".join(map(str, fits)), **facts)


def _fills_nodes(devices: Sequence[str], tp: int, per_node: int) -> bool:
    """Whether each group of `tp` neighbouring devices is several whole nodes, each with links of its own inside."""
    if per_node < 2 or tp % per_node or len(devices) % tp:
        return False
    groups = (devices[start : start + tp] for start in range(0, len(devices), tp))
    return all(len({device.rpartition("/")[0] for device in group}) * per_node == tp for group in groups)


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _homes(cluster: Cluster, request: PlacementRequest) -> dict[str, tuple[str, ...]]:
    """Devices of each pool; none where they are too few (FR0502 tells that)."""
    sizes = {group.name: group.nodes * group.devices_per_node for group in cluster.groups}
    wanted = [(pool.group or cluster.groups[0].name, pool.gpus) for pool in request.pools]
    for name, count in wanted:
        sizes[name] = sizes.get(name, 0) - count
    if any(left < 0 for left in sizes.values()):
        return {}
    return {pool.name: devices for pool, devices in zip(request.pools, allocate(cluster, wanted), strict=True)}


def warn_positions(work: Workload) -> tuple[Diagnostic, ...]:
    """FR0437 for a generator whose samples may be longer than the positions of its model's card, which other ids with
    the same shape may not share; where the number is the model's own, FR0840 refuses."""
    found: list[Diagnostic] = []
    for role in work.graph.roles:
        shape = work.shapes.get(role.model or "")
        if role.kind is not Kind.GENERATOR or shape is None or shape.own_positions or not shape.max_positions:
            continue
        calls = [op for op in work.graph.ops if op.role == role.name]
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
