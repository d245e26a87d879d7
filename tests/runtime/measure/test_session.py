"""The measurements in their order, on this machine: quick ones, and what Ctrl-C leaves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flowrl.runtime.measure.figures import Figure
from flowrl.runtime.measure.handover import handover
from flowrl.runtime.measure.machine import CpuMachine, Machine
from flowrl.runtime.measure.memory import disk
from flowrl.runtime.measure.session import Moment, Phase, measure


def phase(name: str, *figures: Figure, stop: bool = False) -> Phase:
    def work(machine: Machine, quick: bool, known: Mapping[str, float]) -> list[Figure]:
        if stop:
            raise KeyboardInterrupt
        return list(figures)

    return Phase(name, work, 1.0, 1.0)


ONE = Figure(path="device.cpu.train", value=0.5, text="half")
BETTER = Figure(path="device.cpu.train", value=0.4, text="in layers")


def test_a_later_figure_is_the_better_one_and_moments_are_told() -> None:
    told: list[Moment] = []
    found = measure(CpuMachine(), True, told.append, (phase("a", ONE), phase("b"), phase("c", BETTER)))
    assert found.by_path() == {"device.cpu.train": BETTER}
    assert found.missing == ["b"]
    assert [(moment.phase, moment.done) for moment in told] == [("a", 0), ("b", 1), ("c", 2), ("", 3)]
    assert told[0].left_seconds == 3.0


def test_interrupt_keeps_what_is_measured_and_names_what_is_not() -> None:
    found = measure(CpuMachine(), True, phases=(phase("a", ONE), phase("b", stop=True), phase("c", BETTER)))
    assert found.interrupted
    assert found.by_path() == {"device.cpu.train": ONE}
    assert found.missing == ["b", "c"]


@pytest.mark.parametrize(("work", "path", "least", "most"), [
    (disk, "fixed.disk", 1e-3, 1e3),
    (handover, "fixed.sync_seconds", 1e-7, 0.1),
])  # fmt: skip
def test_real_measurements_are_figures_of_a_profile(work, path, least, most) -> None:  # type: ignore[no-untyped-def]
    (figure,) = work(CpuMachine(), True)
    assert figure.path == path
    assert least < figure.value < most
    assert figure.repeats >= 1
