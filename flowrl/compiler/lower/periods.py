"""How often ops fire: `every_steps` and `start_step` of edges put on the ops below them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

import networkx as nx
from msgspec.structs import replace

from flowrl.graph.algorithms import toposort
from flowrl.graph.graph import Edge, EdgeKind, Op
from flowrl.graph.params import DataParams, EnvParams


def with_periods(ops: Sequence[Op], declared: Sequence[Edge]) -> tuple[Op, ...]:
    """An op fires in the steps in which everything upstream of it does, the members of an interaction together; a data
    set in those in which something reads it. In a cyclic graph ops are left as they are: a pass refuses it."""
    known = {op.id: op for op in ops}
    party = _parties(ops, declared)
    edges = [e for e in declared if e.kind is EdgeKind.DATA and e.source in known and e.target in known]
    edges += _by_name(ops)
    between = [edge for edge in edges if party[edge.source] != party[edge.target]]
    try:
        order = toposort(set(party.values()), ((party[edge.source], party[edge.target]) for edge in between))
    except ValueError:
        return tuple(ops)
    members: dict[str, list[str]] = {name: [] for name in order}
    for id, name in party.items():
        members[name].append(id)
    incoming: dict[str, list[Edge]] = {name: [] for name in order}
    for edge in between:
        incoming[party[edge.target]].append(edge)
    for name in order:
        for id in members[name]:
            known[id] = _below(known, id, incoming[name])
    for id, op in known.items():
        if isinstance(op.params, DataParams):
            known[id] = _read(known, id, [edge for edge in edges if edge.source == id])
    return tuple(known[op.id] for op in ops)


def _by_name(ops: Sequence[Op]) -> list[Edge]:
    """What `inputs:` names is upstream too, though no edge may say so."""
    made = {
        (op.role if op.label is None else f"{op.role}@{op.label}", out.name): op.id for op in ops for out in op.outputs
    }
    named = ((made.get((input.chosen or "", input.field)), op.id) for op in ops for input in op.inputs)
    return [
        Edge(id=f"{source} -> {target}", kind=EdgeKind.DATA, source=source, target=target)
        for source, target in named
        if source is not None and source != target
    ]


def _parties(ops: Sequence[Op], declared: Sequence[Edge]) -> dict[str, str]:
    """Op → the least id of its interaction (an environment's reset belongs to it), of an op without one its own."""
    tied: nx.Graph[str] = nx.Graph()
    tied.add_nodes_from(op.id for op in ops)
    tied.add_edges_from((e.source, e.target) for e in declared if e.kind is EdgeKind.INTERACTION)
    steps = {(op.role, op.label): op.id for op in ops if isinstance(op.params, EnvParams) and op.method == "step"}
    resets = (op for op in ops if isinstance(op.params, EnvParams) and op.method == "reset")
    tied.add_edges_from((op.id, steps[op.role, op.label]) for op in resets if (op.role, op.label) in steps)
    return {id: min(part) for part in nx.connected_components(tied) for id in part}


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
