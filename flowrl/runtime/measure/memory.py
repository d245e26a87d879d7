"""Copies: device memory, to the host or into shared memory, to disk, and the hand-over of a small model's weights."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from flowrl.runtime.measure.figures import Figure, Times, timed
from flowrl.runtime.measure.machine import Machine

BYTES = 2**26
QUICK_BYTES = 2**25


def copies(machine: Machine, quick: bool) -> list[Figure]:
    """Memory bandwidth of the device, and the link to its host. A copy reads and writes each byte."""
    count, span = (QUICK_BYTES if quick else 4 * BYTES), (0.2 if quick else 0.8)
    source = torch.zeros(count // 4, device=machine.device)
    target = torch.empty_like(source)
    inside = timed(lambda: target.copy_(source), machine.wait, span)
    device = machine.card.device
    rate = 2.0 * count / inside.median
    share = rate / (device.memory_bytes_per_second * machine.cores)
    text = f"{rate / 1e9:.3g} GB/s read and written in a copy of {count // 2**20} MiB"
    found = [_figure(f"device.{machine.name}.decode", share, text, inside)]
    out = timed(machine.copy_to_host(source), machine.wait, span)
    rate = count / out.median
    text = f"{rate / 1e9:.3g} GB/s to memory of the host that processes share"
    found.append(_figure(f"device.{machine.name}.host", rate / device.host_bytes_per_second, text, out))
    if device.is_cpu:
        node = machine.card.node_memory_bytes_per_second
        found.append(_figure("fixed.host_memory", 2.0 * count / inside.median / node, found[0].text, inside))
    return found


def disk(machine: Machine, quick: bool) -> list[Figure]:
    """Writing a file and waiting until it is on the disk of the folder for temporary files."""
    count = QUICK_BYTES if quick else BYTES
    data = os.urandom(2**20) * (count // 2**20)
    with tempfile.TemporaryDirectory(prefix="flowrl-measure-") as folder:
        times = timed(lambda: _write(Path(folder) / "file", data), machine.wait, 0.3 if quick else 1.0, most=10)
    rate = count / times.median
    text = f"{rate / 1e9:.3g} GB/s of a file of {count // 2**20} MiB, synced"
    return [_figure("fixed.disk", rate / machine.card.disk_bytes_per_second, text, times)]


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _figure(path: str, value: float, text: str, times: Times) -> Figure:
    return Figure(path=path, value=value, text=text, spread=times.spread, repeats=len(times.seconds))
