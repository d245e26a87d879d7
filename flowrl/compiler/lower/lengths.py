"""Lengths of responses that a flow takes from a file: what an earlier run or a data set was measured to have.

Takes a stage and what its `assume:` says; reads the file and gives numbers. Knows no placement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from flowrl.compiler.lower.stage import Stage
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.spec.schema import LengthDocument

FIELD = "response_tokens"
LONGEST_LINE = 1 << 24
"""Characters; far more than a prompt and its response have. A device such as /dev/zero has one line without end."""


def measured(stage: Stage, id: str, said: LengthDocument) -> tuple[float, ...]:
    """The numbers of `samples`, lines without any left out; empty if there is no file. Raises FlowError FR0526 for a
    file that cannot be read or holds none, and where there is neither a file nor a mean."""
    path = ("assume", id, FIELD)
    if said.samples is None:
        if said.mean is None:
            raise FlowError(diagnose("FR0526", stage.span(*path), problem="neither `mean` nor `samples` is given"))
        return ()
    try:
        found = tuple(lengths_in(Path(stage.spec.folder) / said.samples))
    except (OSError, ValueError) as error:
        plain = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        why = (getattr(error, "strerror", None) or plain).lower()
        raise FlowError(diagnose("FR0526", stage.span(*path, "samples"), problem=f"`{said.samples}`: {why}")) from None
    if not found:
        problem = f"`{said.samples}` has no line with a number or with `{FIELD}`"
        raise FlowError(diagnose("FR0526", stage.span(*path, "samples"), problem=problem))
    return found


def lengths_in(path: Path) -> Iterator[float]:
    """Read line by line, since rows of a run hold whole texts. Raises OSError and ValueError."""
    with path.open(encoding="utf-8") as file:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise ValueError(f"a line has {LONGEST_LINE:,} characters or more")
            length = _length(line)
            if length is not None:
                yield length


def _length(line: str) -> float | None:
    """The number of a line, if it has one that is at least 0."""
    try:
        value: Any = json.loads(line)
    except ValueError:
        return None
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get(FIELD)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return float(value)
