"""A reward function in a process of its own: asked over a socket, ended when it takes too long, holds too much or its
rank ends. The process stays between calls; one that has died or leaked is started again by the next call.

Takes names, columns and limits, gives Scored or raises UserCodeError. Knows no batch and no policy: what happens to
rows without a reward is the backend's business. Safe to call from several threads, one call at a time.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from flowrl.backends.user_code import Fault, UserCodeError
from flowrl.backends.user_process.messages import (
    Ask,
    Called,
    Debugging,
    Incoming,
    Load,
    Loaded,
    Packed,
    Raised,
    Refused,
    Reply,
    Scored,
    of_rank,
)
from flowrl.backends.user_process.tree import MARK, adopting, end, held_bytes, marked
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.machine.local import machine_memory_bytes

Answer = TypeVar("Answer", Scored, Called)
LOAD_SECONDS = 300.0
"""Most that a user's file may take to be imported."""
TICK_SECONDS = 0.05
"""How often memory and time are looked at while a function runs."""
TREE_TICKS = 20
"""Ticks between two looks at what the function's own processes hold."""
CLOSE_SECONDS = 1.0
"""What an idle process gets to end by itself."""
KEPT_BYTES = 4096
"""Of what a function prints, kept for a diagnostic."""
SHOWN_BYTES = 1 << 16
"""Of what a function prints in one call, passed on to stderr."""
DRAINED_BYTES = 1 << 20
READ_BYTES = 1 << 16
LEAST_BYTES = 1 << 30
MEMORY_SHARE = 4
"""The functions of a role hold at most one in so many bytes of the host."""
MAPPED = 2
"""Times the limit that may be mapped for writing: stacks of threads are mapped and hardly used."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    """Most that the process, with those that it starts, may hold. At half of it an idle process is started anew."""
    threads: int = 1


def share_of_memory(ranks: int) -> int:
    """Bytes for one of `ranks` functions on this host (docs/adr/0109)."""
    host = machine_memory_bytes() or LEAST_BYTES * MEMORY_SHARE
    return max(LEAST_BYTES, host // MEMORY_SHARE // ranks)


class UserProcess:
    """The function `name` of a file in `folder`. Raises FlowError FR0820, FR0821 or FR0828 if it cannot be loaded."""

    def __init__(
        self, name: str, folder: Path, span: Span | None, limits: Limits, load: msgspec.Struct | None = None
    ) -> None:
        """`load`: the first message to a process, if not that of a function."""
        self._load = Load(name, folder, span)
        self._first = load or self._load
        self._limits = limits
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._finalizer: weakref.finalize[..., UserProcess] | None = None
        self._first_bytes: int | None = None
        """What the process held after its first call: what is kept on purpose."""
        self._starts = 0
        self._ready()

    @property
    def restarts(self) -> int:
        """How often a process has been started beyond the first."""
        return self._starts - 1

    def call(
        self,
        timeout_seconds: float | None,
        rows: int,
        columns: Mapping[str, Packed],
        args: Mapping[str, object],
        *,
        ragged: bool = False,
    ) -> Scored:
        """`ragged`: several numbers a row. Raises UserCodeError: the function raised, was not done in time, ended its
        process or held too much."""
        asked = Ask(self._load.name, rows, dict(columns), dict(args), ragged=ragged)
        return self._ask(asked, timeout_seconds, Scored)

    def columns(
        self, rows: int, columns: Mapping[str, Packed], args: Mapping[str, object], outputs: Sequence[str]
    ) -> Called:
        """As `call`, of a function that returns these columns."""
        return self._ask(Ask(self._load.name, rows, dict(columns), dict(args), tuple(outputs)), None, Called)

    def _ask(self, asked: Ask, timeout_seconds: float | None, wanted: type[Answer]) -> Answer:
        with self._lock:
            process = self._ready()
            reply = self._converse(process, of_rank(asked), timeout_seconds)
            if isinstance(reply, Raised):
                raise UserCodeError(reply.told, printed=process.printed)
            if not isinstance(reply, wanted):
                self._end()
                raise UserCodeError(STRANGE, Fault.ENDED, process.printed)
            if self._leaks(process):
                self._end()  # better between calls than in one
            return reply

    def close(self) -> None:
        with self._lock, adopting():
            if self._process is not None:
                self._process.leave()
            self._end()

    def _ready(self) -> _Process:
        if self._process is not None and self._process.is_alive():
            return self._process
        if self._process is not None:  # it has ended between two calls
            self._end()
        self._starts += 1
        self._first_bytes = None
        self._process = process = _Process(self._limits)
        self._finalizer = weakref.finalize(self, process.kill)
        try:
            reply = self._converse(process, of_rank(self._first), LOAD_SECONDS)
        except UserCodeError as error:
            raise self._not_loaded(error.told, error.printed) from error
        if isinstance(reply, Loaded):
            return process
        self._end()
        raise FlowError(reply.diagnostics) if isinstance(reply, Refused) else self._not_loaded(STRANGE, process.printed)

    def _not_loaded(self, reason: str, printed: str) -> FlowError:
        file = self._load.name.rpartition(":")[0]
        return FlowError(diagnose("FR0828", self._load.span, notes=printed_note(printed), file=file, reason=reason))

    def _leaks(self, process: _Process) -> bool:
        """Whether an idle process holds half of its share, and twice of what it held after its first call."""
        held = held_bytes(process.pid)
        if self._first_bytes is None:
            self._first_bytes = held
        return held > max(self._limits.memory_bytes // 2, 2 * self._first_bytes)

    def _converse(self, process: _Process, request: bytes, timeout_seconds: float | None) -> Reply:
        try:
            return process.converse(request, timeout_seconds)
        except BaseException:  # an interrupt too: the answer to this would be taken for that to the next
            self._end()
            raise

    def _end(self) -> None:
        process, self._process = self._process, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if process is not None:
            process.kill()


def printed_note(printed: str) -> list[str]:
    """What a function printed last, for a diagnostic."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()][-PRINTED_LINES:]
    return ["".join(["it printed last", *(f"\n  {line[:PRINTED_WIDTH]}" for line in lines)])] if lines else []


