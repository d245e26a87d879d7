"""Which roles keep something from step to step that only a checkpoint has: trainers, and functions that say so."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.graph.graph import Kind, Op, Role
from flowrl.graph.params import CallParams
from flowrl.graph.signatures import BUILTIN_FUNCTIONS

_PREFIX = "flowrl:"


def keeps_state(role: Role, ops: Iterable[Op]) -> bool:
    """Whether the role keeps state; `ops` are the graph's, or the role's own."""
    return role.kind is Kind.TRAINER or any(op.role == role.name and changes_state(op) for op in ops)


def changes_state(op: Op) -> bool:
    """Whether a firing of the op changes what its role keeps."""
    if op.method == "update":
        return True
    if not isinstance(op.params, CallParams) or not op.params.function.startswith(_PREFIX):
        return False
    known = BUILTIN_FUNCTIONS.get(op.params.function.removeprefix(_PREFIX))
    return known is not None and known.keeps_state
