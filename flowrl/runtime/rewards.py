"""Which number says how good the policy is. Takes a graph and the names of metrics; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowrl.graph.graph import Graph


def reward_roles(graph: Graph) -> dict[str, bool]:
    """Roles that give rewards, in the graph's order → whether an estimator reads theirs."""
    read = {i.source for op in graph.ops if op.method == "estimate" for i in op.inputs if i.slot == "rewards"}
    roles: dict[str, bool] = {}
    for op in graph.ops:
        if any(field.name == "rewards" for field in op.outputs):
            roles[op.role] = roles.get(op.role, False) or op.id in read
    return roles


def reward_metric(names: Iterable[str], reward_roles: Mapping[str, bool]) -> str | None:
    """The metric that says how good the policy is: a reward role's `rewards` on validation, else in training.

    `reward_roles`: role name → whether an estimator reads it; those come first.
    """
    ordered = sorted(reward_roles, key=lambda role: (not reward_roles[role], list(reward_roles).index(role)))
    known = sorted(names)
    for role in ordered:
        labelled = [name for name in known if name.startswith(f"{role}.rewards@")]
        if labelled:
            return labelled[0]
    return next((f"{role}.rewards" for role in ordered if f"{role}.rewards" in known), None)
