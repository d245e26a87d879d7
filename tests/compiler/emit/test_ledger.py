"""The ledger at every instant: it has the bytes of all that is on the devices; broken programs are caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.compiler.emit.ledger import Held, check_ledger
from flowrl.compiler.emit.program import emit
from flowrl.diag.diagnostic import InternalError
from flowrl.placement.cost.ledger import evaluate
from flowrl.placement.memory.pool import memory
from flowrl.placement.time.instructions import duration_lines, seconds_of
from flowrl.plan.plan import Memory, Pool, StageRun
from flowrl.program.check import check
from flowrl.program.program import MOVES, Instruction, InstructionKind, Program
from tests.placement.flows import PPO, with_placement
from tests.placement.plans import Case, kept_costs, plans
from tests.placement.told import told_text

Plan = tuple[Case, tuple[Pool, ...]]
RUN = StageRun(steps=40, checkpoint_every_steps=7)


def ledger(here: Case, pools: tuple[Pool, ...]) -> tuple[Memory, ...]:
    return memory(here.graph, pools, here.shapes, here.cluster, request=here.request)


@settings(max_examples=80, deadline=None)
@given(plans())
def test_phases_have_the_bytes_of_all_that_is_on_the_devices(plan: Plan) -> None:
    """By numbers of the search (RoleCost), which know neither instructions nor names of phases."""
    here, pools = plan
    needed = ledger(here, pools)
    program = emit(here.graph, pools, RUN, needed, fits=False)
    costs = kept_costs(*here.key)
    roles = {
        cost.name: cost
        for pool in pools
        if pool.devices
        for cost in costs.pool_costs(pool.roles, costs.site(pool, pools))
    }
    pool_of = {entry.role: pool.name for pool in pools for entry in pool.roles}
    instants = check_ledger(program, here.graph, pools, needed, fits=False)
    on_devices = {i.id for s in program.streams for i in s.instructions if i.role in roles}
    assert {instant.instruction for instant in instants} == on_devices
    for instant in instants:
        for role, level in instant.held.items():
            event(level.name)
            least = {Held.AWAY: 0, Held.WEIGHTS: roles[role].woken, Held.WHOLE: min(roles[role].held)}[level]
            there = [m for m in needed if m.pool == pool_of[role] and m.phase == instant.phase]
            assert there
            for each in there:
                assert sum(int(line.value) for line in each.lines if line.role == role) >= least, (instant, role)


def places(program: Program, *kinds: InstructionKind) -> list[tuple[int, int]]:
    return [
        (row, place)
        for row, stream in enumerate(program.streams)
        for place, each in enumerate(stream.instructions)
        if each.kind in kinds
    ]


def rewritten(program: Program, row: int, change: Callable[[Sequence[Instruction]], Sequence[Instruction]]) -> Program:
    streams = list(program.streams)
    streams[row] = replace(streams[row], instructions=tuple(change(streams[row].instructions)))
    return replace(program, streams=tuple(streams))


def swapped(program: Program, row: int, place: int) -> Program:
    """With the instruction and the next one exchanged."""
    return rewritten(program, row, lambda own: [*own[:place], own[place + 1], own[place], *own[place + 2 :]])


def refused(program: Program, here: Case, pools: tuple[Pool, ...], needed: tuple[Memory, ...]) -> tuple[bool, bool]:
    """By the checker of the program alone, and by that of the ledger."""
    found: list[bool] = []
    for look in (lambda: check(program), lambda: check_ledger(program, here.graph, pools, needed, fits=False)):
        try:
            look()
            found.append(False)
        except InternalError:
            found.append(True)
    return found[0], found[1]


@settings(max_examples=60, deadline=None)
@given(plans(), st.data())
def test_broken_programs_are_caught(plan: Plan, draw: st.DataObject) -> None:
    here, pools = plan
    needed = ledger(here, pools)
    program = emit(here.graph, pools, RUN, needed, fits=False)
    moves = places(program, *MOVES)
    assume(moves)
    row, place = draw.draw(st.sampled_from(moves))
    own = program.streams[row].instructions
    moved = own[place]
    if draw.draw(st.booleans()):
        event(f"dropped {moved.kind}")
        dropped = rewritten(program, row, lambda all: [*all[:place], *all[place + 1 :]])
        assert refused(dropped, here, pools, needed)[0]
        if moved.kind is InstructionKind.OFFLOAD:
            assert refused(dropped, here, pools, needed)[1]
        return
    assume(place + 1 < len(own))
    event(f"{moved.kind} after {own[place + 1].kind}")
    late = swapped(program, row, place)
    by_order, by_bytes = refused(late, here, pools, needed)
    # One role leaves after the next has come: in bytes wrong, though each role's own order is right.
    assert by_bytes if moved.kind is InstructionKind.OFFLOAD and own[place + 1].kind in MOVES else by_order or by_bytes


COLOCATED = with_placement(PPO, "colocated")


def colocated() -> tuple[Case, tuple[Pool, ...], tuple[Memory, ...], Program]:
    told = told_text(COLOCATED)
    here = Case((COLOCATED, ""), told.graph, told.cluster, told.request, told.shapes)
    pools, needed = told.placement.pools, told.placement.memory
    return here, pools, needed, emit(told.graph, pools, RUN, needed)


def test_an_engine_wakes_in_two_parts_around_its_new_weights() -> None:
    *_, program = colocated()
    own = [i.id for s in program.streams for i in s.instructions if i.role == "actor_infer"]
    assert own == [
        "wake_weights actor_infer",
        "receive_weights actor_train => actor_infer",
        "wake_cache actor_infer",
        "run actor_infer.generate",
        "offload actor_infer",
    ]


def test_a_cache_that_wakes_before_the_weights_are_in_is_caught_by_both() -> None:
    here, pools, needed, program = colocated()
    (row, place), *_ = places(program, InstructionKind.RECEIVE_WEIGHTS)
    early = swapped(program, row, place)
    assert refused(early, here, pools, needed) == (True, True)
    with pytest.raises(InternalError, match=r"no phase of the ledger counts `receive_weights actor_train => actor_infer"
                       r"` with actor_infer \(whole\)"):  # fmt: skip
        check_ledger(early, here.graph, pools, needed)


def test_a_phase_over_its_limit_is_caught_where_the_plan_fits() -> None:
    here, pools, needed, program = colocated()
    short = tuple(replace(m, limit_bytes=m.peak_bytes - 1) if m.phase == "actor_infer.generate" else m for m in needed)
    check_ledger(program, here.graph, pools, short, fits=False)
    with pytest.raises(InternalError, match=r"`run actor_infer\.generate` works in phase `actor_infer\.generate`"):
        check_ledger(program, here.graph, pools, short)


def test_a_phase_that_the_ledger_lacks_is_caught() -> None:
    here, pools, needed, program = colocated()
    with pytest.raises(InternalError, match=r"no phase of the ledger counts `run critic\.update 1/4`"):
        check_ledger(program, here.graph, pools, [m for m in needed if m.phase != "critic.update"])


def test_waking_in_two_parts_takes_as_long_as_waking_at_once() -> None:
    here, pools, _, program = colocated()
    profile = here.request.profile
    request = replace(here.request, profile=replace(profile, fixed=replace(profile.fixed, wake_seconds=3.0)))
    lines = duration_lines(here.graph, pools, program, here.shapes, here.cluster, request=request)
    seconds = seconds_of(lines)
    apart = seconds["wake_weights actor_infer"], seconds["wake_cache actor_infer"]
    assert apart[1] == 1.5
    assert sum(apart) == pytest.approx(seconds["offload actor_infer"], rel=1e-12)
    (entry,) = lines["wake_cache actor_infer"]
    assert evaluate(entry.formula, entry.inputs) == entry.value
    assert set(entry.inputs) == set(entry.origins) == {"y"}
