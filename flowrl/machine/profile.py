"""Profile: what devices, links and backends achieve of their peak figures, and fixed costs. A frozen value.

`PROFILE` is read from catalogue/profile.toml; `flowrl plan --profile FILE` reads another file of the same fields, which
`flowrl profile`, `flowrl calibrate` and the accuracy benchmark write. Every figure that is not a peak of the device
catalogue and not arithmetic lives here, so that it can be measured, fitted and replaced in one place. Knows no formula.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, cast

import msgspec

from flowrl.machine.cluster import Device
from flowrl.machine.memory import MEMORY, EngineMemory, MemoryConstants
from flowrl.machine.sync import SYNC, SyncRates
from flowrl.machine.training import TRAINING, TrainingMemory

FACTORS = ("train", "forward", "decode", "link")
SECONDS = (
    "layer_seconds",
    "micro_batch_seconds",
    "row_seconds",
    "weights_seconds",
    "eager_layer_seconds",
    "decode_layer_seconds",
    "decode_step_seconds",
    "decode_sequence_seconds",
)


_DIVISORS = ("train", "forward", "decode", "link", "network", "host", "host_memory", "disk", "mean_share")
_SHARES = ("mean_share", "overlap", "straggle")
LEAST_RATE, MOST = 1e-9, 1e12
"""Of the shares that times are divided by, and of any figure: what keeps every number of a plan finite."""


class DeviceRates(msgspec.Struct, frozen=True, kw_only=True):
    """Achieved shares of a device's peaks, and seconds that do not depend on size."""

    train: float
    """Share of the bf16 peak that large matrix products reach, forward and backward."""
    forward: float
    """The same forward alone."""
    traffic: float
    """Bytes that a layer moves beside its products, as a factor on those of a product's own matrices."""
    decode: float
    """Share of the memory bandwidth in a decode step."""
    link: float
    """Share of a link's bandwidth in a collective or a copy, inside a node."""
    network: float
    """Share of the network cards' bandwidth in a collective between nodes."""
    host: float
    """Share of the link to the host's memory in a copy."""
    link_latency: float
    """Latency of a hop of a collective inside a node, as a factor on the catalogue's."""
    network_latency: float
    """The same between nodes."""
    overlap: float
    """Share of compute behind which collectives of weights and gradients can hide."""
    layer_seconds: float
    """Launching one layer's kernels, forward and backward."""
    micro_batch_seconds: float
    """One micro-batch, whatever its size."""
    decode_layer_seconds: float
    """One layer in one decode step, whatever its size, with captured graphs."""
    eager_layer_seconds: float
    """The same without captured graphs."""
    decode_step_seconds: float
    """One decode step, whatever its size: the scheduler."""
    decode_sequence_seconds: float
    """One sequence in one decode step: scheduling, sampling and text on the host."""
    row_seconds: float = 0.0
    """One row of an op on a processor that does its own work, forward and backward: cutting, padding, calls of
    attention."""
    decode_traffic: float = 0.0
    """As `traffic`, in a decode step of such a processor: what one sequence moves beside its products."""
    weights_seconds: float = 0.0
    """Taking up new weights through host memory, beside their bytes and `fixed.sync_seconds`: an engine may pack every
    matrix anew."""
    host_seconds: float = 1.0
    """How much slower its host's processor is: a factor on all seconds above."""
    source: str = "assumed"


