"""A sandbox as the rank sees it: code and tests in, which tests passed and what ended them out. One keeper a sample, in
a process of its own; nothing stays between two of them.

Takes limits, gives outcomes, or raises SandboxError where the walls cannot be put up. Knows no batch and no rewards.
Safe to call from several threads.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.backends.sandbox.limits import Ended, Limits
from flowrl.backends.user_process.tree import MARK, adopting, end

SLACK_SECONDS = 10.0
"""What the keeper gets beyond the time of the code: to start, and to end what the code has left."""
LEAVE_SECONDS = 2.0
_PACKAGE = str(Path(__file__).resolve().parents[3])
_START = "import sys; sys.path.insert(0, {path!r}); from flowrl.backends.sandbox.keeper import main; main()"


class SandboxError(Exception):
    """The code was not run: the host does not allow what keeps it in."""


@dataclass(frozen=True, slots=True)
class Test:
    """In words that run after the code, or an input with the output that the code shall write."""

    __test__ = False
    text: str | None = None
    input: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`passed`: of each test. `ended`: the first limit that a test came to."""

    passed: tuple[bool, ...]
    ended: Ended | None = None

    @property
    def share(self) -> float:
        return sum(self.passed) / len(self.passed) if self.passed else 0.0


class Sandbox:
    """Limits with the processes that run under them."""

    def __init__(self, limits: Limits, python: str = sys.executable, prefix: str = sys.base_prefix) -> None:
        self._limits = limits
        self._python = os.path.realpath(python)
        self._prefix = os.path.realpath(prefix)
        self._lock = threading.Lock()
        self._running: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
        self._closed = False

    def run(self, code: str, tests: Sequence[Test]) -> Outcome:
        """The code against each test. Raises SandboxError."""
        lines = self._lines(code, tests)
        seen = [*lines, *({"ended": Ended.TIME} for _ in range(len(tests) - len(lines)))]
        passed = tuple(_passed(test, line) for test, line in zip(tests, seen, strict=True))
        return Outcome(passed, next((Ended(line["ended"]) for line in seen if line["ended"]), None))

    def _lines(self, code: str, tests: Sequence[Test]) -> list[dict[str, Any]]:
        """What the keeper says of each test; less where it was not done in time."""
        asked = {
            "limits": self._limits._asdict(),
            "python": self._python,
            "prefix": self._prefix,
            "code": code,
            "tests": [_asked(test) for test in tests],
        }
        lines = [json.loads(line) for line in self._answer(json.dumps(asked).encode()).splitlines()]
        refused = next((line["refused"] for line in lines if "refused" in line), None)
        if refused is not None:
            raise SandboxError(refused)
        return lines

    def said(self, code: str, input: str) -> str:
        """What the code writes, of which nothing is asked but that it ends well. Raises SandboxError."""
        (line,) = self._lines(code, [Test(input=input)]) or [{"ended": Ended.TIME}]
        if line["ended"] or line["status"] != 0:
            raise SandboxError(f"code in it ended by {line['ended'] or 'itself'}")
        return base64.b64decode(line["output"]).decode(errors="replace")

    def close(self) -> None:
        """End what runs."""
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for keeper, mark in running:
            _end(keeper, mark)

    def _answer(self, asked: bytes) -> bytes:
        keeper, mark = self._start()
        try:
            return keeper.communicate(asked, self._limits.wall_seconds + SLACK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            return b""
        finally:
            _end(keeper, mark)
            with self._lock:
                self._running.pop(keeper.pid, None)

    def _start(self) -> tuple[subprocess.Popen[bytes], str]:
        mark = secrets.token_hex(8)
        with self._lock:
            if self._closed:
                raise SandboxError("it was closed")
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START.format(path=_PACKAGE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={MARK: mark},
                cwd="/",
                start_new_session=True,
            )
            self._running[keeper.pid] = keeper, mark
        return keeper, mark


def _end(keeper: subprocess.Popen[bytes], mark: str) -> None:
    """Nothing of it is left: with the keeper's first process go all others behind the walls; without walls, by mark."""
    if keeper.poll() is None:
        keeper.terminate()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(LEAVE_SECONDS)
    if keeper.poll() is None or keeper.returncode != 0:
        with adopting():
            end(keeper.pid if keeper.poll() is None else None, mark)
            with suppress(subprocess.TimeoutExpired):
                keeper.wait(LEAVE_SECONDS)
    for pipe in (keeper.stdin, keeper.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _asked(test: Test) -> Mapping[str, str]:
    """Never the output that is wanted."""
    return {"input": test.input} if test.text is None else {"test": test.text}


def _passed(test: Test, line: Mapping[str, Any]) -> bool:
    if line["ended"] or line["status"] != 0:
        return False
    if test.text is not None:
        return bool(line["said"])
    return _visible(base64.b64decode(line["output"]).decode(errors="replace")) == _visible(test.output)


def _visible(text: str) -> list[str]:
    """Without what nobody sees: spaces at the end of lines, empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
