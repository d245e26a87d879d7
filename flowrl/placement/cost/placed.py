"""A role on its devices, and the names that every formula of memory and time is written in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import EdgeKind, Graph, Kind, Model, Op, Role
from flowrl.graph.interactions import interactions
from flowrl.machine.adapter import adapter_parameters
from flowrl.machine.cluster import Cluster, Device, NodeGroup
from flowrl.machine.engines import KV_FRACTION
from flowrl.machine.profile import PROFILE, DeviceRates, Profile
from flowrl.machine.shape import DTYPE_BYTES, ModelShape
from flowrl.machine.traits import TRAITS, Traits
from flowrl.placement.cost.ledger import Given
from flowrl.placement.request import PlacementRequest
from flowrl.plan.plan import Decision, Layout, LedgerLine, Pool, RolePlacement

HOST = "host"
MICRO_BATCH_TOKENS = 16384
"""Of an op that has no such key."""


def needs_devices(role: Role) -> bool:
    """Whether a role lives in a pool of devices: it runs a model, or its function says that it uses a GPU."""
    return role.kind is not Kind.DATA and (role.model is not None or role.engine.gpu_bytes is not None)


def sides(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """For each interaction with several roles on devices, those roles: they are live at once, so none shares a pool
    with another."""
    found: list[tuple[str, ...]] = []
    for ops in interactions(graph):
        roles = dict.fromkeys(op.role for op in graph.ops if op.id in ops and needs_devices(graph.role(op.role)))
        if len(roles) > 1:
            found.append(tuple(roles))
    return tuple(found)


def _no_names() -> dict[object, Mapping[str, Given]]:
    return {}


def _no_lines() -> dict[object, list[LedgerLine]]:
    return {}


def _nothing() -> dict[object, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One role in one pool."""

    role: Role
    pool: Pool
    shape: ModelShape | None
    """None for a function that uses a GPU."""
    traits: Traits | None
    layout: Layout
    layout_origin: str
    offloaded: bool
    recompute: str
    group: NodeGroup
    dtype_bytes: int
    dtype_origin: str
    kv_origin: str
    adapter: int = 0
    """Parameters of its LoRA adapter; 0: all weights are its own."""
    adapter_origin: str = "default"
    profile: Profile = PROFILE
    micro_batch_tokens: int | None = None
    """That placement chose; None: as its ops say."""
    memory_share: float | None = None
    """Of a device, that placement chose for an engine; None: as the flow says, else KV_FRACTION."""
    shared: bool = False
    """Whether its weights are those of a trainer that is resident in the same pool: its frozen base, or all of them in
    DeepSpeed's hybrid engine."""
    count: int = field(default=0, init=False, compare=False)
    """Devices of the pool."""
    linked: int = field(default=0, init=False, compare=False)
    """`linked_devices` of the pool."""
    names: dict[object, Mapping[str, Given]] = field(default_factory=_no_names, init=False, compare=False, repr=False)
    """Of formulas, once they were worked out: `model_inputs` and the like ask for the same ones dozens of times. They
    depend on the role, its layout and its devices, not on recomputation and micro-batches."""
    lines: dict[object, list[LedgerLine]] = field(default_factory=_no_lines, init=False, compare=False, repr=False)
    """Lines that several moments have in common, and that depend on the same."""
    kept: dict[object, Any] = field(default_factory=_nothing, init=False, compare=False, repr=False)
    """What depends on the role and its kind of devices alone, once it was worked out."""

    def __post_init__(self) -> None:
        if self.pool.devices:
            object.__setattr__(self, "count", len(self.pool.devices))
            object.__setattr__(self, "linked", linked_devices(self.group, self.pool.devices))

    def elsewhere(self, pool: Pool, entry: RolePlacement, where: str, shared: bool, count: int, linked: int) -> Placed:
        """The same role as `entry` says, on other devices of the same kind, which need no names: `count` of them, of
        which `linked` talk by links. `where`: the origin of its layout. In the same layout on as many devices it has
        all names of formulas that are known."""
        # A search asks for thousands: what is the same is taken over at once, without `__init__`.
        found = object.__new__(Placed)
        here = vars(found)
        here |= vars(self)
        here |= {
            "pool": pool,
            "layout": entry.layout,
            "layout_origin": where,
            "offloaded": entry.offloaded,
            "recompute": entry.recompute,
            "micro_batch_tokens": entry.micro_batch_tokens,
            "memory_share": entry.memory_share,
            "shared": shared,
            "count": count,
            "linked": linked,
        }
        key = ("layout", entry.layout, entry.memory_share, where, shared, count, linked)
        here["names"], here["lines"] = self.kept.setdefault(key, ({}, {}))
        return found

    @property
    def device(self) -> Device:
        return self.group.device

    @property
    def model(self) -> ModelShape:
        if self.shape is None:
            raise InternalError(f"role `{self.role.name}` has no model")
        return self.shape

    @property
    def rates(self) -> DeviceRates:
        """What its backend achieves on its device."""
        found: DeviceRates | None = self.kept.get("rates")
        if found is None:
            found = self.kept["rates"] = self.profile.rates(self.device, self.backend)
        return found

    @property
    def kv_fraction(self) -> float:
        """What of a device an engine may take."""
        return share_of(self.role, self.memory_share)

    @property
    def backend(self) -> str:
        return self.role.backend or ""


