"""The statistics behind figures, and the fits: known constants go in, and come out again."""

from __future__ import annotations

import pytest

from flowrl.runtime.measure.collectives import figures_of as collective_figures
from flowrl.runtime.measure.decoding import DEEP, SHALLOW, SMALL, Step
from flowrl.runtime.measure.decoding import figures_of as decode_figures
from flowrl.runtime.measure.figures import Times, fit, timed
from flowrl.runtime.measure.layers import BOTH, FORWARD, Pass, _rates, _row
from flowrl.runtime.measure.machine import CpuMachine, catalogue_name
from flowrl.runtime.measure.models import Small

GIB = 2**30


def test_median_and_spread_of_repeats() -> None:
    times = Times((1.0, 2.0, 3.0, 4.0, 100.0))
    assert times.median == 3.0
    assert times.spread == pytest.approx((52.0 - 1.5) / 3.0)  # quartiles of statistics.quantiles, exclusive
    assert Times((1.0, 9.0)).spread == 0.0


def test_repeats_fill_the_time_and_no_more() -> None:
    calls: list[int] = []
    found = timed(lambda: calls.append(1), lambda: None, 10.0, most=7)
    assert (len(found.seconds), len(calls)) == (7, 8)


def test_fit_gives_back_what_made_the_seconds() -> None:
    rows = [[1.0, 10.0], [1.0, 20.0], [1.0, 80.0]]
    found, left = fit(rows, [3.0 + 0.5 * row[1] for row in rows])
    assert found == pytest.approx([3.0, 0.5])
    assert left == pytest.approx(0.0, abs=1e-9)


def test_fit_leaves_out_what_would_be_negative() -> None:
    rows = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]
    found, _ = fit(rows, [2.0 * row[1] - 1.0 for row in rows])
    assert found[0] == 0.0
    assert found[1] > 0.0


def test_rates_and_traffic_of_layers_are_found_again() -> None:
    """Seconds made from the planner's form: FLOPs·(1 + c·R/w)/X with X half of the peak forward and backward and 0.4
    forward, and c = 2."""
    machine = CpuMachine()
    card = machine.card.device
    peak = card.bf16_flops_per_second * machine.cores
    ridge = card.bf16_flops_per_second / card.memory_bytes_per_second

    def passed(hidden: int, kind: float, share: float) -> Pass:
        small = Small(hidden, 2)
        made = Pass(small, 512, kind, kind * 512.0 * small.parameters, Times((1.0,)))
        flops, narrow = _row(made)
        return Pass(small, 512, kind, made.flops, Times(((flops + 2.0 * ridge * narrow) / (share * peak),)))

    both = [passed(hidden, BOTH, 0.5) for hidden in (64, 128, 512)]
    ahead = [passed(hidden, FORWARD, 0.4) for hidden in (64, 128, 512)]
    found = {figure.path: figure.value for figure in _rates(machine, both, ahead)}
    assert found["device.cpu.train"] == pytest.approx(0.5)
    assert found["device.cpu.forward"] == pytest.approx(0.4)
    assert found["device.cpu.traffic"] == pytest.approx(2.0)


def test_seconds_of_decoding_are_found_again() -> None:
    """1 ms a layer, 3 ms a step, 50 µs a sequence; products of the larger model take longer than its launches."""
    rate = 1e10

    def step(small: Small, batch: int) -> Step:
        on_device = max(2.0 * small.parameters * batch / rate, 1e-3 * small.layers)
        seconds = on_device + 3e-3 + (5e-5 * batch if batch > 1 else 0.0)
        return Step(small, batch, Times((seconds,)))

    steps = [step(SHALLOW, 1), step(DEEP, 1), step(SMALL, 16), step(SMALL, 64)]
    found = {figure.path: figure.value for figure in decode_figures("cpu", steps, rate)}
    assert found["device.cpu.eager_layer_seconds"] == pytest.approx(1e-3)
    assert found["device.cpu.decode_step_seconds"] == pytest.approx(3e-3)
    assert found["device.cpu.decode_sequence_seconds"] == pytest.approx(5e-5)


def test_latency_and_bandwidth_of_collectives_are_found_again() -> None:
    """Two ranks: 2 hops of 20 µs, and all bytes once at 2 GB/s."""
    found = [(count, Times((2 * 20e-6 + count / 2e9,))) for count in (2**10, 2**18, 2**24)]
    machine = CpuMachine()
    figures = {figure.path: figure.value for figure in collective_figures(machine, 2, found)}
    assert figures["device.cpu.link"] == pytest.approx(0.2)  # of the catalogue's 10 GB/s
    assert figures["device.cpu.link_latency"] == pytest.approx(4.0)  # of its 5 µs


@pytest.mark.parametrize(
    ("said", "memory", "name"),
    [
        ("NVIDIA H100 80GB HBM3", 80 * GIB, "H100-80G"),
        ("NVIDIA A100-SXM4-40GB", 40 * GIB, "A100-40G"),
        ("NVIDIA A100-SXM4-80GB", 80 * GIB, "A100-80G"),
        ("NVIDIA H200", 141 * GIB, "H200"),
        ("NVIDIA H20", 96 * GIB, "H20"),
        ("NVIDIA L4", 24 * GIB, "L4"),
    ],
)
def test_names_of_drivers_are_devices_of_the_catalogue(said: str, memory: int, name: str) -> None:
    assert catalogue_name(said, memory) == name


def test_unknown_device_is_no_key() -> None:
    with pytest.raises(KeyError):
        catalogue_name("NVIDIA Quadro 4000", 2 * GIB)
