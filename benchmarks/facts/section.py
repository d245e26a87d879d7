"""The contract between the parts of benchmarks/accuracy.py: the facts they read and the section each of them gives.

A part is a module with `rows(facts: Facts) -> Section`. It takes the folder of facts and gives rows, what it left out
with the reason, and its summary. It must not know of other parts, and never raises for an odd record: that record is
excluded with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
"""The facts that the repository carries."""


@dataclass(frozen=True)
class Facts:
    """The records of one folder. A file that is missing or is not JSON is an empty list of records."""

    folder: Path = DATA

    @cached_property
    def perf(self) -> list[dict[str, Any]]:
        """perf_published.json: published times, memory and rankings."""
        return self._records("perf_published.json")

    @cached_property
    def tracker(self) -> list[dict[str, Any]]:
        """fsdp_memory.json: peaks of a memory tracker."""
        return self._records("fsdp_memory.json")

    @cached_property
    def configs(self) -> list[dict[str, Any]]:
        """peer_configs.json: configurations published as working."""
        return self._records("peer_configs.json")

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        """bug_reports.json: issues of peers with their cause."""
        return self._records("bug_reports.json")

    def _records(self, name: str) -> list[dict[str, Any]]:
        """The records of a file: a list, or a mapping that holds one under `rows` or `records`."""
        try:
            read = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        if isinstance(read, Mapping):
            read = read.get("rows") or read.get("records") or []
        return [record for record in read if isinstance(record, dict)] if isinstance(read, list) else []


@dataclass(frozen=True)
class Section:
    """What one part found. `summary` maps a name to a figure, or to {value, bar, holds} where a bar applies."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    excluded: list[dict[str, str]] = field(default_factory=list)
    """`{id, reason}` of each record that could not be modelled."""
    summary: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """The table as a human reads it; made of the rows if empty."""


def bar(value: float | None, limit: float, *, at_most: bool = True) -> dict[str, Any]:
    """A figure of a summary beside its bar, and whether it holds (a figure that is missing does not)."""
    holds = value is not None and (value <= limit if at_most else value >= limit)
    return {"value": value, "bar": limit, "holds": holds}
