"""Edits that may make a placement fit: one change of the flow each, as a new graph, cluster or request.

Each edit is a key of the flow with a new value. Whether it helps is found by placing again, not believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Kind, Op, Role
from flowrl.graph.params import ForwardParams, ScoreParams, UpdateParams
from flowrl.machine.cluster import Cluster
from flowrl.placement.placed import needs_devices
from flowrl.placement.request import Mode, PlacementRequest

SMALLEST_MICRO_BATCH_TOKENS = 512
SMALLEST_KV_FRACTION = 0.1
MOST_TIMES_NODES = 16

Situation = tuple[Graph, Cluster, PlacementRequest]


@dataclass(frozen=True, slots=True)
class Edit:
    """`text` is what to write. `steps` are ever stronger forms of the edit; the first that fits is the one shown."""

    key: str
    steps: tuple[tuple[str, Callable[[Situation], Situation]], ...]


def edits(situation: Situation) -> Iterator[Edit]:
    """Every edit worth trying, in a fixed order."""
    graph, cluster, request = situation
    for role in graph.roles:
        if not needs_devices(role):
            continue
        yield from _of_role(graph, role)
    if request.mode is not Mode.AUTO:
        auto = replace(request, mode=Mode.AUTO, pools=(), pin={})
        yield Edit("placement", (("auto", lambda s: (s[0], s[1], auto)),))
    if not any(group.device.is_cpu for group in cluster.groups):
        yield from _of_cluster(cluster, request)


def _of_role(graph: Graph, role: Role) -> Iterator[Edit]:
    name = role.name
    if role.kind is Kind.GENERATOR and role.backend == "vllm":
        yield _kv_fraction(role)
    if role.trainable and role.engine.recompute != "full":
        yield Edit(f"roles.{name}.engine.recompute", (("full", _engine(name, recompute="full")),))
    if role.engine.offload is False:
        yield Edit(f"roles.{name}.engine.offload", (("true", _engine(name, offload=None)),))
    for op in graph.ops:
        if op.role == name and isinstance(op.params, UpdateParams | ForwardParams | ScoreParams):
            yield _micro_batch(op, role)


def _micro_batch(op: Op, role: Role) -> Edit:
    assert isinstance(op.params, UpdateParams | ForwardParams | ScoreParams)
    key = f"roles.{op.role}.micro_batch_tokens"
    if role.kind is Kind.TRAINER:
        key = f"roles.{op.role}.{op.method}.micro_batch_tokens"
    sizes: list[int] = []
    tokens = op.params.micro_batch_tokens // 2
    while tokens >= SMALLEST_MICRO_BATCH_TOKENS:
        sizes.append(tokens)
        tokens //= 2
    return Edit(key, tuple((str(size), _params(op.id, size)) for size in sizes))


def _kv_fraction(role: Role) -> Edit:
    """Smaller leaves room for others, larger gives an engine that can't start its room."""
    now = round(role.engine.kv_fraction * 20)
    lower = [n / 20 for n in range(now - 1, round(SMALLEST_KV_FRACTION * 20) - 1, -1)]
    higher = [n / 20 for n in range(now + 1, 20)]
    steps = sorted((*lower, *higher), key=lambda share: abs(share - role.engine.kv_fraction))
    key = f"roles.{role.name}.engine.kv_fraction"
    return Edit(key, tuple((f"{share:.2f}", _engine(role.name, kv_fraction=share)) for share in steps))


def _of_cluster(cluster: Cluster, request: PlacementRequest) -> Iterator[Edit]:
    """Twice, four times … the nodes. Explicit pools do not grow by themselves, so they are left out."""
    if request.mode is Mode.POOLS or len(cluster.groups) != 1:
        return
    nodes = cluster.groups[0].nodes
    times = [2, 4, 8, MOST_TIMES_NODES]
    yield Edit("cluster.nodes", tuple((str(nodes * n), _nodes(nodes * n)) for n in times))


def _engine(name: str, **changes: object) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        graph, cluster, request = situation
        roles = tuple(
            replace(role, engine=replace(role.engine, **changes)) if role.name == name else role for role in graph.roles
        )
        return replace(graph, roles=roles), cluster, request

    return apply


def _params(id: str, tokens: int) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        graph, cluster, request = situation
        ops = tuple(_smaller(op, tokens) if op.id == id else op for op in graph.ops)
        return replace(graph, ops=ops), cluster, request

    return apply


def _smaller(op: Op, tokens: int) -> Op:
    assert isinstance(op.params, UpdateParams | ForwardParams | ScoreParams)
    return replace(op, params=replace(op.params, micro_batch_tokens=tokens))


def _nodes(count: int) -> Callable[[Situation], Situation]:
    def apply(situation: Situation) -> Situation:
        graph, cluster, request = situation
        groups = tuple(replace(group, nodes=count) for group in cluster.groups)
        return graph, replace(cluster, groups=groups), request

    return apply
