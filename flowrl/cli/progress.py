"""What a long command shows while it works: a bar with the phase and the time left on a terminal, a line a phase
elsewhere. Writes to stderr; decides nothing."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

MINUTE = 60


class Moment(Protocol):
    """How far a work of several phases is."""

    @property
    def phase(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def phases(self) -> int: ...
    @property
    def left_seconds(self) -> float | None: ...


class PhaseLines:
    """`measuring  3/7  writes to disk  left 12 s`"""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what, self._out = what, stream or sys.stderr

    def tell(self, moment: Moment) -> None:
        if moment.phase:
            place = f"{moment.done + 1}/{moment.phases}"
            self._out.write(f"{self._what}  {place}  {moment.phase}{left(moment, '  ')}\n")
            self._out.flush()

    def close(self) -> None:
        return


class PhaseBar:
    """The same as one bar."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            console=Console(file=stream or sys.stderr),
        )
        self._task = self._bars.add_task(what, total=None, told="")
        self._bars.start()

    def tell(self, moment: Moment) -> None:
        told = f"{moment.phase}{left(moment, ' · ')}" if moment.phase else ""
        self._bars.update(self._task, total=moment.phases, completed=moment.done, told=told)

    def close(self) -> None:
        self._bars.stop()


def phase_view(what: str) -> PhaseLines | PhaseBar:
    return PhaseBar(what) if sys.stderr.isatty() else PhaseLines(what)


def left(moment: Moment, separator: str) -> str:
    """` · left 48 s`; nothing while it is not known."""
    return "" if moment.left_seconds is None else f"{separator}left {duration(moment.left_seconds)}"


def duration(seconds: float) -> str:
    """`48 s`, `1 min 40 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < MINUTE else f"{whole // MINUTE} min {whole % MINUTE:02d} s"
