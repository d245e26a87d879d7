"""The virtual clock: hand-made schedules, and agreement with the executor's rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flowrl.diag.diagnostic import InternalError
from flowrl.execution.simulate import simulate
from flowrl.program.check import check
from flowrl.program.program import ChannelKind, Program
from tests.program.programs import make_program, programs

Times = list[tuple[str, int, float, float]]


def _times(program: Program, durations: dict[str, float], steps: int) -> Times:
    trace = simulate(program, durations, steps)
    return [(s.instruction, s.step, s.start_seconds, s.seconds) for s in trace.spans]


def test_on_policy_pools_wait_for_each_other() -> None:
    """Lag 0: generate 3 s, update 2 s, one after the other."""
    program = make_program([["g"], ["u"]], [("g", "u", 2, 0), ("u", "g", 2, 1)])
    assert _times(program, {"g": 3.0, "u": 2.0}, 2) == [
        ("g", 1, 0.0, 3.0),
        ("u", 1, 3.0, 2.0),
        ("g", 2, 5.0, 3.0),
        ("u", 2, 8.0, 2.0),
    ]


def test_one_step_of_lag_overlaps_them() -> None:
    program = make_program([["g"], ["u"]], [("g", "u", 3, 0), ("u", "g", 3, 2)])
    assert _times(program, {"g": 3.0, "u": 2.0}, 3) == [
        ("g", 1, 0.0, 3.0),
        ("g", 2, 3.0, 3.0),
        ("u", 1, 3.0, 2.0),
        ("g", 3, 6.0, 3.0),
        ("u", 2, 6.0, 2.0),
        ("u", 3, 9.0, 2.0),
    ]


def test_idle_firings_take_no_time_and_leave_no_span() -> None:
    program = make_program([["a", "b"]], [])
    stream = program.streams[0]
    seldom = replace(stream.instructions[1], every_steps=2)
    program = replace(program, streams=(replace(stream, instructions=(stream.instructions[0], seldom)),))
    assert _times(program, {"a": 1.0, "b": 5.0}, 3) == [
        ("a", 1, 0.0, 1.0),
        ("b", 1, 1.0, 5.0),
        ("a", 2, 6.0, 1.0),
        ("a", 3, 7.0, 1.0),
        ("b", 3, 8.0, 5.0),
    ]


def test_missing_duration_is_our_fault() -> None:
    with pytest.raises(InternalError, match="no duration for `b`"):
        simulate(make_program([["a", "b"]], []), {"a": 1.0}, 1)


@settings(deadline=None)
@given(program=programs(), seconds=st.lists(st.integers(0, 4), min_size=9, max_size=9))
def test_schedule_keeps_every_rule(program: Program, seconds: list[int]) -> None:
    """Streams one at a time and in order, consumers after producers, producers after room: from the spans alone."""
    try:
        check(program)
    except InternalError:
        return
    ids = [i.id for i in program.instructions]
    durations = {id: float(s) for id, s in zip(ids, seconds, strict=False)}
    steps = 3
    trace = simulate(program, durations, steps)
    assert trace == simulate(program, durations, steps)
    begin = {(s.instruction, s.step): s.start_seconds for s in trace.spans}
    end = {(s.instruction, s.step): s.start_seconds + s.seconds for s in trace.spans}
    assert sorted(begin) == sorted((id, step) for id in ids for step in range(1, steps + 1))
    for stream in program.streams:
        for lane in stream.lanes:
            turns = [(i.id, step) for step in range(1, steps + 1) for i in lane]
            assert all(end[a] <= begin[b] for a, b in pairwise(turns))
    for channel in program.channels:
        if channel.kind is ChannelKind.INTERACTION:
            assert all(begin[channel.source, step] == begin[channel.target, step] for step in range(1, steps + 1))
            continue
        for step in range(1, steps + 1):
            fed_in = step - channel.initial_tokens
            if fed_in >= 1:
                assert end[channel.source, fed_in] <= begin[channel.target, step]
            room_in = step - (channel.capacity - channel.initial_tokens)
            if room_in >= 1:
                assert begin[channel.target, room_in] <= begin[channel.source, step]
