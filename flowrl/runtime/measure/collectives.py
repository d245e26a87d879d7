"""Collectives between processes of this machine: gloo on CPUs, NCCL on CUDA devices. Latency and bandwidth by least
squares over sizes of an all-reduce, which takes 2·hops·latency + 2(n-1)/n·bytes/bandwidth (nccl-tests, PERFORMANCE.md).

Each rank is a process of its own; none outlives the measurement.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from flowrl.runtime.measure.figures import Figure, Times, fit
from flowrl.runtime.measure.machine import Machine

MOST_SECONDS = 90.0


def collectives(machine: Machine, quick: bool) -> list[Figure]:
    """Nothing on one GPU. NCCL has not been run here."""
    on_cpu = machine.card.device.is_cpu
    size = 2 if on_cpu else torch.cuda.device_count()
    if size < 2:
        return []
    found = _all_reduces(size, "gloo" if on_cpu else "nccl", quick)
    return figures_of(machine, size, found)


def _all_reduces(size: int, backend: str, quick: bool) -> list[tuple[int, Times]]:
    with tempfile.TemporaryDirectory(prefix="flowrl-measure-") as folder:
        store, pace = str(Path(folder) / "store"), "quick" if quick else "full"
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "flowrl.runtime.measure.rank", store, str(rank), str(size), backend, pace],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for rank in range(size)
        ]
        try:
            told, _ = ranks[0].communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return []
        finally:
            for process in ranks:
                if process.poll() is None and process is not ranks[0]:
                    _end(process)
                process.kill()
                process.wait()
    rows = json.loads(told) if told else []
    return [(int(count), Times(tuple(seconds))) for count, seconds in rows]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ranks end together; the others get a moment to."""
    try:
        process.wait(timeout=2.0)
    except subprocess.TimeoutExpired:
        return


def figures_of(machine: Machine, size: int, found: Sequence[tuple[int, Times]]) -> list[Figure]:
    if not found:
        return []
    hops, part = math.ceil(math.log2(size)), 2.0 * (size - 1) / size
    (latency, slow), left = fit([[2.0 * hops, part * count] for count, _ in found], [t.median for _, t in found])
    spread = max(left, sorted(times.spread for _, times in found)[len(found) // 2])
    repeats = sum(len(times.seconds) for _, times in found)
    device, name = machine.card.device, machine.name
    figures: list[Figure] = []
    if slow > 0:
        text = f"{1 / slow / 1e9:.3g} GB/s in an all-reduce of {size} ranks"
        value = 1 / slow / device.link_bytes_per_second
        figures.append(Figure(path=f"device.{name}.link", value=value, text=text, spread=spread, repeats=repeats))
    if latency > 0 and device.link_seconds > 0:
        text = f"{latency * 1e6:.3g} µs a hop of an all-reduce of {size} ranks"
        value = latency / device.link_seconds
        path = f"device.{name}.link_latency"
        figures.append(Figure(path=path, value=value, text=text, spread=spread, repeats=repeats))
    return figures
