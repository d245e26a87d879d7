"""The executor: against brute force step by step, and its contract of idle firings, epilogue, slots and resuming."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.contract import Firing
from flowrl.execution.executor import Executor
from flowrl.program.program import Instruction, InstructionKind, Program, Stream
from tests.program.programs import BruteForce, make_program, programs


@settings(deadline=None, max_examples=200)
@given(program=programs(), data=st.data())
def test_executor_allows_what_brute_force_allows_in_every_state(program: Program, data: st.DataObject) -> None:
    """A random walk; a deadlocking program is walked too, until it is stuck in both."""
    steps = 3
    oracle = BruteForce(program, steps)
    state = oracle.begin
    executor = Executor(program, steps)
    while True:
        ready = executor.ready()
        allowed = oracle.may_start(state)
        assert {f.instruction.id for f in ready} <= set(allowed)
        assert bool(ready) == bool(allowed)
        assert executor.ready() == ready
        running = executor.running()
        choices = [(firing, True) for firing in ready] + [(firing, False) for firing in running]
        if not choices:
            break
        firing, begins = data.draw(st.sampled_from(choices))
        id = firing.instruction.id
        if begins:
            executor.start(firing)
            state = oracle.start(state, id)
        else:
            executor.complete(firing)
            state = oracle.complete(state, id)
        for channel in program.channels:
            assert 0 <= executor.tokens(channel.id) <= channel.capacity
    assert executor.done is all(count == steps for count in state.completed)
    assert executor.done is not bool(executor.waiting())
    assert executor.completed_step == min(state.completed)


@settings(deadline=None)
@given(program=programs())
def test_starting_all_that_is_ready_is_allowed(program: Program) -> None:
    executor = Executor(program, 2)
    while ready := executor.ready():
        for firing in ready:
            executor.start(firing)
        for stream in program.streams:
            flying = [f for f in executor.running() if f.instruction.pool == stream.pool]
            assert len(flying) <= stream.slots
        for firing in executor.running():
            executor.complete(firing)


def _run(executor: Executor) -> list[Firing]:
    """Run one at a time."""
    found: list[Firing] = []
    while not executor.done:
        firing = executor.ready()[0]
        executor.start(firing)
        executor.complete(firing)
        found.append(firing)
    return found


def _stream(*instructions: Instruction, slots: int = 1) -> Program:
    return Program(streams=(Stream(pool="p", instructions=instructions, slots=slots),), channels=())


def _instruction(id: str, kind: InstructionKind = InstructionKind.RUN, **facts: int) -> Instruction:
    return replace(Instruction(id=id, kind=kind, pool="p", role=id), **facts)  # type: ignore[arg-type]


def test_every_steps_start_step_and_epilogue() -> None:
    program = _stream(
        _instruction("train"),
        _instruction("val", every_steps=3, epilogue=True),
        _instruction("late", start_step=4),
        _instruction("save", InstructionKind.SAVE, every_steps=3),
    )
    fired = _run(Executor(program, steps=7))
    working = {
        id: [f.step for f in fired if f.instruction.id == id and not f.idle] for id in ("train", "val", "late", "save")
    }
    assert working == {
        "train": [1, 2, 3, 4, 5, 6, 7],
        "val": [1, 4, 7, 8],
        "late": [5, 6, 7],
        "save": [3, 6, 7],
    }
    assert [f.step for f in fired] == [step for step in range(1, 9) for _ in range(4)]


def test_without_epilogue_instructions_there_is_no_epilogue() -> None:
    executor = Executor(_stream(_instruction("train")), steps=2)
    assert [f.step for f in _run(executor)] == [1, 2]
    assert executor.last_step == executor.completed_step == 2


def test_resumed_run_repeats_the_rest_of_an_uninterrupted_one() -> None:
    links = [("g", "u", 2, 0), ("u", "g", 3, 2)]
    program = make_program([["g"], ["u"]], links)
    whole = [(f.instruction.id, f.step) for f in _run(Executor(program, 5))]
    executor = Executor(program, 5, first_step=4)
    assert executor.completed_step == 3
    rest = [(f.instruction.id, f.step) for f in _run(executor)]
    assert sorted(rest) == sorted(pair for pair in whole if pair[1] >= 4)


def test_lag_is_tokens_minus_one() -> None:
    """Generation may start step s + lag, and not more, while step s has not been trained on."""
    for tokens in (1, 2, 4):
        program = make_program([["g"], ["u"]], [("g", "u", tokens + 1, 0), ("u", "g", tokens + 1, tokens)])
        executor = Executor(program, 20)
        while ready := [f for f in executor.ready() if f.instruction.id == "g"]:
            executor.start(ready[0])
            executor.complete(ready[0])
        assert executor.tokens("c0") == tokens


def test_roles_of_a_pool_with_slots_overtake_each_other_but_not_themselves() -> None:
    """The next step's rows are read while this step's reward still waits for its responses."""
    links = [("data:train", "generate", 2, 0), ("generate", "reward:score", 1, 0)]
    program = make_program([["data:train", "reward:score"], ["generate"]], links, slots=[2, 1])
    executor = Executor(program, 9)
    seen: list[tuple[str, int]] = []
    while ready := [f for f in executor.ready() if f.instruction.id == "data:train"]:
        executor.start(ready[0])
        assert executor.ready() == () or "data:train" not in {f.instruction.id for f in executor.ready()}
        executor.complete(ready[0])
        seen.append((ready[0].instruction.id, ready[0].step))
    assert seen == [("data:train", 1), ("data:train", 2)]


def test_slots_bound_what_is_in_flight() -> None:
    program = _stream(_instruction("a"), _instruction("b"), _instruction("c"), slots=2)
    executor = Executor(program, 1)
    first, second = executor.ready()
    third = Firing(instruction=program.streams[0].instructions[2], step=1)
    executor.start(first)
    executor.start(second)
    assert executor.ready() == ()
    with pytest.raises(InternalError, match="may not start now"):
        executor.start(third)
    executor.complete(first)
    assert executor.ready() == (third,)


def test_members_of_an_interaction_are_ready_together_or_not_at_all() -> None:
    """Once one has started the other may, whatever the first has come to since."""
    streams, links = [["env:reset", "env:step"], ["generate"]], [("env:reset", "generate", 1, 0)]
    executor = Executor(make_program(streams, links, [2, 1], together=[("generate", "env:step")]), 1)
    (reset,) = executor.ready()
    executor.start(reset)
    executor.complete(reset)
    step, generate = executor.ready()
    assert [step.instruction.id, generate.instruction.id] == ["env:step", "generate"]
    executor.start(generate)
    assert executor.ready() == (step,)
    executor.complete(generate)
    assert executor.ready() == (step,)
    executor.start(step)
    executor.complete(step)
    assert executor.done


def test_an_interaction_waits_for_a_slot_of_each_member() -> None:
    """Two environments of one interaction need two slots of the host while something else has one."""
    program = make_program([["a", "b", "c"], ["talk"]], [], [2, 1], together=[("talk", "a"), ("talk", "b")])
    executor = Executor(program, 1)
    assert [firing.instruction.id for firing in executor.ready()] == ["a", "b", "talk"]
    busy = Firing(instruction=program.streams[0].instructions[2], step=1)
    executor.start(busy)
    assert executor.ready() == ()
    executor.complete(busy)
    assert len(executor.ready()) == 3


def test_misuse_is_refused() -> None:
    program = make_program([["a", "b"]], [])
    executor = Executor(program, 1)
    (first,) = executor.ready()
    with pytest.raises(InternalError, match="was not running"):
        executor.complete(first)
    executor.start(first)
    with pytest.raises(InternalError, match="may not start now"):
        executor.start(first)
    with pytest.raises(InternalError, match="first step 3"):
        Executor(program, 1, first_step=3)


def test_stall_names_who_waits_for_whom() -> None:
    program = make_program([["a", "b"], ["x"]], [("a", "x", 1, 1), ("x", "a", 1, 0)])
    executor = Executor(program, 1)
    (x,) = executor.ready()
    executor.start(x)
    assert executor.waiting() == ("pool p0, step 1: `a` waits for `x`",)
    program = make_program([["a"], ["x"]], [("a", "x", 1, 0), ("a", "x", 1, 1)])
    executor = Executor(program, 1)
    assert executor.waiting() == (
        "pool p0, step 1: `a` waits for room that `x` makes",
        "pool p1, step 1: `x` waits for `a`",
    )
