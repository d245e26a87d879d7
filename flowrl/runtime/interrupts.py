"""Ctrl-C and SIGTERM during a run: note them, and leave work that may be left.

The first signal asks the driver to end at a whole step. Work that changes no trainer is abandoned at once: `Abandoned`
is raised inside it. Work that does is let finish, until the deadline or a second signal. Only a main thread gets
signals; in another one nothing is changed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, FlowError

DEADLINE_SECONDS = 7.0
"""From the first signal until even unfinished training is given up; a run ends within 10 s."""


class Abandoned(BaseException):
    """Raised in the middle of work that is given up. No Exception, so that user code does not swallow it."""


class InterruptError(FlowError):
    """The run was ended by a signal, with a checkpoint left. `exit_status` is the shell's: 128 + the signal."""

    def __init__(self, diagnostics: Diagnostic, signal_number: int = signal.SIGINT) -> None:
        super().__init__(diagnostics)
        self.signal_number = signal_number

    @property
    def exit_status(self) -> int:
        """130 for Ctrl-C (SIGINT), 143 for SIGTERM."""
        return 128 + self.signal_number


class Interrupts:
    """`asked` is the signal that came, or None."""

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.asked: int | None = None
        self.overdue = False
        """Whether the deadline or a second signal came."""
        self._deadline_seconds = deadline_seconds
        self._abandonable = False
        self._settled = False
        self._former_alarm: Any = None

    @property
    def name(self) -> str:
        return signal.Signals(self.asked or signal.SIGINT).name

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM here; put the former handlers back at the end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = dict.fromkeys((signal.SIGINT, signal.SIGTERM), self._on_signal)
        former = {number: signal.signal(number, handler) for number, handler in handled.items()}
        try:
            yield
        finally:
            self._stop_clock()
            for number, handler in former.items():
                signal.signal(number, handler)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Work in here is left in the middle when a signal comes, or before it starts when one has come."""
        self._abandonable = True
        try:
            if self.asked is not None:
                raise Abandoned
            yield
        except SystemError as error:
            if self.asked is None or not _comes_of_abandoning(error):
                raise
            raise Abandoned from error
        finally:
            self._abandonable = False

    def settled(self) -> None:
        """What remains after a signal is cleaning up: no deadline and no further signal may end that."""
        self._settled = self.asked is not None
        self._stop_clock()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.overdue or self._settled:
            return
        if self.asked is not None:
            self.overdue = True
            raise Abandoned
        self.asked = number
        self._former_alarm = signal.signal(signal.SIGALRM, self._on_deadline)
        signal.setitimer(signal.ITIMER_REAL, self._deadline_seconds)
        if self._abandonable:
            raise Abandoned

    def _stop_clock(self) -> None:
        """The alarm clock is the process's: it is touched only while a deadline runs."""
        if self._former_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._former_alarm)
            self._former_alarm = None

    def _on_deadline(self, number: int, frame: FrameType | None) -> None:
        if self.overdue:
            return
        self.overdue = True
        raise Abandoned


def _comes_of_abandoning(error: BaseException | None) -> bool:
    """Compiled code that our handler interrupts may raise a SystemError of its own over what the handler raised."""
    while error is not None:
        if isinstance(error, Abandoned):
            return True
        error = error.__cause__ or error.__context__
    return False
