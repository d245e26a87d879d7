"""Costs of roles as numbers are those of the ledger.

Flows, clusters and plans are drawn; the ledger of each plan (memory, duration_lines) is the reference.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from flowrl.compiler.emit.program import emit
from flowrl.execution.steady import steady
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
    """Of ops, moves and hand-overs, each instruction of the program by its ledger lines; and of the whole step, as the
    virtual clock has it."""
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
    simulated = steady(program, {id: total(each) for id, each in lines.items()}).step_seconds
    step = step_seconds(here.graph, pools, here.shapes, here.cluster, here.request)
    assert step == pytest.approx(simulated, rel=1e-9)


def instructions(program: Program) -> list[Instruction]:
    return [each for stream in program.streams for each in stream.instructions]
