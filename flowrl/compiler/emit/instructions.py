"""The instructions of a step, before they are ordered and wired: ops, weights sent and received, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import networkx as nx

from flowrl.diag.diagnostic import InternalError
from flowrl.graph.graph import Edge, EdgeKind, Graph, Kind, Op
from flowrl.graph.params import UpdateParams
from flowrl.graph.rates import versions_per_step
from flowrl.graph.rows import rows_of
from flowrl.graph.state import changes_state
from flowrl.plan.plan import Pool, StageRun
from flowrl.program.phases import Phase, phase_of
from flowrl.program.program import Instruction, InstructionKind, Rows

HOST = "host"


@dataclass(frozen=True, slots=True)
class Draft:
    """An instruction without channels, and what its place in the order depends on."""

    instruction: Instruction
    phase: Phase


def drafts(graph: Graph, pools: Sequence[Pool], run: StageRun) -> tuple[Draft, ...]:
    """Every instruction but load and offload, in the order of the graph's ops."""
    pool_of = _pool_of(graph, pools)
    onlookers = _onlookers(graph)
    found: list[Draft] = []
    for op in graph.ops:
        found.extend(_runs(graph, op, pool_of[op.role], op.id in onlookers))
    for edge in graph.edges:
        if edge.kind is EdgeKind.WEIGHTS:
            found.extend(_transfer(graph, edge, pool_of))
    changed = {op.role for op in graph.ops if changes_state(op)}
    for role in graph.roles:
        if role.name in changed:
            found.append(_save(role.name, pool_of[role.name], run))
    return tuple(found)


def role_of_end(end: str) -> str:
    """The role at an end of a weights edge, which names the role or one of its ops."""
    return end.split(".", 1)[0]


def by_op(ordered: Iterable[Draft]) -> Mapping[str, Sequence[Instruction]]:
    """The instructions of each op that has any, by firing."""
    found: dict[str, list[Instruction]] = {}
    for draft in ordered:
        if draft.instruction.op is not None:
            found.setdefault(draft.instruction.op, []).append(draft.instruction)
    return found


def _pool_of(graph: Graph, pools: Sequence[Pool]) -> dict[str, Pool]:
    """The pool of each role. Data sets need no entry in a pool: they are read on the host."""
    found = {placed.role: pool for pool in pools for placed in pool.roles}
    host = next((pool for pool in pools if pool.name == HOST), None)
    named = {op.role for op in graph.ops}
    for role in graph.roles:
        if role.name not in found and role.kind is Kind.DATA and host is not None:
            found[role.name] = host
        if role.name not in found and role.name in named:
            raise InternalError(f"no pool holds role `{role.name}`")
    return found


def _onlookers(graph: Graph) -> set[str]:
    """Ops that only look on while others train: no update shares data with them, directly or through others. They work
    in the epilogue too, which has weights to look at and no rows to train on."""
    updates = {op.id for op in graph.ops if op.method == "update"}
    data: nx.Graph[str] = nx.Graph()
    data.add_nodes_from(op.id for op in graph.ops)
    tying = (EdgeKind.DATA, EdgeKind.INTERACTION)
    data.add_edges_from((edge.source, edge.target) for edge in graph.edges if edge.kind in tying)
    parts = nx.connected_components(data) if updates else ()
    return {id for part in parts if not part & updates for id in part}


def _runs(graph: Graph, op: Op, pool: Pool, looks_on: bool) -> list[Draft]:
    firings = op.firings if op.method == "update" else 1
    phase = phase_of(graph.role(op.role).kind, op.method)
    if looks_on and not pool.devices and phase is not Phase.DATA:
        phase = Phase.EVALUATE
    return [
        Draft(
            Instruction(
                id=f"run {op.id}" if firings == 1 else f"run {op.id} {firing + 1}/{firings}",
                kind=InstructionKind.RUN,
                pool=pool.name,
                role=op.role,
                op=op.id,
                firing=firing,
                firings=firings,
                rows=_rows(graph, op, firing, firings),
                every_steps=op.every_steps,
                start_step=op.start_step,
                epilogue=looks_on,
            ),
            phase,
        )
        for firing in range(firings)
    ]


def _rows(graph: Graph, op: Op, firing: int, firings: int) -> Rows:
    """Prompts [i·P/N, (i+1)·P/N) for minibatch i of N, of the P prompts that filters leave (the most, where that is
    random); each epoch goes through the N again."""
    epochs = op.params.epochs if isinstance(op.params, UpdateParams) else graph.step.epochs
    if firings == 1:
        return Rows()
    if firings % epochs:
        raise InternalError(f"`{op.id}` fires {firings} times in {epochs} epochs")
    minibatches = firings // epochs
    prompts, _ = rows_of(graph).nominal(op)
    if prompts % minibatches:
        raise InternalError(f"`{op.id}`: {prompts} prompts do not divide into {minibatches} minibatches")
    size = prompts // minibatches
    start = firing % minibatches * size
    return Rows(start=start, stop=start + size)


def _transfer(graph: Graph, edge: Edge, pool_of: dict[str, Pool]) -> list[Draft]:
    """The sends and the receive of a weights edge. A receiver that works seldom (validation only) receives as seldom;
    of several versions that a step brings it keeps the newest."""
    source, target = role_of_end(edge.source), role_of_end(edge.target)
    readers = [op for op in graph.ops if op.role == target]
    if not readers:
        raise InternalError(f"`{edge.id}`: role `{target}` has no op")
    count = versions_per_step(graph, edge)
    sends = [
        Instruction(
            id=f"send_weights {source} => {target}" + ("" if count == 1 else f" {firing + 1}/{count}"),
            kind=InstructionKind.SEND_WEIGHTS,
            pool=pool_of[source].name,
            role=source,
            edge=edge.id,
            firing=firing,
            firings=count,
            every_steps=edge.every_steps or 1,
            start_step=edge.start_step or 0,
        )
        for firing in range(count)
    ]
    receive = Instruction(
        id=f"receive_weights {source} => {target}",
        kind=InstructionKind.RECEIVE_WEIGHTS,
        pool=pool_of[target].name,
        role=target,
        edge=edge.id,
        every_steps=gcd(*(op.every_steps for op in readers)),
        epilogue=True,
    )
    return [
        *(Draft(send, Phase.TRAIN) for send in sends),
        Draft(receive, phase_of(graph.role(target).kind, readers[0].method)),
    ]


def _save(role: str, pool: Pool, run: StageRun) -> Draft:
    every = run.checkpoint_every_steps or max(run.steps, 1)
    instruction = Instruction(
        id=f"save {role}", kind=InstructionKind.SAVE, pool=pool.name, role=role, every_steps=every
    )
    return Draft(instruction, Phase.TRAIN)
