"""The checker: what it refuses, what it says, and its proof of liveness against brute force."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from msgspec.structs import replace

from flowrl.diag.diagnostic import InternalError
from flowrl.program.check import check
from flowrl.program.program import Channel, ChannelKind, Instruction, InstructionKind, Program, Stream
from tests.program.programs import BruteForce, make_program, programs


@settings(deadline=None, max_examples=250)
@given(program=programs())
def test_deadlock_is_found_exactly_where_brute_force_gets_stuck(program: Program) -> None:
    said = _refusal(program)
    assert said is None or "deadlock" in said or "start together" in said or "slots of pool" in said
    accepted = said is None
    event("live" if accepted else "deadlock")
    assert accepted is not BruteForce(program, steps=2).gets_stuck()


def _refusal(program: Program) -> str | None:
    try:
        check(program)
    except InternalError as refused:
        return str(refused)
    return None


def test_circle_of_a_deadlock_is_named() -> None:
    program = make_program([["a", "b"], ["x", "y"]], [("b", "x", 1, 0), ("y", "a", 1, 0)])
    with pytest.raises(InternalError, match="deadlock") as refused:
        check(program)
    assert str(refused.value).splitlines()[1].strip() == (
        "deadlock: `a` waits for a token on `c1` from `y`, which stands behind `x`; "
        "`x` waits for a token on `c0` from `b`, which stands behind `a`"
    )


def test_buffer_too_small_for_a_step_is_a_deadlock() -> None:
    """a's token to c lies there until c runs, which is after b; b waits for a second token of a that has no room."""
    links = [("a1", "c", 1, 0), ("a2", "b", 1, 0), ("c", "a2", 1, 0)]
    with pytest.raises(InternalError, match="deadlock"):
        check(make_program([["a1", "a2"], ["b", "c"]], links))


def test_one_token_on_the_way_back_makes_it_live() -> None:
    check(make_program([["generate"], ["update"]], [("generate", "update", 2, 0), ("update", "generate", 2, 1)]))


def test_members_of_an_interaction_that_wait_for_each_other_are_a_deadlock() -> None:
    """The environment's reset stands behind what only its turns can bring."""
    program = make_program(
        [["generate"], ["reset", "step"]], [("generate", "reset", 1, 0)], together=[("generate", "step")]
    )
    with pytest.raises(InternalError, match="deadlock") as refused:
        check(program)
    assert str(refused.value).splitlines()[1].strip() == (
        "deadlock: `generate` waits for its interaction with `step`, which stands behind `reset`; "
        "`reset` waits for a token on `c0` from `generate`"
    )


def test_members_of_an_interaction_start_together() -> None:
    check(
        make_program([["reset", "step"], ["generate"]], [("reset", "generate", 1, 0)], together=[("generate", "step")])
    )


def test_members_of_an_interaction_stand_in_lanes_of_their_own() -> None:
    with pytest.raises(InternalError, match="start together and stand in one lane"):
        check(make_program([["alice", "bob"]], [], together=[("alice", "bob")]))


def test_members_of_an_interaction_work_in_the_same_steps() -> None:
    program = make_program([["generate"], ["step"]], [], together=[("generate", "step")])
    with pytest.raises(InternalError, match="start together and work in different steps"):
        check(_with_first(program, every_steps=2))


def _two() -> Program:
    return make_program([["a"], ["b"]], [("a", "b", 1, 0)])


def _with_first(program: Program, **changes: object) -> Program:
    first = program.streams[0]
    changed = replace(first.instructions[0], **changes)  # type: ignore[arg-type]
    return replace(program, streams=(replace(first, instructions=(changed,)), *program.streams[1:]))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (_with_first(_two(), id="b", sends=()), "instruction `b` is there 2 times"),
        (_with_first(_two(), sends=()), "channel `c0`: `a` does not send on it once"),
        (_with_first(_two(), sends=("c0", "c0")), "channel `c0`: `a` does not send on it once"),
        (_with_first(_two(), sends=("c0", "c9")), "`a` sends on `c9`, which does not start there"),
        (_with_first(_two(), receives=("c0",)), "`a` receives from `c0`, which does not end there"),
        (_with_first(_two(), pool="elsewhere"), "`a` is not of pool p0"),
        (_with_first(_two(), kind=InstructionKind.SEND_WEIGHTS), "`a` has no weights channel"),
        (replace(_two(), streams=_two().streams[:1]), "channel `c0`: `b` does not receive from it once"),
        (make_program([["a"], ["b"]], [("a", "b", 1, 2)]), "channel `c0`: 2 tokens in room for 1"),
        (make_program([["a"], ["b"]], [("a", "b", 0, 0)]), "channel `c0`: no room"),
    ],
)
def test_what_is_malformed_is_refused(program: Program, said: str) -> None:
    with pytest.raises(InternalError) as refused:
        check(program)
    assert said in str(refused.value)


def test_working_reader_of_an_idle_source_is_refused() -> None:
    program = _with_first(_two(), every_steps=20)
    data = replace(program, channels=(replace(program.channels[0], kind=ChannelKind.DATA),))
    check(program)
    with pytest.raises(InternalError, match="`b` works in steps in which its source `a` is idle"):
        check(data)


def _resident(*kinds: str) -> Program:
    ids = [f"{kind} {place}" for place, kind in enumerate(kinds)]
    instructions = tuple(
        Instruction(id=id, kind=InstructionKind(kind), pool="p", role="r") for id, kind in zip(ids, kinds, strict=True)
    )
    return Program(streams=(Stream(pool="p", instructions=instructions),), channels=())


def test_residency() -> None:
    check(_resident("load", "run", "offload", "load", "run", "save", "offload"))
    for kinds, said in (
        (("run", "load", "run", "offload"), "not loaded"),
        (("load", "run"), "no offload"),
        (("load", "load", "offload"), "is loaded"),
        (("load", "run", "offload", "run"), "not loaded"),
        (("wake_weights", "run", "wake_cache", "offload"), "whose cache is not awake"),
        (("wake_weights", "wake_cache", "run"), "no offload"),
        (("wake_cache", "run", "offload"), "not loaded"),
        (("load", "wake_cache", "run", "offload"), "wakes a cache that is there"),
        (("load", "wake_weights", "run", "offload"), "is loaded"),
    ):
        with pytest.raises(InternalError, match=said):
            check(_resident(*kinds))


def test_an_engine_receives_between_the_two_parts_of_its_wake_up() -> None:
    sent = Instruction(id="send", kind=InstructionKind.SEND_WEIGHTS, pool="t", role="t", edge="e", sends=("e",))
    channel = Channel(
        id="e", kind=ChannelKind.WEIGHTS, source="send", target="receive_weights 1", initial_tokens=1, edge="e"
    )

    def with_weights(*kinds: str) -> Program:
        (own,) = _resident(*kinds).streams
        place = kinds.index("receive_weights")
        received = replace(own.instructions[place], id="receive_weights 1", edge="e", receives=("e",))
        instructions = (*own.instructions[:place], received, *own.instructions[place + 1 :])
        streams = (Stream(pool="t", instructions=(sent,)), replace(own, instructions=instructions))
        return Program(streams=streams, channels=(channel,))

    check(with_weights("wake_weights", "receive_weights", "wake_cache", "run", "offload"))
    check(with_weights("load", "receive_weights", "run", "offload"))
    with pytest.raises(InternalError, match="receives weights beside a cache that is awake already"):
        check(with_weights("wake_weights", "wake_cache", "receive_weights", "run", "offload"))
