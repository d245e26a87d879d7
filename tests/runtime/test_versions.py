"""Weight versions on a channel, and what a checkpoint of an earlier step remembers of them and of data cursors."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import InternalError
from flowrl.runtime.versions import Cursors, WeightEdge


def test_at_lag_0_step_s_generates_with_version_s_minus_1() -> None:
    edge = WeightEdge("a => b", tokens=1)
    received: list[int] = []
    for step in (1, 2, 3):
        received.append(edge.receive())
        edge.send(step, idle=False)
    assert received == [0, 1, 2]


def test_lag_k_receives_the_initial_weights_k_times_more() -> None:
    edge = WeightEdge("a => b", tokens=3)
    received: list[int] = []
    for step in range(1, 6):
        received.append(edge.receive())
        edge.send(step, idle=False)
    assert received == [0, 0, 0, 1, 2]


def test_an_idle_send_repeats_the_last_version() -> None:
    edge = WeightEdge("a => b", tokens=1)
    assert [edge.send(1, idle=False), edge.send(2, idle=True), edge.send(3, idle=False)] == [1, 1, 2]


def test_a_checkpoint_sees_the_versions_of_its_own_step() -> None:
    edge = WeightEdge("a => b", tokens=2)
    for step in (1, 2, 3):
        edge.send(step, idle=False)
    assert [edge.at_end(step) for step in (0, 1, 2, 3)] == [0, 1, 2, 3]


def test_restored_tokens_stand_for_the_restored_weights() -> None:
    edge = WeightEdge("a => b", tokens=2, restored=5)
    assert [edge.receive(), edge.receive()] == [5, 5]
    assert edge.at_end(0) == 5
    assert edge.send(6, idle=False) == 6


def test_nothing_to_receive_is_our_fault() -> None:
    with pytest.raises(InternalError):
        WeightEdge("a => b", tokens=0).receive()


def test_cursors_remember_the_end_of_each_step() -> None:
    cursors = Cursors({"data.train": 8, "data.other": 3})
    for step in (3, 4):
        cursors.advance("data.train", step, cursors.start("data.train") + 4)
    assert cursors.start("data.train") == 16
    assert cursors.at_end(2) == {"data.train": 8, "data.other": 3}
    assert cursors.at_end(3) == {"data.train": 12, "data.other": 3}


def test_a_cursor_never_goes_back() -> None:
    cursors = Cursors({"data.train": 8})
    with pytest.raises(InternalError):
        cursors.advance("data.train", 1, 4)
