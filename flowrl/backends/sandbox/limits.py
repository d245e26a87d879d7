"""What a sandbox allows, and what can end a run in it. Also read inside of the sandbox: the standard library
only, and little of it, for each sample starts a process that reads this."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple


class Isolation(StrEnum):
    """How far the code is kept from the host (docs/adr/0125)."""

    NAMESPACES = "namespaces"
    """Own files, processes, users and an empty network; no new rights and no calls that leave a trace in the kernel."""
    LIMITS = "limits"
    """The host's files and network as the run's own user sees them; only time, memory and output are bounded."""


class Ended(StrEnum):
    """The limit that a run came to."""

    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "processes"
    FILES = "files"
    OUTPUT = "output"


class Limits(NamedTuple):
    """Of one sample, all of its tests together, unless said otherwise."""

    seconds: float
    """Of processor time, of all its processes; on the clock WALL times as much."""
    memory_bytes: int
    """Resident in all its processes at once."""
    isolation: Isolation = Isolation.NAMESPACES
    processes: int = 32
    """Processes and threads at once."""
    disk_bytes: int = 64 << 20
    files: int = 4096
    """Files and folders at once."""
    open_files: int = 256
    """Of each process."""
    output_bytes: int = 1 << 20
    """Written to stdout and stderr by one test."""

    @property
    def wall_seconds(self) -> float:
        return WALL * self.seconds

    @property
    def processor_seconds(self) -> int:
        """What the system itself allows one process, in whole seconds."""
        return math.ceil(self.seconds) + 1


WALL = 2.0
"""Time on the clock for each second of processor time: a busy host shall not change a score."""
