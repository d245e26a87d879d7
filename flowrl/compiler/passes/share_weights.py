"""share_weights: the frozen base of a trainer of adapters is also the reference's weights."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.graph.graph import Graph, Role
from flowrl.graph.weights import sharing_trainer


def share_weights(graph: Graph) -> Graph:
    """Mark scorers whose weights a LoRA trainer holds anyway: where both live in one pool, one copy serves.

    before: actor_train (policy, lora) · reference (policy), no `=>` into it
    after:  reference shares actor_train: its log-probs are those of the trainer with the adapters left out

    Only marked: whether they meet in a pool is a decision of placement. A scorer that a weights edge refreshes is not
    the base, and has a copy of its own.

    Requires: live roles only. Ensures: `shares` names a trainer of adapters over equal weights with the same backend.
    """
    return replace(graph, roles=tuple(_sharing(graph, role) for role in graph.roles))


def _sharing(graph: Graph, role: Role) -> Role:
    trainer = sharing_trainer(graph, role)
    return role if trainer is None else replace(role, shares=trainer.name)
