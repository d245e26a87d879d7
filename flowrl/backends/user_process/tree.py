"""Processes that a user function has started, and what they hold. By /proc, so on Linux alone: elsewhere a function's
own process group is all that is known of them.

Every process below carries a mark in its environment, which those that it starts inherit, daemons too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MARK = "FLOWRL_USER_PROCESS"
"""Environment variable that says whose a process is."""
REAP_SECONDS = 2.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def marked(mark: str) -> list[int]:
    """Processes that carry the mark, in order; none where there is no /proc."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and wanted in _read(f"/proc/{name}/environ").split(b"\0"):
                found.append(int(name))
    return sorted(found)


def held_bytes(process: int) -> int:
    """Memory that a process holds itself: resident, without what it shares with files. 0 if it cannot be told."""
    fields = _read(f"/proc/{process}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES if len(fields) > 2 else 0


def end(process: int | None, mark: str) -> None:
    """Kill the group of `process`, if it has not been reaped, and all that carries the mark; leave no zombie of
    them."""
    with adopting():
        others = [other for other in marked(mark) if other != process]
        for other in others:
            with suppress(OSError):
                os.kill(other, signal.SIGKILL)
        if process is not None:
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
            _reap([process])
        _reap(others)


def die_with_parent() -> None:
    """Ask the system to kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans that come about meanwhile become children of this process, which can then reap them."""
    if sys.platform != "linux":
        yield
        return
    before = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _reap(processes: list[int]) -> None:
    """Wait until they are gone; those that are no children of this process are reaped by whoever has them."""
    deadline = time.monotonic() + REAP_SECONDS
    for process in processes:
        while not _is_gone(process) and time.monotonic() < deadline:
            time.sleep(0.001)


def _is_gone(process: int) -> bool:
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except OSError:  # somebody else's child, or reaped already
        return not _read(f"/proc/{process}/environ")


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
