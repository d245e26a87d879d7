"""What a section of search.py or runtime.py found: lines to read, rows for machines, and bars that hold or do not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_EVERY_SECONDS = 2.0


@dataclass(frozen=True)
class Bar:
    """A demand beside what was found."""

    what: str
    found: str
    demand: str
    holds: bool

    @property
    def text(self) -> str:
        return f"{'ok    ' if self.holds else 'MISSED'} {self.what}: {self.found} (demand: {self.demand})"


@dataclass
class Outcome:
    name: str
    lines: list[str] = field(default_factory=list[str])
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    bars: list[Bar] = field(default_factory=list[Bar])
    seconds: float = 0.0
    clock: str = "s of the processor"
    """What `seconds` are."""

    @property
    def holds(self) -> bool:
        return all(bar.holds for bar in self.bars)

    @property
    def text(self) -> str:
        head = f"== {self.name} ({self.seconds:.0f} {self.clock})"
        return "\n".join([head, *self.lines, *(bar.text for bar in self.bars)])

    def bar(self, what: str, found: object, demand: str, holds: bool) -> None:
        self.bars.append(Bar(what, str(found), demand, holds))


class Progress:
    """Tells on stderr how far a section is, now and then."""

    def __init__(self, what: str) -> None:
        self.what, self._told = what, time.monotonic()

    def tell(self, done: int, of: int, more: str = "") -> None:
        now = time.monotonic()
        if now - self._told >= _EVERY_SECONDS or done == of:
            self._told = now
            sys.stderr.write(f"{self.what}: {done} of {of}{f', {more}' if more else ''}\n")
            sys.stderr.flush()


def run_sections(sections: Mapping[str, Callable[[], Outcome]], *, as_json: bool, is_wall: bool = False) -> int:
    """Run them in order and print each as it ends, or all as JSON; the exit status. `is_wall`: time by the wall."""
    clock, outcomes = time.monotonic if is_wall else time.process_time, list[Outcome]()
    for section in sections.values():
        start = clock()
        outcome = section()
        outcome.seconds = clock() - start
        outcome.clock = "s" if is_wall else outcome.clock
        outcomes.append(outcome)
        if not as_json:
            sys.stdout.write(f"{outcome.text}\n\n")
            sys.stdout.flush()
    if as_json:
        sys.stdout.write(json.dumps({"sections": [asdict(each) for each in outcomes]}, indent=1) + "\n")
    return 0 if all(each.holds for each in outcomes) else 1
