"""The process of a user function: load it, call it, tell what came out. Started by `process.py`, and by nobody else.

It imports the user's file and, of FlowRL, what this needs: no torch, no numpy, no other part of the run. It ends when
the rank that started it does.
"""

from __future__ import annotations

import faulthandler
import io
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import msgspec

from flowrl.backends.user_code import UserCodeError, call_function, load_function
from flowrl.backends.user_process.messages import (
    HEADER,
    Ask,
    Debugging,
    Load,
    Loaded,
    Raised,
    Refused,
    Reply,
    from_rank,
    of_function,
)
from flowrl.backends.user_process.scores import process_scores_of, scores_of
from flowrl.backends.user_process.tree import die_with_parent
from flowrl.diag.diagnostic import FlowError

GRACE_SECONDS = 2.0
"""What a function that still runs gets when its rank has gone."""


class Settings(msgspec.Struct, frozen=True):
    """What the process is started with, as JSON."""

    socket: int
    address_bytes: int
    """Most that may be mapped for writing; more raises MemoryError."""
    dies_with_thread: bool
    terminal: int | None = None


def main(text: str) -> None:
    settings = msgspec.json.decode(text, type=Settings)
    faulthandler.enable()
    if settings.dies_with_thread:
        die_with_parent()
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (settings.address_bytes, settings.address_bytes))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    link = socket.socket(fileno=settings.socket)
    link.setblocking(True)
    threading.Thread(target=_end_with_rank, args=(link,), daemon=True, name="rank").start()
    sys.breakpointhook = _breakpoints(link, settings.terminal)
    while (payload := _receive(link)) is not None:
        reply = _answer(from_rank(payload))
        sys.stdout.flush()
        sys.stderr.flush()
        link.sendall(of_function(reply))


def _answer(message: Any) -> Reply:
    if not isinstance(message, Load | Ask):
        from flowrl.backends.envs.served import answer  # which functions never need

        return answer(message)
    if isinstance(message, Load):
        try:
            _functions[message.name] = load_function(message.name, message.folder, message.span)
        except FlowError as error:
            return Refused(error.diagnostics)
        return Loaded()
    try:
        columns = {name: column.rows() for name, column in message.columns.items()}
        value = call_function(_functions[message.name], None, **columns, **message.args)
        if message.outputs:
            from flowrl.backends.user_process.columns import columns_of  # which rewards never need

            return columns_of(value, message.rows, message.outputs)
        return (process_scores_of if message.ragged else scores_of)(value, message.rows)
    except UserCodeError as error:
        return Raised(error.told)


_functions: dict[str, Any] = {}


def _receive(link: socket.socket) -> bytes | None:
    """The next frame; None when the rank has closed its end."""
    header = _exactly(link, HEADER.size)
    return None if header is None else _exactly(link, HEADER.unpack(header)[0])


def _exactly(link: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view, got = memoryview(data), 0
    while got < count:
        read = link.recv_into(view[got:])
        if not read:
            return None
        got += read
    return bytes(data)


def _end_with_rank(link: socket.socket) -> None:
    """Wait until the rank's end is closed; a function that still runs then has little time left."""
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    poll.register(link.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _breakpoints(link: socket.socket, terminal: int | None) -> Any:
    """breakpoint() in the user's function: the debugger, at the terminal that the run was started from."""

    def hook(*args: object, **words: object) -> None:
        if terminal is None:
            raise RuntimeError("breakpoint() needs the terminal of a run with one rank a role (`--launcher inline`)")
        import pdb  # most functions never need it

        link.sendall(of_function(Debugging()))
        reader, writer = (io.TextIOWrapper(io.FileIO(os.dup(terminal), mode), errors="replace") for mode in "rw")
        pdb.Pdb(stdin=reader, stdout=writer).set_trace(sys._getframe(1))

    return hook
