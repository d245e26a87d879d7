"""Profile: what devices, links and backends achieve of their peak figures, and fixed costs. A frozen value.

`PROFILE` is read from catalogue/profile.toml; `flowrl profile` and `flowrl calibrate` write files of the same fields.
Every figure that is not a peak of the device catalogue and not arithmetic lives here, so that it can be measured,
fitted and replaced in one place.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import msgspec

from flowrl.machine.cluster import Device


class DeviceRates(msgspec.Struct, frozen=True, kw_only=True):
    """Achieved shares of a device's peaks, and seconds that do not depend on size."""

    train: float
    forward: float
    decode: float
    link: float
    layer_seconds: float
    decode_layer_seconds: float
    decode_step_seconds: float
    source: str = "assumed"


class BackendRates(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on a device's shares for one backend."""

    train: float = 1.0
    forward: float = 1.0
    decode: float = 1.0
    link: float = 1.0
    source: str = "assumed"


class FixedCosts(msgspec.Struct, frozen=True, kw_only=True):
    disk_bytes_per_second: float
    sync_seconds: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    origin: str
    """`assumed`, `fitted on …`, or the file that was measured."""
    device: dict[str, dict[str, Any]]
    """`gpu`, `cpu`, or a device's name → its rates; a name's own keys override those of its class."""
    backend: dict[str, BackendRates] = {}
    fixed: FixedCosts

    def rates(self, device: Device, backend: str = "") -> DeviceRates:
        """Of `backend` on `device`."""
        merged = self.device["cpu" if device.is_cpu else "gpu"] | self.device.get(device.name, {})
        factors = self.backend.get(backend)
        if factors is not None:
            merged = merged | {
                key: merged[key] * getattr(factors, key) for key in ("train", "forward", "decode", "link")
            }
        return msgspec.convert(merged, DeviceRates)


def read_profile(text: str) -> Profile:
    """The profile in a TOML text. Raises ValueError (msgspec's, tomllib's) for other text."""
    return msgspec.convert(tomllib.loads(text), Profile)


PROFILE: Profile = read_profile(files("flowrl.machine").joinpath("catalogue/profile.toml").read_text(encoding="utf-8"))