def share_of(role: Role, chosen: float | None = None) -> float:
    """What of a device an engine may take: as placement has `chosen`, as the flow says, else KV_FRACTION."""
    said = role.engine.kv_fraction if chosen is None else chosen
    return KV_FRACTION if said is None else said


def micro_batch_tokens(placed: Placed, op: Op) -> int:
    """Tokens that a device works on at a time in `op`: as placement chose, else as the op says."""
    chosen = placed.micro_batch_tokens
    return getattr(op.params, "micro_batch_tokens", MICRO_BATCH_TOKENS) if chosen is None else chosen


def placed_roles(
    graph: Graph,
    pool: Pool,
    shapes: Mapping[str, ModelShape],
    cluster: Cluster,
    request: PlacementRequest,
    decisions: Sequence[Decision] = (),
) -> tuple[Placed, ...]:
    """Every role of a device pool, in the pool's order."""
    group = group_of(pool, cluster)
    return tuple(placed_role(graph, entry, pool, group, shapes, request, decisions) for entry in pool.roles)


def placed_role(
    graph: Graph,
    entry: RolePlacement,
    pool: Pool,
    group: NodeGroup,
    shapes: Mapping[str, ModelShape],
    request: PlacementRequest,
    decisions: Sequence[Decision] = (),
) -> Placed:
    """One role of a pool on devices of `group`."""
    role = graph.role(entry.role)
    model = graph.model(role.model) if role.model is not None else None
    return Placed(
        role=role,
        pool=pool,
        shape=shapes[model.name] if model is not None else None,
        traits=TRAITS.get(role.backend or ""),
        layout=entry.layout,
        layout_origin=layout_origin(entry.role, pool.name, request, decisions),
        offloaded=entry.offloaded,
        recompute=entry.recompute,
        group=group,
        dtype_bytes=DTYPE_BYTES[model.dtype] if model is not None else 4,
        dtype_origin=request.origin("models", model.name, "dtype") if model is not None else "default",
        kv_origin=_kv_origin(entry, request, decisions),
        adapter=_adapter(role, model, shapes),
        adapter_origin=request.origin("models", model.name, "lora", "rank") if model is not None else "default",
        profile=request.profile,
        micro_batch_tokens=entry.micro_batch_tokens,
        memory_share=entry.memory_share,
        shared=is_shared(graph, role, {each.role for each in pool.roles if not each.offloaded}),
    )


def _kv_origin(entry: RolePlacement, request: PlacementRequest, decisions: Sequence[Decision]) -> str:
    if entry.memory_share is None:
        return request.origin("roles", entry.role, "engine", "kv_fraction")
    decided = next((each.id for each in decisions if each.what == f"memory of {entry.role}"), None)
    return f"decided {decided}" if decided else "decided by placement"


def is_shared(graph: Graph, role: Role, resident: set[str]) -> bool:
    """Whether the role works with the weights of a trainer that is `resident` in its pool: any one of them will do."""
    return role.shares in resident or _is_hybrid(graph, role, resident)


