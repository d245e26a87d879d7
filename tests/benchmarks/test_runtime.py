"""What the runtime's benchmark and the soak count, on things whose count is known."""

from __future__ import annotations

import socket

import numpy as np

from benchmarks.running.meter import bytes_of_sockets
from benchmarks.running.peers import Way
from benchmarks.running.verl_grpo import step_seconds
from benchmarks.soak import Look, _judge

CHUNK = b"x" * 100_000


def test_bytes_of_sockets_are_those_that_were_sent_and_received() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            sent, received = bytes_of_sockets()
            near.sendall(CHUNK)
            left = len(CHUNK)
            while left:
                left -= len(far.recv(left))
            after = bytes_of_sockets()
    assert after[1] - received == len(CHUNK)
    assert 0 < after[0] - sent <= len(CHUNK)  # the last ones may not be acknowledged yet


def test_seconds_of_verls_steps() -> None:
    log = "step:1 - actor/lr:0.001 - timing_s/step:39.25 - x:1\nnoise\nstep:2 - timing_s/step:np.float64(2.5) - y:2\n"
    assert step_seconds(log) == [39.25, 2.5]


def test_a_way_that_fails_says_so_and_has_no_rate() -> None:
    def fails() -> list[float]:
        raise ValueError("no such thing")

    bad, good = Way("bad", fails), Way("good", lambda: [9.0, 9.0, 9.0, 2.0, 1.0, 3.0])
    bad.turn()
    good.turn()
    assert (bad.rate, bad.fault) == (0.0, "ValueError: no such thing")
    assert good.rate == 64 / 2.0


def _looks(growth: float, warm_up: float = 0.0) -> list[Look]:
    """A look a second for 100 seconds; memory grows by `growth` over the judged ones and by `warm_up` before them."""
    noise = np.random.default_rng(0).normal(scale=0.002, size=100)
    looks: list[Look] = []
    for second in range(100):
        share = max(0.0, (second - 25) / 75)
        memory = 1e9 * (1 - warm_up * (second <= 25) + growth * share + noise[second])
        looks.append(Look(float(second), 8, int(memory), 400, 3, second))
    return looks


def test_a_soak_judges_the_slope_after_the_warm_up() -> None:
    flat = _judge(_looks(0.0, warm_up=0.5), 100.0, 1)
    assert flat.holds
    growing = _judge(_looks(0.1), 100.0, 1)
    assert [bar.what for bar in growing.bars if not bar.holds] == ["growth of memory"]
    assert _judge(_looks(0.03), 100.0, 1).holds
