"""Lowered edges: from bound inputs to direct producer → consumer edges. Used by the passes that bind or drop inputs."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.graph.graph import Edge, EdgeKind, Op
from flowrl.graph.records import Records


def data_edges(op: Op, records: Records) -> tuple[Edge, ...]:
    """One edge for each producer of the op's inputs, in order of first use; its origin is every declared edge on the
    paths that put the fields in scope."""
    slots: dict[str, list[str]] = {}
    origin: dict[str, set[str]] = {}
    for input in op.inputs:
        if input.source is None:
            continue
        slots.setdefault(input.source, []).append(input.slot)
        origin.setdefault(input.source, set()).update(origin_of(records, input.source, input.field, op.id))
    return tuple(
        Edge(
            id=f"{source} -> {op.id}",
            kind=EdgeKind.DATA,
            source=source,
            target=op.id,
            fields=tuple(names),
            origin=tuple(sorted(origin[source])),
            derived=not origin[source],
        )
        for source, names in slots.items()
    )


def origin_of(records: Records, producer: str, field: str, consumer: str) -> tuple[str, ...]:
    """The declared edges that bring a field; none where a pass added one of the ops, or `inputs:` reached into another
    call."""
    known = consumer in records.ancestors and producer in records.ancestors[consumer]
    return records.origin(producer, field, consumer) if known else ()


def state_edges(updated: Iterable[Op], readers: Iterable[Op]) -> tuple[Edge, ...]:
    """Read-before-write within a step: every other op of an updated role comes before its update, and an update before
    itself of the next step (one token: the weights at the start)."""
    by_role = {op.role: op for op in updated}
    before = [
        _state(reader.id, by_role[reader.role].id, tokens=0)
        for reader in readers
        if reader.role in by_role and reader.id != by_role[reader.role].id
    ]
    return (*before, *(_state(op.id, op.id, tokens=1) for op in by_role.values()))


def _state(source: str, target: str, tokens: int) -> Edge:
    return Edge(
        id=f"{source} before {target}",
        kind=EdgeKind.STATE,
        source=source,
        target=target,
        derived=True,
        tokens=tokens,
    )
