"""The statistics behind figures, and the fits: known constants go in, and come out again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowrl.runtime.measure.collectives import figures_of as collective_figures
from flowrl.runtime.measure.decoding import DEEP, SHALLOW, SMALL, Rates, Step
from flowrl.runtime.measure.decoding import figures_of as decode_figures
from flowrl.runtime.measure.decoding import together as engine_together
from flowrl.runtime.measure.figures import Times, fit, timed
from flowrl.runtime.measure.layers import BOTH, FORWARD, Pass, _rates, _row
from flowrl.runtime.measure.layers import together as layers_together
from flowrl.runtime.measure.machine import CpuMachine, catalogue_name
from flowrl.runtime.measure.models import VOCABULARY, Small

GIB = 2**30
CARD = CpuMachine().card.device
PEAK = CARD.bf16_flops_per_second
RIDGE = PEAK / CARD.memory_bytes_per_second
EMPTY = Pass(Small(64, 2), 8, 64, BOTH, Times((1.0,)))


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

    def passed(hidden: int, kind: float, share: float) -> Pass:
        return replace(EMPTY, small=Small(hidden, 2), kind=kind, times=Times((seconds_of(hidden, kind, share),)))

    def seconds_of(hidden: int, kind: float, share: float) -> float:
        flops, narrow = _row(replace(EMPTY, small=Small(hidden, 2), kind=kind))
        return (flops + 2.0 * RIDGE * narrow) / (share * PEAK * machine.cores)

    both = [passed(hidden, BOTH, 0.5) for hidden in (64, 128, 512)]
    ahead = [passed(hidden, FORWARD, 0.4) for hidden in (64, 128, 512)]
    found = {figure.path: figure.value for figure in _rates(machine, both, ahead)}
    assert found["device.cpu.train"] == pytest.approx(0.5)
    assert found["device.cpu.forward"] == pytest.approx(0.4)
    assert found["device.cpu.traffic"] == pytest.approx(2.0)


def test_all_that_a_pass_on_a_cpu_takes_is_found_again() -> None:
    """As above, and 2 ms a layer, 3 ms a call, 40 µs a row, a third of each forward; optimizer and logits apart."""
    machine, memory = CpuMachine(), 1e10
    shapes = [(64, 1, 1, 8), (64, 4, 1, 8), (64, 3, 128, 12), (128, 2, 16, 64), (256, 2, 128, 12), (512, 2, 8, 64)]

    def passed(hidden: int, depth: int, rows: int, row_tokens: int, kind: float, share: float) -> Pass:
        small = Small(hidden, depth)
        made = Pass(small, rows, row_tokens, kind, Times((1.0,)))
        flops, narrow = _row(made)
        fixed = (2e-3 * depth + 3e-3 + 4e-5 * rows) * (1.0 if kind == BOTH else 1 / 3)
        logits = (24 if kind == BOTH else 12) * VOCABULARY * rows * row_tokens / 2
        apart = (logits + (30 * small.parameters if kind == BOTH else 0)) / memory
        seconds = (flops + 2.0 * RIDGE * narrow) / (share * PEAK * machine.cores) + fixed + apart
        return replace(made, times=Times((seconds,)))

    both, ahead = ([passed(*shape, kind, share) for shape in shapes] for kind, share in ((BOTH, 0.5), (FORWARD, 0.4)))
    found = {figure.path: figure.value for figure in layers_together(machine, both, ahead, memory)}
    assert found == {
        "device.cpu.train": pytest.approx(0.5),
        "device.cpu.forward": pytest.approx(0.4),
        "device.cpu.traffic": pytest.approx(2.0),
        "device.cpu.layer_seconds": pytest.approx(2e-3),
        "device.cpu.micro_batch_seconds": pytest.approx(3e-3),
        "device.cpu.row_seconds": pytest.approx(4e-5),
    }


def test_seconds_of_decoding_are_found_again() -> None:
    """1 ms a layer, 3 ms a step, 50 µs a sequence; products of the larger model take longer than its launches."""
    rate = 1e10

    def step(small: Small, batch: int) -> Step:
        on_device = max(2.0 * small.parameters * batch / rate, 1e-3 * small.layers)
        seconds = on_device + 3e-3 + (5e-5 * batch if batch > 1 else 0.0)
        return Step(small, batch, Times((seconds,)), Times((seconds,)))

    steps = [step(SHALLOW, 1), step(DEEP, 1), step(SMALL, 16), step(SMALL, 64)]
    found = {figure.path: figure.value for figure in decode_figures("cpu", steps, rate)}
    assert found["device.cpu.eager_layer_seconds"] == pytest.approx(1e-3)
    assert found["device.cpu.decode_step_seconds"] == pytest.approx(3e-3)
    assert found["device.cpu.decode_sequence_seconds"] == pytest.approx(5e-5)


def test_all_that_an_engine_on_a_cpu_takes_is_found_again() -> None:
    """A step: 1 ms a layer, 3 ms, 50 µs a sequence, products of which c = 4, all added; a call: 2 ms a layer, 5 ms and
    30 µs a sequence beside the products of 6 tokens each. Of calls three times that is said."""
    rates = Rates(flops_per_second=1e10, memory_bytes_per_second=1e10, ridge=5.0, traffic=2.0, width=4)

    def step(small: Small, batch: int) -> Step:
        narrow = 1 / small.hidden + 1 / small.ffn
        products, weights = 2.0 * small.parameters * batch / 1e10, 4.0 * small.parameters / 1e10
        slow = 1.0 + 4.0 * 5.0 * narrow if products > weights else 1.0
        bytes_moved = (2.0 * small.layers * small.hidden * 4 * 10.0 + 24 * VOCABULARY) * batch
        seconds = max(products * slow, weights) + bytes_moved / 1e10 + 1e-3 * small.layers + 3e-3 + 5e-5 * batch
        prefill = 2.0 * small.parameters * 6 * batch / 1e10 * (1.0 + 2.0 * 5.0 * (1 / (6 * batch) + narrow))
        first = prefill + 2e-3 * small.layers + 5e-3 + 3e-5 * batch
        return Step(small, batch, Times((seconds,)), Times((first,)))

    steps = [step(small, batch) for small in (SHALLOW, DEEP, SMALL) for batch in (1, 64, 256)]
    found = {figure.path: figure.value for figure in engine_together("cpu/hf", steps, rates, 10.0)}
    assert found == {
        "device.cpu/hf.eager_layer_seconds": pytest.approx(1e-3),
        "device.cpu/hf.decode_step_seconds": pytest.approx(3e-3),
        "device.cpu/hf.decode_sequence_seconds": pytest.approx(5e-5),
        "device.cpu/hf.decode_traffic": pytest.approx(4.0),
        "device.cpu/hf.layer_seconds": pytest.approx(6e-3),
        "device.cpu/hf.micro_batch_seconds": pytest.approx(15e-3),
        "device.cpu/hf.row_seconds": pytest.approx(9e-5),
    }


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
