"""Weight versions on a channel, and what a checkpoint of an earlier step remembers of them and of data cursors."""

from __future__ import annotations

import pytest

from flowrl.diag.diagnostic import InternalError
from flowrl.runtime.versions import Cursors, WeightEdge


def test_at_lag_0_step_s_generates_with_version_s_minus_1() -> None:
    edge = WeightEdge("a => b", [0])
    received: list[int] = []
    for step in (1, 2, 3):
        received.append(edge.receive())
        edge.send(step, idle=False)
    assert received == [0, 1, 2]


def test_lag_k_receives_the_initial_weights_k_times_more() -> None:
    edge = WeightEdge("a => b", [0, 0, 0])
    received: list[int] = []
    for step in range(1, 6):
        received.append(edge.receive())
        edge.send(step, idle=False)
    assert received == [0, 0, 0, 1, 2]


def test_an_idle_send_repeats_the_last_version() -> None:
    edge = WeightEdge("a => b", [0])
    assert [edge.send(1, idle=False), edge.send(2, idle=True), edge.send(3, idle=False)] == [1, 1, 2]


def test_a_checkpoint_sees_the_versions_of_its_own_step() -> None:
    edge = WeightEdge("a => b", [0, 0])
    for step in (1, 2, 3):
        edge.send(step, idle=False)
    assert [edge.at_end(step) for step in (0, 1, 2, 3)] == [0, 1, 2, 3]


def test_a_restored_edge_goes_on_as_the_one_that_was_saved() -> None:
    edge = WeightEdge("a => b", [0, 0, 0])
    for step in range(1, 8):
        edge.receive()
        edge.send(step, idle=step % 2 == 0)
    saved = edge.waiting_at_end(6)
    assert saved == (2, 3, 3)
    assert [edge.is_fresh(step) for step in (4, 5, 6, 7)] == [False, True, False, True]
    restored = WeightEdge("a => b", saved, 6)
    assert restored.send(7, idle=False) == edge.at_end(7) == 4
    assert [restored.receive() for _ in range(4)] == [2, 3, 3, 4]
    assert [restored.waiting_at_end(s) for s in (6, 7)] == [edge.waiting_at_end(s) for s in (6, 7)]


def test_several_versions_a_step() -> None:
    """Two a step at a lag of one version: the samples of step s are of version 2 (s - 1) - 1 (ADR 0020)."""
    edge = WeightEdge("a => b", [0, 0, 0], count=2)
    received: list[int] = []
    for step in range(1, 5):
        received.append(edge.receive())
        assert [edge.send(step, idle=False, firing=firing) for firing in (0, 1)] == [2 * step - 1, 2 * step]
    assert received == [0, 1, 3, 5]
    assert edge.at_end(3) == 6
    assert edge.waiting_at_end(3) == (4, 5, 6)
    restored = WeightEdge("a => b", edge.waiting_at_end(3), 3, count=2)
    assert restored.receive() == 5
    assert restored.send(4, idle=False, firing=0) == 7
    assert (restored.is_fresh(3), edge.is_fresh(3)) == (True, True)


def test_a_channel_without_a_token_is_our_fault() -> None:
    with pytest.raises(InternalError):
        WeightEdge("a => b", [])


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
