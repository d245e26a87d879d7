"""Which roles keep something from step to step that only a checkpoint has: trainers, and functions that say so."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import CallParams

STATEFUL = frozenset({"flowrl:lagrange"})
"""Functions that ship with FlowRL and keep something; a user's keep nothing that a run counts on."""


def keeps_state(role: Role, ops: Iterable[Op]) -> bool:
    """Whether the role keeps state; `ops` are the graph's, or the role's own."""
    return role.kind is Kind.TRAINER or any(op.role == role.name and changes_state(op) for op in ops)


def changes_state(op: Op) -> bool:
    """Whether a firing of the op changes what its role keeps."""
    if op.method == "update":
        return True
    return isinstance(op.params, CallParams) and op.params.function in STATEFUL
