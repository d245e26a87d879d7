"""Rewards that a later one hides: legal, since the later of two producers on one way counts, and likely not meant where
the later one does not read the earlier. Takes a bound graph, gives warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Label, diagnose
from flowrl.graph.graph import Graph, Input, Kind, Op
from flowrl.graph.records import links_of, records


def hidden_rewards(graph: Graph) -> Iterator[Diagnostic]:
    """FR0620 for an input that names alone bound to one reward, with another above it that no op reads."""
    rewards = [op for op in graph.ops if graph.role(op.role).kind is Kind.REWARD]
    read = {(i.source, i.field) for op in graph.ops for i in op.inputs}
    unread = [op for op in rewards if any((op.id, f.name) not in read for f in op.outputs)]
    if not unread or not links_of(graph):
        return
    above = records(graph.ops, graph.roles, graph.declared).ancestors
    by_id = {op.id: op for op in rewards}
    for op in graph.ops:
        for input in op.inputs:
            producer = by_id.get(input.source or "")
            if producer is None or input.chosen is not None:
                continue
            found = (o for o in unread if o.id in above[producer.id] and _writes(o, input.field))
            hidden = next(found, None)
            if hidden is not None:
                yield _told(op, input, producer, hidden)


def _writes(op: Op, field: str) -> bool:
    return any(each.name == field for each in op.outputs)


def _told(op: Op, input: Input, producer: Op, hidden: Op) -> Diagnostic:
    also = [Label(hidden.span, f"`{hidden.id}`")] if hidden.span is not None else []
    names: dict[str, Any] = {"first": producer.role, "second": hidden.role, "slot": input.slot, "field": input.field}
    return diagnose("FR0620", op.span, also=also, op=op.id, producer=producer.id, hidden=hidden.id, **names)