PRINTED_LINES, PRINTED_WIDTH = 12, 160
STRANGE = "wrote to a socket that is not its own"


@dataclass(slots=True)
class _Output:
    """What the function prints: the last of it kept, the first of each call passed on."""

    pipe: int
    last: bytes = b""
    shown: int = field(default=0)

    def drain(self, most: int) -> int:
        """Take what is there, at most about `most` bytes; gives how many they were."""
        taken = 0
        while taken < most:
            try:
                data = os.read(self.pipe, READ_BYTES)
            except BlockingIOError:
                return taken
            if not data:
                return taken
            taken += len(data)
            self.last = (self.last + data)[-KEPT_BYTES:]
            self._show(data)
        return taken

    def _show(self, data: bytes) -> None:
        shown, self.shown = self.shown, self.shown + len(data)
        with suppress(OSError, ValueError):
            if shown < SHOWN_BYTES:
                sys.stderr.write(data[: SHOWN_BYTES - shown].decode(errors="replace"))
            if shown < SHOWN_BYTES <= self.shown:
                sys.stderr.write("\n… (more is not shown)\n")


class _Process:
    """One start of the process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._mark = secrets.token_hex(8)
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        os.set_blocking(read, False)
        terminal = _terminal()
        settings = {
            "socket": theirs.fileno(),
            "address_bytes": limits.memory_bytes * MAPPED,
            "dies_with_thread": threading.current_thread() is threading.main_thread(),
            "terminal": terminal,
        }
        start = (
            f"import sys; sys.path[:] = {json.dumps(sys.path)}; "
            f"from flowrl.backends.user_process.child import main; main({json.dumps(settings)!r})"
        )
        environment = {"OMP_NUM_THREADS": str(limits.threads), **os.environ, MARK: self._mark}
        passed = [theirs.fileno()] if terminal is None else [theirs.fileno(), terminal]
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-c", start],
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                pass_fds=passed,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(read)
            raise
        finally:
            theirs.close()
            os.close(write)
            if terminal is not None:
                os.close(terminal)
        self.pid = self._popen.pid
        self._socket = ours
        self._socket.setblocking(False)
        self._output = _Output(read)
        self._incoming = Incoming()
        self._end_of = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    @property
    def printed(self) -> str:
        return self._output.last.decode(errors="replace")

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def converse(self, request: bytes, timeout_seconds: float | None) -> Reply:
        """Say `request` and wait for its answer."""
        self._output.last, self._output.shown = b"", 0
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        outgoing, ticks = memoryview(request), 0
        tick = time.monotonic() + TICK_SECONDS
        while True:
            outgoing = self._send(outgoing)
            self._wait(bool(outgoing), deadline)
            self._output.drain(DRAINED_BYTES)
            alive = self.is_alive()  # before what it wrote is read: nothing comes after that
            reply = self._receive()
            if isinstance(reply, Debugging):
                deadline = None
                continue
            if reply is not None:
                return reply
            if not alive:
                raise self._fault(Fault.ENDED, _how(self._popen.returncode))
            now = time.monotonic()
            if deadline is not None and now > deadline:
                raise self._fault(Fault.SLOW, f"was not done after {timeout_seconds:g} s")
            if now > tick:
                tick, ticks = now + TICK_SECONDS, ticks + 1
                self._require_memory(whole=ticks % TREE_TICKS == 0)

    def leave(self) -> None:
        """Let an idle process end by itself."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(CLOSE_SECONDS)

    def kill(self) -> None:
        """End it and whatever it has started; may be called twice."""
        if self._socket.fileno() < 0:
            return
        self._socket.close()
        if self.is_alive():
            with suppress(OSError):
                os.kill(self.pid, signal.SIGSTOP)  # so that it starts nothing more while it is looked at
            end(self.pid, self._mark)
            self._popen.returncode = -signal.SIGKILL  # it is reaped
        else:
            end(None, self._mark)
        os.close(self._output.pipe)
        if self._end_of is not None:
            os.close(self._end_of)

    def _wait(self, sends: bool, deadline: float | None) -> None:
        """Until something can be done, at most for a tick."""
        seconds = TICK_SECONDS if deadline is None else min(TICK_SECONDS, max(0.0, deadline - time.monotonic()))
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN | (select.POLLOUT if sends else 0))
        poll.register(self._output.pipe, select.POLLIN)
        if self._end_of is not None:
            poll.register(self._end_of, select.POLLIN)
        poll.poll(max(1, round(1000 * seconds)))

    def _send(self, outgoing: memoryview) -> memoryview:
        if outgoing:
            with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                return outgoing[self._socket.send(outgoing) :]
        return outgoing

    def _receive(self) -> Reply | None:
        with suppress(BlockingIOError, ConnectionResetError):
            while data := self._socket.recv(READ_BYTES):
                self._incoming.feed(data)
            self._popen.poll()
        try:
            return self._incoming.next()
        except ValueError:
            raise self._fault(Fault.ENDED, STRANGE) from None

    def _require_memory(self, *, whole: bool) -> None:
        held = sum(map(held_bytes, marked(self._mark))) if whole else held_bytes(self.pid)
        if held > self._limits.memory_bytes:
            share = f"{self._limits.memory_bytes / 2**30:.1f} GiB"
            raise self._fault(Fault.MEMORY, f"held more than its share of {share}")

    def _fault(self, fault: Fault, told: str) -> UserCodeError:
        self._output.drain(DRAINED_BYTES)
        return UserCodeError(told, fault, self.printed)


def _how(status: int) -> str:
    if status >= 0:
        return f"ended its process with status {status}"
    with suppress(ValueError):
        return f"ended its process by {signal.Signals(-status).name}"
    return f"ended its process by signal {-status}"


def _terminal() -> int | None:
    """The terminal that this process was started from, for breakpoints."""
    try:
        return os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
