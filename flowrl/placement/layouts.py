"""Layouts in words, those of a plain menu of tp and pp, and the pool of roles without devices. Chooses nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flowrl.graph.graph import Graph, Role
from flowrl.machine.cluster import NodeGroup
from flowrl.machine.shape import ModelShape
from flowrl.machine.traits import TRAITS, layout_fault, legal_tp
from flowrl.placement.cost.placed import HOST, needs_devices
from flowrl.placement.devices import broken_group
from flowrl.plan.plan import Layout, Memory, Pool, RolePlacement

MOST_HOST_SLOTS = 16


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
