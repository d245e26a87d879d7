"""Files of one JSON object a line that a resumed run cuts back to its checkpoint. Knows the keys `stage` and `step`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flowrl.diag.diagnostic import FlowError, diagnose


class JsonLines:
    """A file that is added to. A number that is not finite is written as null."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")

    def add(self, lines: Iterable[Mapping[str, object]]) -> None:
        for line in lines:
            self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Make sure that all lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line. The last one may be cut short by a run that was killed; it is left out.

    Raises FlowError FR0908 if another line is not a JSON object.
    """
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, msgspec.ValidationError) as fault:
            raise FlowError(diagnose("FR0908", path=path, reason=f"line {number} is not a JSON object")) from fault


def cut_back(path: Path, stages: Sequence[str], stage: str, step: int) -> None:
    """Keep the lines of earlier stages and those of `stage` up to `step`. The file is replaced in one go."""
    if not path.exists():
        return
    order = {name: place for place, name in enumerate(stages)}
    last = (order[stage], step)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        for line in read_lines(path):
            if (order[line["stage"]], line["step"]) <= last:
                file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
