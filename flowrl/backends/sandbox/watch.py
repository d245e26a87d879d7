"""One program under watch: started, looked at until it ends or comes to a limit, and then ended with all that it has
started.

Runs inside of the sandbox's keeper, which imports the standard library only.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from flowrl.backends.sandbox.limits import Ended, Isolation, Limits
from flowrl.backends.sandbox.program import ASSERTED, CODE, PIPED, TEST, WORD

TICK_SECONDS = 0.02
"""How often the limits are looked at."""
SETTLE_SECONDS = 5.0
"""What processes that were killed get to be gone."""
READ_BYTES = 1 << 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class NoWallsError(Exception):
    """The program could not be confined, so it was not started."""


class Seen(NamedTuple):
    """How one test ended. `status`: as of the shell, negative for a signal; `said`: it gave its word."""

    status: int | None
    said: bool
    ended: Ended | None
    output: bytes = b""


class Watch:
    """All tests of one sample. `confine` puts up the rest of the walls in the process that becomes the program."""

    def __init__(self, limits: Limits, folder: str, python: str, confine: Callable[[], None]) -> None:
        self._limits = limits
        self._folder = folder
        self._python = python
        self._confine = confine
        self._began = time.monotonic()

    def run(self, code: str, test: Mapping[str, str]) -> Seen:
        """A test in words (`test`), or one of `input`, whose output is kept."""
        if self._out_of_time([]):
            return Seen(None, said=False, ended=Ended.TIME)
        word = os.urandom(16).hex()
        output, word_end, failure, process = self._start(code, test, word)
        try:
            ended, kept = self._look(process, output)
        finally:
            status = self._end(process)
        refused = _all_of(failure)
        said = _all_of(word_end) == word.encode()
        os.close(output)
        if refused:
            raise NoWallsError(refused.decode(errors="replace"))
        return Seen(status, said, ended or self._why(status), kept if "input" in test else b"")

    def _start(self, code: str, test: Mapping[str, str], word: str) -> tuple[int, int, int, int]:
        given = [_file(code), _file(f"{word}\n{test.get('test', '')}"), _file(test.get("input", ""))]
        output, output_in = os.pipe()
        word_end, word_in = os.pipe()
        failure, failure_in = os.pipe()
        process = os.fork()
        if not process:
            self._become(given, output_in, word_in, failure_in, PIPED if "input" in test else ASSERTED)
        for handle in (*given, output_in, word_in, failure_in):
            os.close(handle)
        os.set_blocking(output, False)
        return output, word_end, failure, process

    def _become(self, given: list[int], output: int, word: int, failure: int, start: str) -> None:
        """In the new process: the program, or the end."""
        try:
            os.setsid()
            os.chdir(self._folder)
            wanted = {0: given[2], 1: output, 2: output, CODE: given[0], TEST: given[1], WORD: word}
            high = {place: _above(handle) for place, handle in wanted.items()}
            failure = _above(failure)
            for place, handle in high.items():
                os.dup2(handle, place)
            self._confine()
            environment = {**_ENVIRONMENT, "HOME": self._folder, "TMPDIR": self._folder}
            if mark := os.environ.get(MARK):
                environment[MARK] = mark
            os.execve(self._python, [self._python, "-s", "-S", "-P", "-B", "-c", start], environment)
        except BaseException as error:
            with suppress(OSError):
                os.write(failure, f"{error}".encode() or b"?")
        finally:
            os._exit(127)

    def _look(self, process: int, output: int) -> tuple[Ended | None, bytes]:
        """Until the program itself ends or a limit is met; and what it has written."""
        kept = b""
        end = os.pidfd_open(process)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.register(output, select.POLLIN)
        try:
            while True:
                events = dict(poll.poll(1000 * TICK_SECONDS))
                data = _read(output) if output in events else b""
                kept += data
                if len(kept) > self._limits.output_bytes:
                    return Ended.OUTPUT, b""
                if output in events and not data:
                    poll.unregister(output)  # it has closed its output, and may well go on
                if end in events:
                    while data := _read(output):
                        kept += data
                    return (Ended.OUTPUT, b"") if len(kept) > self._limits.output_bytes else (None, kept)
                if found := self._beyond():
                    return found, b""
        finally:
            os.close(end)

    def _beyond(self) -> Ended | None:
        """The limit that all processes together are beyond."""
        processes = self._processes()
        if sum(_threads(each) for each in processes) > self._limits.processes:
            return Ended.PROCESSES
        if sum(_held_bytes(each) for each in processes) > self._limits.memory_bytes:
            return Ended.MEMORY
        if self._out_of_time(processes):
            return Ended.TIME
        return Ended.FILES if self._is_full() else None

    def _out_of_time(self, processes: list[int]) -> bool:
        done = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = done.ru_utime + done.ru_stime + sum(_used_seconds(each) for each in processes)
        return used > self._limits.seconds or time.monotonic() - self._began > self._limits.wall_seconds

    def _is_full(self) -> bool:
        """Whether nothing more can be written; elsewhere than behind walls that is the host's business."""
        if self._limits.isolation is not Isolation.NAMESPACES:
            return False
        left = os.statvfs("/")
        return left.f_bavail == 0 or left.f_favail == 0

    def _processes(self) -> list[int]:
        """All that the code runs: behind walls everything but this process."""
        if os.getpid() == 1:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        return descendants(os.getpid())

    def _end(self, process: int) -> int:
        """End everything that was started, daemons too, and reap it; the status of the program itself."""
        status: int | None = None
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            self._kill()
            try:
                while True:
                    found, how = os.waitpid(-1, os.WNOHANG)
                    if not found:
                        break
                    if found == process:
                        status = os.waitstatus_to_exitcode(how)
            except ChildProcessError:
                return -signal.SIGKILL if status is None else status
            time.sleep(0.001)
        raise NoWallsError("processes of the code could not be ended")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if os.getpid() == 1:
                os.kill(-1, signal.SIGKILL)  # of this namespace: all but the first
                return
        for each in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)

    def _why(self, status: int) -> Ended | None:
        """The limit that the system itself has held it to."""
        if status == -signal.SIGXCPU or (status != 0 and self._out_of_time([])):
            return Ended.TIME
        if status == -signal.SIGXFSZ:
            return Ended.FILES
        return Ended.FILES if status != 0 and self._is_full() else None


