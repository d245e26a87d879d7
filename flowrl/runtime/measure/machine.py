"""The machine that is measured: one interface, a CPU's side and a CUDA device's.

The CUDA side is written for one process and its first device. It has not been run: no GPU was at hand.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from flowrl.machine.devices import ALIASES, DEVICE_CARDS, DeviceCard
from flowrl.runtime.launchers.choose import available_threads

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Machine(Protocol):
    card: DeviceCard
    """Of the catalogue: its peaks are what shares are of."""
    name: str
    """In a profile: `cpu`, or a device of the catalogue."""
    where: str
    """The class of machine in words; no name of a host or a person."""
    device: torch.device
    cores: int
    """Slots that one process uses at once: the peaks of `cpu` are those of one core."""
    dtypes: tuple[torch.dtype, ...]
    """The first is what models compute in."""
    large: int
    """Side of a matrix that is large here."""

    def wait(self) -> None:
        """Until all work that was started is done."""
        ...

    def copy_to_host(self, source: Tensor) -> Callable[[], object]:
        """Work that brings `source` to host memory, or into memory that other processes share."""
        ...


class CpuMachine:
    def __init__(self) -> None:
        self.card = DEVICE_CARDS["cpu"]
        self.name = "cpu"
        self.cores = available_threads()
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        self.where = f"{cores} of {platform.machine()} with {torch.backends.cpu.get_cpu_capability()}"
        self.device = torch.device("cpu")
        self.dtypes = (torch.float32, torch.bfloat16)
        self.large = 1024

    def wait(self) -> None:
        return

    def copy_to_host(self, source: Tensor) -> Callable[[], object]:
        shared = torch.empty_like(source).share_memory_()
        return lambda: shared.copy_(source)


class CudaMachine:
    """Not run so far."""

    def __init__(self) -> None:
        said = torch.cuda.get_device_name(0)
        self.name = catalogue_name(said, torch.cuda.get_device_properties(0).total_memory)
        self.card = DEVICE_CARDS[self.name]
        self.cores = 1
        self.where = f"{torch.cuda.device_count()} x {said}"
        self.device = torch.device("cuda", 0)
        self.dtypes = (torch.bfloat16, torch.float16, torch.float32)
        self.large = 8192

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def copy_to_host(self, source: Tensor) -> Callable[[], object]:
        pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        return lambda: pinned.copy_(source, non_blocking=True)


def this_machine() -> Machine:
    """The first CUDA device if there is one, else the CPU."""
    return CudaMachine() if torch.cuda.is_available() else CpuMachine()


def catalogue_name(said: str, memory_bytes: int) -> str:
    """The device of the catalogue that a driver's name means: `NVIDIA H100 80GB HBM3` → `H100-80G`. Of several, the one
    whose memory is nearest. KeyError if there is none."""
    words = said.upper().replace("-", " ").split()
    near = [
        card
        for name, card in DEVICE_CARDS.items()
        if name != "cpu" and name.upper().replace("-", " ").split()[0] in words
    ]
    near += [DEVICE_CARDS[name] for alias, name in ALIASES.items() if alias.upper() in words]
    if not near:
        raise KeyError(said)
    return min(near, key=lambda card: abs(card.device.memory_bytes - memory_bytes)).device.name


def use_all_cores(machine: Machine) -> None:
    """As an inline run does. Ranks that are spawned later read the variable."""
    torch.set_num_threads(machine.cores)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
