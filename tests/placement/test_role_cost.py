"""Costs of roles as numbers are those of the ledger.

Flows, clusters and plans are drawn; the ledger of each plan (memory, duration_lines) is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx
import pytest
from hypothesis import given, settings

from flowrl.compiler.emit.program import emit
from flowrl.graph.graph import EdgeKind
from flowrl.graph.interactions import interactions
from flowrl.placement.cost.placed import HOST
from flowrl.placement.memory.pool import memory
from flowrl.placement.time.instructions import duration_lines
from flowrl.placement.time.step import placed_costs, step_seconds
from flowrl.plan.plan import LedgerLine, Pool, StageRun
from flowrl.program.program import Instruction, InstructionKind, Program
from tests.placement.plans import Case, kept_costs, plans


def ledger_seconds(here: Case, pools: tuple[Pool, ...]) -> tuple[Program, dict[str, tuple[LedgerLine, ...]]]:
    program = emit(here.graph, pools, StageRun(steps=1))
    return program, duration_lines(here.graph, pools, program, here.shapes, here.cluster, request=here.request)


def total(lines: tuple[LedgerLine, ...]) -> float:
    return sum(each.value for each in lines)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_bytes_are_those_of_the_ledger(plan: tuple[Case, tuple[Pool, ...]]) -> None:
    """Every phase of every pool, device by device."""
    here, pools = plan
    costs, found = kept_costs(*here.key), list[tuple[str, str, str, int, int]]()
    for pool in pools[: -1 if pools[-1].name == HOST else None]:
        site = costs.site(pool, pools)
        roles = costs.pool_costs(pool.roles, site)
        needs = costs.pool_needs(roles, site)
        assert costs.fits(roles, site) == all(each.peak_bytes <= each.limit_bytes for each in needs)
        found += [(each.pool, each.device, each.phase, each.peak_bytes, each.limit_bytes) for each in needs]
    ledger = memory(here.graph, pools, here.shapes, here.cluster, request=here.request)
    told = [(m.pool, m.device, m.phase, m.peak_bytes, m.limit_bytes) for m in ledger if m.pool != HOST]
    assert found == told
    assert all(m.peak_bytes == sum(int(line.value) for line in m.lines) for m in ledger)


@settings(max_examples=30, deadline=None)
@given(plans())
def test_seconds_are_those_of_the_ledger(plan: tuple[Case, tuple[Pool, ...]]) -> None:
    """Of ops, moves and hand-overs, each instruction of the program by its ledger lines; and of the whole step."""
    here, pools = plan
    costs = kept_costs(*here.key)
    homes = placed_costs(costs, pools)
    program, lines = ledger_seconds(here, pools)
    talks = {id for group in interactions(here.graph) for id in group}
    edges = {edge.id: edge for edge in here.graph.edges}
    for instruction in (each for stream in program.streams for each in stream.instructions):
        home, seconds = homes.get(instruction.role), total(lines[instruction.id])
        match instruction.kind:
            case InstructionKind.RUN if instruction.op not in talks:
                op = here.graph.op(instruction.op or "")
                mine = costs.host_seconds(op) if home is None else home.cost.seconds[op.id]
            case InstructionKind.LOAD | InstructionKind.OFFLOAD if home is not None:
                mine = home.cost.move_seconds
            case InstructionKind.SEND_WEIGHTS | InstructionKind.RECEIVE_WEIGHTS:
                edge = edges[instruction.edge or ""]
                ends = [homes[end.split(".")[0]] for end in (edge.source, edge.target)]
                pair = costs.hand_over(edge, *((end.cost, end.site) for end in ends))
                mine = pair[instruction.kind is InstructionKind.RECEIVE_WEIGHTS]
            case _:
                continue
        assert mine == pytest.approx(seconds, rel=1e-9), instruction.id
    assert step_of_ledger(here, pools, program, lines) == pytest.approx(
        step_seconds(here.graph, pools, here.shapes, here.cluster, here.request), rel=1e-9
    )


def step_of_ledger(
    here: Case, pools: tuple[Pool, ...], program: Program, lines: Mapping[str, tuple[LedgerLine, ...]]
) -> float:
    """The estimate of a step, from the seconds of instructions alone: each pool does one op after another in data
    order, those of an interaction together; the chain over 1 + lag, or the busiest pool."""
    ops, sync = dict[str, float](), 0.0
    home = {entry.role: pool for pool in pools if pool.devices for entry in pool.roles}
    moves = {entry.role for pool in pools for entry in pool.roles if entry.offloaded}
    moved = {each.role: total(lines[each.id]) for each in instructions(program) if each.kind is InstructionKind.LOAD}
    for each in instructions(program):
        if each.kind is InstructionKind.RUN and each.op is not None:
            ops[each.op] = max(ops.get(each.op, 0.0), total(lines[each.id]))
        elif each.kind in (InstructionKind.SEND_WEIGHTS, InstructionKind.RECEIVE_WEIGHTS):
            sync += total(lines[each.id])
    seconds = {
        op.id: (ops[op.id] * op.firings + (2 * moved[op.role] if op.role in moves else 0.0)) / max(1, op.every_steps)
        for op in here.graph.ops
    }
    group_of = {id: group for group in interactions(here.graph) for id in group}
    order: nx.DiGraph[tuple[str, ...]] = nx.DiGraph()
    order.add_nodes_from(group_of.get(op.id, (op.id,)) for op in here.graph.ops)
    reads: dict[str, list[str]] = {}
    for edge in here.graph.edges:
        one, other = (group_of.get(end, (end,)) for end in (edge.source, edge.target))
        if edge.kind in (EdgeKind.DATA, EdgeKind.STATE) and edge.tokens == 0:
            order.add_edge(one, other)
        if edge.kind is EdgeKind.DATA:
            reads.setdefault(edge.target, []).append(edge.source)
    ends, busy, load = dict[str, float](), dict[str, float](), dict[str, float]()
    for group in nx.topological_sort(order):
        places = [home[here.graph.op(id).role].name for id in group if here.graph.op(id).role in home]
        before = [ends[source] for id in group for source in reads.get(id, []) if source not in group]
        end = max([0.0, *before, *(busy.get(place, 0.0) for place in places)]) + max(seconds[id] for id in group)
        ends |= dict.fromkeys(group, end)
        busy |= dict.fromkeys(places, end)
    for op in here.graph.ops:
        if op.role in home:
            name = home[op.role].name
            load[name] = load.get(name, 0.0) + seconds[op.id]
    lag = min(
        (e.tokens - 1 for e in here.graph.edges if e.kind is EdgeKind.WEIGHTS and e.every_updates is None), default=0
    )
    return max((max(ends.values()) + sync) / (1 + lag), *load.values())


def instructions(program: Program) -> list[Instruction]:
    return [each for stream in program.streams for each in stream.instructions]
