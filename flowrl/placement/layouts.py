"""Layouts and what they need in words, and the pool of roles without devices. Chooses nothing."""

from __future__ import annotations

from flowrl.graph.graph import Graph
from flowrl.placement.cost.placed import HOST, needs_devices
from flowrl.plan.plan import Layout, Memory, Pool, RolePlacement

MOST_HOST_SLOTS = 16


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


ALIKE = 0.0005
"""Shares of a time that read as none."""


def change_text(share: float, digits: int = 0) -> str:
    """`+12%`; a decimal more below one in a hundred, as `−0.3%`, and `±0%` for what would read as none."""
    if abs(share) < ALIKE:
        return "±0%"
    return f"{share:+.{digits if abs(share) >= 0.01 else max(1, digits)}%}".replace("-", "−", 1)


def reason_alone(more: float) -> str:
    """The code of a choice that takes this share more time where a role has the devices to itself, and was not taken.
    One that is faster so was looked at in a step with all others, where it saves nothing or does not fit."""
    if abs(more) < ALIKE:
        return "not_preferred"
    return "slower" if more > 0 else "no_shorter_step"


def needs_text(entry: Memory) -> str:
    """What a phase needs against its limit: `151.3 of 139.0 GiB in actor_train.update`."""
    gib = 2**30
    return f"{entry.peak_bytes / gib:.1f} of {entry.limit_bytes / gib:.1f} GiB in {entry.phase}"
