"""A profile of measured figures: what is measured replaces what FlowRL assumes, with its origin and its spread."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl import api
from flowrl.api.measure import measure_machine, profile_of
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.profile import PROFILE, read_profile, value_of, write_profile
from flowrl.runtime.measure import machine
from flowrl.runtime.measure.figures import Figure
from flowrl.runtime.measure.session import Measured
from tests.conftest import Told

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"


def measured(**shares: float) -> Measured:
    figures = [Figure(path=f"device.cpu.{key}", value=value, text=key, spread=0.2) for key, value in shares.items()]
    return Measured("2 cores of x86_64", figures)


def test_measured_figures_replace_assumed_ones_and_the_rest_stays() -> None:
    made = read_profile(write_profile(profile_of(measured(train=1.23456789, layer_seconds=3e-4))))
    assert value_of(made, "device.cpu.train") == 1.235
    assert value_of(made, "device.cpu.layer_seconds") == 3e-4
    assert value_of(made, "device.cpu.overlap") == value_of(PROFILE, "device.cpu.overlap")
    assert made.device["gpu"] == PROFILE.device["gpu"]
    assert made.origin == "measured on 2 cores of x86_64"
    assert (made.measured["device.cpu.train"].how, made.measured["device.cpu.train"].spread) == ("train", 0.2)
    assert made.error == pytest.approx(0.2)  # the root mean square of the spreads


def test_a_plan_with_twice_the_rate_trains_twice_as_fast(tmp_path: Path) -> None:
    seconds: list[float] = []
    for share in (0.01, 0.02):
        file = tmp_path / f"{share}.toml"
        made = profile_of(measured(train=share, traffic=0.0, layer_seconds=0.0, micro_batch_seconds=0.0))
        file.write_text(write_profile(made), encoding="utf-8")
        stage = api.plan(QUICKSTART, profile=file).stages[1]
        lines = next(w.lines for w in stage.estimate.work if "run actor_train.update" in w.instructions)
        seconds.append(next(line for line in lines if line.what == "compute").value)
        assert "measured on 2 cores of x86_64" in next(iter(lines)).origins["X"]
    logits = 24 * 99 * 4608 / (0.7 * 10e9 * 2)  # what the loss moves does not depend on the rate of products
    assert (seconds[0] - logits) / (seconds[1] - logits) == pytest.approx(2.0, rel=0.02)


def test_gpu_that_nobody_knows_is_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> machine.Machine:
        raise KeyError("NVIDIA Quadro 4000")

    monkeypatch.setattr(machine, "this_machine", unknown)
    with pytest.raises(FlowError) as error:
        measure_machine(True, lambda moment: None)
    told(error.value, "FR0722")
