"""The device catalogue: catalogue/devices.toml as values. Knows no cluster of the user's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from flowrl.machine.cluster import Device, NodeGroup

MIB = 2**20
GIB = 2**30
ALL_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class DeviceCard:
    """A device with its usual node, and where each figure comes from."""

    device: Device
    node_devices: int
    node_memory_bytes: int
    network_bytes_per_second: float
    sources: Mapping[str, str]
    network_seconds: float
    node_memory_bytes_per_second: float
    disk_bytes_per_second: float
    aliases: tuple[str, ...] = ()
    """Other names that are taken for it."""
    dtypes: tuple[str, ...] = ALL_DTYPES
    """In which it computes at full speed; a device before 2020 has no bfloat16."""


def node_group(card: DeviceCard, name: str, nodes: int, devices_per_node: int) -> NodeGroup:
    """`nodes` nodes of `devices_per_node` devices each; host memory, disks and network are those of the usual node."""
    return NodeGroup(
        name=name,
        device=card.device,
        nodes=nodes,
        devices_per_node=devices_per_node,
        host_memory_bytes=card.node_memory_bytes,
        network_bytes_per_second=card.network_bytes_per_second,
        network_seconds=card.network_seconds,
        host_memory_bytes_per_second=card.node_memory_bytes_per_second,
        disk_bytes_per_second=card.disk_bytes_per_second,
    )


def _read_catalogue() -> dict[str, DeviceCard]:
    text = files("flowrl.machine").joinpath("catalogue/devices.toml").read_text(encoding="utf-8")
    return {name: _card(name, entry) for name, entry in tomllib.loads(text).items()}


def _card(name: str, entry: dict[str, Any]) -> DeviceCard:
    sources: dict[str, str] = entry["sources"]
    device = Device(
        name=name,
        memory_bytes=entry["memory_mib"] * MIB,
        bf16_flops_per_second=entry["bf16_tflops"] * 1e12,
        memory_bytes_per_second=entry["memory_gbps"] * 1e9,
        link_bytes_per_second=entry["link_gbps"] * 1e9,
        host_bytes_per_second=entry["host_gbps"] * 1e9,
        source=f"catalogue: {sources['bf16_tflops']}",
        is_cpu=name == "cpu",
        link_seconds=entry["link_us"] / 1e6,
        link_domain=entry.get("link_domain"),
        fp8_flops_per_second=entry["fp8_tflops"] * 1e12 if "fp8_tflops" in entry else None,
    )
    return DeviceCard(
        device=device,
        node_devices=entry["node_devices"],
        node_memory_bytes=entry["node_memory_gib"] * GIB,
        network_bytes_per_second=entry["network_gbps"] * 1e9,
        sources=sources,
        network_seconds=entry["network_us"] / 1e6,
        node_memory_bytes_per_second=entry["node_memory_gbps"] * 1e9,
        disk_bytes_per_second=entry["disk_gbps"] * 1e9,
        aliases=tuple(entry.get("aliases", ())),
        dtypes=tuple(entry.get("dtypes", ALL_DTYPES)),
    )


DEVICE_CARDS: Mapping[str, DeviceCard] = _read_catalogue()
"""By name: `H100-80G`, …, `cpu`."""

DEVICES: Mapping[str, Device] = {name: card.device for name, card in DEVICE_CARDS.items()}

ALIASES: Mapping[str, str] = {alias: name for name, card in DEVICE_CARDS.items() for alias in card.aliases}
"""Other names of devices → the catalogue's."""
