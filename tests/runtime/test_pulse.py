"""Signs of life of ranks on Ray, without Ray: real datagrams, a clock of the test's own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from flowrl.runtime.launchers.ray_pulse import AWAY_SECONDS, Heart, Pulses

HUNG = 5.0


@pytest.fixture
def pulses() -> Iterator[Pulses]:
    made = Pulses(HUNG)
    yield made
    made.close()


def _beat(heart: Heart, times: int = 1) -> None:
    """What the thread of a rank sends in as many seconds."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _ in range(times):
            out.sendto(heart.word, ("127.0.0.1", heart.port))
    time.sleep(0.05)


def test_a_rank_that_was_heard_and_is_silent_is_missed(pulses: Pulses) -> None:
    (one, first), (two, second) = pulses.heart(), pulses.heart()
    assert one != two
    _beat(first)
    _beat(second)
    assert pulses.silent(100.0) == frozenset()
    _beat(second)
    assert pulses.silent(100.0 + HUNG) == frozenset()
    assert pulses.silent(100.5 + HUNG) == {one}
    _beat(first)
    assert pulses.silent(101.0 + HUNG) == frozenset()


def test_nobody_is_missed_who_was_never_heard(pulses: Pulses) -> None:
    """Where datagrams do not get through, every rank would be."""
    pulses.heart()
    assert pulses.silent(0.0) == pulses.silent(1.0) == pulses.silent(9.0) == frozenset()


def test_a_driver_that_was_away_begins_to_count_anew(pulses: Pulses) -> None:
    one, heart = pulses.heart()
    _beat(heart)
    assert pulses.silent(0.0) == frozenset()
    back = 1.0 + AWAY_SECONDS + HUNG
    assert pulses.silent(back) == frozenset()
    assert pulses.silent(back + HUNG) == frozenset()
    assert pulses.silent(back + HUNG + 0.1) == {one}


def test_words_of_strangers_count_for_nothing(pulses: Pulses) -> None:
    one, heart = pulses.heart()
    _beat(heart)
    assert pulses.silent(0.0) == frozenset()
    strangers = Pulses(HUNG)
    _beat(Heart(heart.port, strangers.heart()[1].word))
    _beat(Heart(heart.port, b"x" * 200))
    strangers.close()
    assert pulses.silent(HUNG + 1.0) == {one}


def test_ranks_that_are_no_more_are_not_missed(pulses: Pulses) -> None:
    one, heart = pulses.heart()
    _beat(heart, 3)
    pulses.silent(0.0)
    pulses.forget([one])
    assert pulses.silent(HUNG + 1.0) == frozenset()
    assert pulses.heart()[0] != one


def test_a_heart_beats_from_a_thread(pulses: Pulses) -> None:
    one, heart = pulses.heart()
    heart.beat("127.0.0.1")
    end = time.monotonic() + 10.0
    while one not in pulses._heard and time.monotonic() < end:
        time.sleep(0.02)
        pulses.silent(0.0)
    assert one in pulses._heard
