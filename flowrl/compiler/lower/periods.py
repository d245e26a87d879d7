"""How often ops fire: `every_steps` and `start_step` of edges put on the ops below them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

from msgspec.structs import replace

from flowrl.graph.algorithms import toposort
from flowrl.graph.graph import Edge, EdgeKind, Op
from flowrl.graph.params import DataParams


def with_periods(ops: Sequence[Op], declared: Sequence[Edge]) -> tuple[Op, ...]:
    """An op fires in the steps in which everything upstream of it does; a data set in those in which something reads
    it. In a cyclic graph ops are left as they are: a pass refuses it."""
    known = {op.id: op for op in ops}
    follows = (EdgeKind.DATA, EdgeKind.INTERACTION)  # an environment steps when its generator does
    edges = [e for e in declared if e.kind in follows and e.source in known and e.target in known]
    try:
        order = toposort(known, ((edge.source, edge.target) for edge in edges))
    except ValueError:
        return tuple(ops)
    for id in order:
        known[id] = _below(known, id, [edge for edge in edges if edge.target == id])
    for id in order:
        if isinstance(known[id].params, DataParams):
            known[id] = _read(known, id, [edge for edge in edges if edge.source == id])
    return tuple(known[op.id] for op in ops)


def _below(known: dict[str, Op], id: str, incoming: Sequence[Edge]) -> Op:
    every = [part for e in incoming for part in (e.every_steps or 1, known[e.source].every_steps)]
    start = [part for e in incoming for part in (e.start_step or 0, known[e.source].start_step)]
    return replace(known[id], every_steps=lcm(*every), start_step=max(start, default=0))


def _read(known: dict[str, Op], id: str, outgoing: Sequence[Edge]) -> Op:
    if not outgoing:
        return known[id]
    readers = [known[edge.target] for edge in outgoing]
    every, start = gcd(*(r.every_steps for r in readers)), min(r.start_step for r in readers)
    return replace(known[id], every_steps=every, start_step=start)
