"""A Ray launcher that notes, at the start of every step, what the driver's process has used and sent so far."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass

from flowrl.program.program import InstructionKind
from flowrl.runtime.launchers.contract import Work
from flowrl.runtime.launchers.ray import RayLauncher

_ACKED, _RECEIVED = 120, 128
"""Offsets of tcpi_bytes_acked and tcpi_bytes_received in Linux's struct tcp_info."""
_INFO_BYTES = 136


@dataclass(frozen=True, slots=True)
class Mark:
    step: int
    seconds: float
    processor_seconds: float
    """Of all threads of the process, Ray's own among them."""
    thread_seconds: float
    """Of the thread that drives."""
    sent: int
    received: int
    """Bytes over every socket that the process holds."""


class MeteredLauncher(RayLauncher):
    marks: list[Mark]

    def submit(self, work: Work) -> None:
        instruction = work.firing.instruction
        if instruction.kind is InstructionKind.RUN and (instruction.op or "").startswith("data."):
            self.marks.append(mark(work.firing.step))
        super().submit(work)


def mark(step: int) -> Mark:
    sent, received = bytes_of_sockets()
    return Mark(step, time.monotonic(), time.process_time(), time.thread_time(), sent, received)


def bytes_of_sockets() -> tuple[int, int]:
    """Bytes that all open TCP connections of this process have sent (and the peer has) and received (Linux)."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not re.match(r"socket:", os.readlink(f"/proc/self/fd/{name}")):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            sent += struct.unpack_from("=Q", info, _ACKED)[0]
            received += struct.unpack_from("=Q", info, _RECEIVED)[0]
    return sent, received