class BackendRates(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on a device's rates for one backend, or one generation of it. `seconds`: on all its fixed seconds."""

    train: float = 1.0
    forward: float = 1.0
    decode: float = 1.0
    link: float = 1.0
    seconds: float = 1.0
    source: str = "assumed"


class MoeRates(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts."""

    imbalance: float
    """Tokens of the busiest expert rank over the mean."""
    dispatch: float
    """Bytes that sorting tokens by expert moves, in units of one token's copies to its experts."""
    layer_seconds: float
    """One sparse layer in one micro-batch, forward and backward: the host waits for the tokens of each expert."""
    decode_layer_seconds: float
    """One sparse layer in one decode step, whatever its size."""
    source: str = "assumed"


class LengthModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow does not say of its responses."""

    mean_share: float
    """Mean response as a share of the most."""
    spread: float
    """Standard deviation of the logarithm of a response's tokens, before they are cut off at the most."""
    source: str = "assumed"


class FixedCosts(msgspec.Struct, frozen=True, kw_only=True):
    host_memory: float
    """Share of a node's memory bandwidth that optimizers on its processors reach together."""
    disk: float
    """Share of a disk's bandwidth."""
    sync_seconds: float
    """A hand-over of weights beside its bytes."""
    wake_seconds: float = 0.0
    """Putting an engine to sleep or waking it, beside its bytes."""
    op_seconds: float = 0.0
    """The controller's part of one op on devices in a step: dispatch, collection, data movement."""
    row_seconds: float = 0.0
    """The controller's part of one row of such a firing."""
    straggle: float = 0.0
    """Share of the chance imbalance between ranks that sorting rows by length leaves: 0 all are alike, 1 none is."""


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a profile that a fit may move, and how far physics lets it."""

    path: str
    """Such as `device.gpu.train`."""
    low: float
    high: float
    prior: float
    """What it is without measurements."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Where a measured or refitted figure comes from."""

    how: str
    """What was measured, with its unit."""
    spread: float = 0.0
    """Relative: quartile distance of its repeats, or what the fit leaves."""
    repeats: int = 1


class Profile(msgspec.Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    origin: str
    """`assumed`, `fitted on …`, or the file that was measured."""
    device: dict[str, dict[str, Any]]
    """`gpu`, `cpu`, or a device's name → its rates; a name's own keys override those of its class, and those of
    `DEVICE/BACKEND` override both for one backend there."""
    backend: dict[str, BackendRates] = {}
    """By name, `vllm`, or name and generation, `vllm@v0`, whose factors come on top."""
    generation: dict[str, str] = {}
    """Backend → the generation that is used; none: the current one."""
    moe: MoeRates
    lengths: LengthModel
    fixed: FixedCosts
    memory: MemoryConstants = MEMORY
    training: TrainingMemory = TRAINING
    """Contexts, reserves, and what engines hold beside their weights."""
    sync: dict[str, SyncRates] = msgspec.field(default_factory=lambda: dict(SYNC))
    """Hand-overs of weights, by way, `broadcast`, or by way and generation, `broadcast@tensors`."""
    error: float = 0.0
    """Relative error of a step's time that nine of ten keep to: the interval of an estimate."""
    measured: dict[str, Measured] = {}
    """Path of a figure → where it comes from, as far as this machine or a run gave it."""
    free: dict[str, list[float]] = {}
    """Path of a constant → lowest, highest and prior value."""

    def rates(self, device: Device, backend: str = "") -> DeviceRates:
        """Of `backend` on `device`."""
        return _rates(self, device.name, device.is_cpu, backend)

    def engine_memory(self, backend: str) -> EngineMemory:
        """Of the generation of an engine that is used. Raises KeyError for a backend that is no engine."""
        known = self.memory.engine
        return known.get(f"{backend}@{self.generation.get(backend)}") or known[backend]

    def sync_rates(self, way: str) -> SyncRates:
        """Of a way of machine/sync.py, in the generation that is used of `sync`."""
        return self.sync.get(f"{way}@{self.generation.get('sync')}") or self.sync[way]


@lru_cache(maxsize=4096)
def _rates(profile: Profile, name: str, is_cpu: bool, backend: str) -> DeviceRates:
    merged = profile.device["cpu" if is_cpu else "gpu"] | profile.device.get(name, {})
    merged = merged | profile.device.get(f"{name}/{backend}", {})
    generation = profile.generation.get(backend)
    for key in (backend, f"{backend}@{generation}"):
        factors = profile.backend.get(key)
        if factors is not None:
            merged = merged | {key: merged[key] * getattr(factors, key) for key in FACTORS}
            merged = merged | {"host_seconds": merged.get("host_seconds", 1.0) * factors.seconds}
    slower = merged.get("host_seconds", 1.0)
    return msgspec.convert(merged | {key: merged[key] * slower for key in SECONDS if key in merged}, DeviceRates)


def free_constants(profile: Profile) -> tuple[Constant, ...]:
    """The figures that a fit may move, with bounds and priors, in the order of the file."""
    return tuple(
        Constant(path=path, low=low, high=high, prior=prior) for path, (low, high, prior) in profile.free.items()
    )


def value_of(profile: Profile, path: str) -> float:
    """The figure at `path`. Raises KeyError if there is none."""
    found: Any = msgspec.to_builtins(profile)
    for name in path.split("."):
        found = found[name]
    return float(found)


def with_constants(profile: Profile, values: Mapping[str, float], origin: str | None = None) -> Profile:
    """The profile with the figures at the paths `values` replaced; sections on the way are made where missing."""
    plain = cast("dict[str, Any]", msgspec.to_builtins(profile))
    for path, value in values.items():
        *way, last = path.split(".")
        inner = plain
        for name in way:
            inner = inner.setdefault(name, {})
        inner[last] = value
    if origin is not None:
        plain["origin"] = origin
    return msgspec.convert(plain, Profile)


def with_generation(profile: Profile, generation: Mapping[str, str]) -> Profile:
    """The profile for other generations of backends: `{vllm: v0}`."""
    return msgspec.structs.replace(profile, generation={**profile.generation, **generation})


def read_profile(text: str) -> Profile:
    """The profile in a TOML text. Raises ValueError (msgspec's, tomllib's) for other text, for a profile without rates
    of GPUs and CPUs, and for figures that no time or size could be worked out from."""
    profile = msgspec.convert(tomllib.loads(text), Profile)
    for name in ("gpu", "cpu", *profile.device):
        if name not in profile.device:
            raise ValueError(f"`device.{name}` is missing")
        device = name.partition("/")[0]
        own = profile.device["cpu" if device == "cpu" else "gpu"] | profile.device.get(device, {})
        msgspec.convert(profile.device[name] if name in ("gpu", "cpu") else own | profile.device[name], DeviceRates)
    for path, value in _figures(msgspec.to_builtins(profile), ""):
        key = path.rpartition(".")[2]
        low, high = LEAST_RATE if key in _DIVISORS else 0.0, 1.0 if key in _SHARES else MOST
        if not low <= value <= high:
            raise ValueError(f"`{path}` is {value!r}, not a number from {low:g} to {high:g}")
    return profile


def _figures(found: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every figure that a plan may be made with, and its path."""
    if isinstance(found, dict):
        for key, value in cast("dict[str, Any]", found).items():
            if path or key not in ("measured", "free"):
                yield from _figures(value, f"{path}.{key}" if path else key)
    elif isinstance(found, int | float):
        yield path, found


def write_profile(profile: Profile) -> str:
    """The profile as TOML that `read_profile` reads back."""
    plain = cast("dict[str, Any]", msgspec.to_builtins(profile))
    scalars = [f"{key} = {_toml(value)}" for key, value in plain.items() if not isinstance(value, dict)]
    tables: list[str] = []
    for key, value in plain.items():
        if isinstance(value, dict):
            tables.extend(_table(key, cast("dict[str, Any]", value)))
    return "\n".join([*scalars, *tables]) + "\n"


def _table(name: str, fields: dict[str, Any]) -> list[str]:
    own = [f"{_key(key)} = {_toml(value)}" for key, value in fields.items() if not isinstance(value, dict)]
    lines = [f"\n[{name}]", *own] if own else []
    for key, value in fields.items():
        if isinstance(value, dict):
            lines.extend(_table(f"{name}.{_key(key)}", cast("dict[str, Any]", value)))
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()


PROFILE: Profile = read_profile(files("flowrl.machine").joinpath("catalogue/profile.toml").read_text(encoding="utf-8"))