def _is_hybrid(graph: Graph, role: Role, resident: set[str]) -> bool:
    """Whether a generator works with the weights of its trainer: DeepSpeed's hybrid engine."""
    if role.backend != "deepspeed" or role.kind is not Kind.GENERATOR:
        return False
    sources = {edge.source for edge in graph.edges if edge.kind is EdgeKind.WEIGHTS and edge.target == role.name}
    return any(source in resident and graph.role(source).backend == "deepspeed" for source in sources)


def _adapter(role: Role, model: Model | None, shapes: Mapping[str, ModelShape]) -> int:
    """A scorer of a LoRA model is its base."""
    if model is None or model.lora is None or role.kind not in (Kind.TRAINER, Kind.GENERATOR):
        return 0
    return adapter_parameters(shapes[model.name], model.lora)


def group_of(pool: Pool, cluster: Cluster) -> NodeGroup:
    """The node group of a pool's devices: that of its device type and, if named, of its first device."""
    named = pool.devices[0].split("/")
    for group in cluster.groups:
        if group.device.name == pool.device and (len(named) == 2 or named[0] == group.name):
            return group
    raise InternalError(f"pool `{pool.name}` is on {pool.device}, which the cluster does not have")


def linked_devices(group: NodeGroup, devices: tuple[str, ...]) -> int:
    """Neighbouring devices of a pool that talk by links: those in a node, or in a domain of several nodes."""
    return _linked_of(devices, nodes_linked(group))


def nodes_linked(group: NodeGroup) -> int:
    """Nodes of a link domain."""
    return max(1, group.linked_devices // group.devices_per_node)


@lru_cache(maxsize=1024)
def _linked_of(devices: tuple[str, ...], together: int) -> int:
    nodes = Counter(device.rsplit("/", 1)[0] for device in devices)
    return len(devices) if len(nodes) <= together else min(nodes.values()) * together


def layout_origin(role: str, pool: str, request: PlacementRequest, decisions: Sequence[Decision] = ()) -> str:
    """Where a role's layout comes from: the flow, a decision, or placement that has not named its decisions yet."""
    for axis in ("tp", "pp", "cp", "ep"):
        written = request.origin("placement", "pools", pool, "layouts", role, axis)
        if written != "default":
            return written
    decided = next((each.id for each in decisions if each.what == f"layout of {role}"), None)
    return f"decided {decided}" if decided else "decided by placement"


def model_inputs(placed: Placed) -> Mapping[str, Given]:
    """The names of a formula that a role's model, layout and engine stand for.

    P parameters · R those outside the decoder layers (FSDP's root group) · Lp those of one layer · L layers ·
    H hidden · q, k widths of queries and of keys · F feed-forward · n heads · V outputs per token · E experts ·
    e experts per token · w bytes of a weight in compute · dp, tp, pp of the layout · A parameters of a LoRA adapter.
    """
    found = placed.names.get("model")
    if found is None:
        found = placed.names["model"] = _model_inputs(placed)
    return found


def _model_inputs(placed: Placed) -> Mapping[str, Given]:
    where, always = placed.layout_origin, placed.kept.get("model")
    if always is None:
        adapter = {"A": Given(placed.adapter, f"adapter, rank {placed.adapter_origin}")} if placed.adapter else {}
        width = Given(placed.dtype_bytes, placed.dtype_origin)
        always = placed.kept["model"] = {**adapter, **_shape_inputs(placed.model), "w": width}
    return {
        **always,
        "dp": Given(placed.layout.dp, where),
        "tp": Given(placed.layout.tp, where),
        "pp": Given(placed.layout.pp, where),
    }


@lru_cache(maxsize=256)
def _shape_inputs(shape: ModelShape) -> Mapping[str, Given]:
    values = {
        "P": shape.parameters,
        "R": shape.root_parameters,
        "Lp": shape.layer_parameters,
        "L": shape.layers,
        "H": shape.hidden,
        "q": shape.q_width,
        "k": shape.kv_width,
        "F": shape.ffn,
        "n": shape.heads,
        "V": shape.output_width,
        "E": max(1, shape.experts),
        "e": max(1, shape.experts_per_token),
    }
    return {name: Given(value, shape.origin) for name, value in values.items()}
