"""A profile with a figure that no time or size could be worked out from is refused, and says which."""

from __future__ import annotations

from importlib.resources import files

import pytest

from flowrl.machine.profile import read_profile

TEXT = (files("flowrl.machine") / "catalogue" / "profile.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("value", ["-1.0", "nan", "inf", "1e300"])
@pytest.mark.parametrize("key", ["train", "traffic", "link_latency", "decode_step_seconds", "mean_share", "op_seconds"])
def test_figures_that_are_not_of_this_world(key: str, value: str) -> None:
    lines = TEXT.splitlines()
    place = next(at for at, line in enumerate(lines) if line.startswith(f"{key} = "))
    lines[place] = f"{key} = {value}"
    with pytest.raises(ValueError, match=key):
        read_profile("\n".join(lines))


@pytest.mark.parametrize("key", ["train", "forward", "decode", "link", "host", "disk"])
def test_a_rate_of_nothing(key: str) -> None:
    lines = [f"{key} = 0.0" if line.startswith(f"{key} = ") else line for line in TEXT.splitlines()]
    with pytest.raises(ValueError, match=key):
        read_profile("\n".join(lines))


def test_what_one_device_says_is_read_before_that_device_is_planned_for() -> None:
    with pytest.raises(ValueError, match="host_seconds"):
        read_profile(TEXT.replace("[device.GB200]", '[device.L4]\nhost_seconds = "slow"\n\n[device.GB200]'))


def test_what_flowrl_brings_is_read() -> None:
    assert read_profile(TEXT).device["gpu"]