MARK = "FLOWRL_USER_PROCESS"
"""As of user_process/tree.py: what the rank knows all of them by."""


def descendants(process: int) -> list[int]:
    """Processes below `process`, orphans that it has adopted among them."""
    found = [process]
    for each in found:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{each}/task"):
                found += map(int, _text(f"/proc/{each}/task/{task}/children").split())
    return found[1:]


def _file(text: str) -> int:
    """A file of no folder with `text` in it, read from its start."""
    handle = os.memfd_create("flowrl") if sys.platform == "linux" else os.open(os.devnull, os.O_RDWR)
    data = memoryview(text.encode(errors="surrogatepass"))
    while data:
        data = data[os.write(handle, data) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _above(handle: int) -> int:
    """The same, away from the numbers that the program finds its files at."""
    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 16)


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, READ_BYTES)
    except BlockingIOError:
        return b""


def _all_of(handle: int) -> bytes:
    """What is left in a pipe that no process writes any more."""
    data = b""
    os.set_blocking(handle, False)
    while part := _read(handle):
        data += part
    os.close(handle)
    return data


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _held_bytes(process: int) -> int:
    """Resident, without what is a file of the disk."""
    lines = (line.split() for line in _text(f"/proc/{process}/status").splitlines())
    return sum(1024 * int(words[1]) for words in lines if words and words[0] in ("RssAnon:", "RssShmem:"))


def _threads(process: int) -> int:
    fields = _fields(process)
    return int(fields[17]) if fields else 0


def _used_seconds(process: int) -> float:
    """Of processor time, with those of its children that it has waited for."""
    fields = _fields(process)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _fields(process: int) -> list[str]:
    """Of /proc/N/stat from `state` on: the name before may hold anything."""
    return _text(f"/proc/{process}/stat").rpartition(")")[2].split()
