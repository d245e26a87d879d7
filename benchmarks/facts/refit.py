"""Writes fitted constants into the profile that is shipped, line by line, so that its comments and order stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.facts.section import Section

PROFILE_FILE = Path(__file__).resolve().parents[2] / "flowrl" / "machine" / "catalogue" / "profile.toml"


def write_constants(path: Path, steps: Section) -> None:
    """Replace each fitted constant of the profile at `path`, and its origin, by those of the section of step times."""
    fitted: Mapping[str, Mapping[str, float]] = steps.summary["constants"]
    origin = f"fitted on {len(steps.rows)} step times of published runs (benchmarks/accuracy.py)"
    values = {name: float(found["value"]) for name, found in fitted.items()}
    path.write_text(with_values(path.read_text(encoding="utf-8"), values, origin), encoding="utf-8")


def with_values(text: str, values: Mapping[str, float], origin: str) -> str:
    """The TOML text with the figures at dotted paths replaced, and its first `origin`. Raises KeyError for a path that
    it does not have."""
    left, section, lines = dict(values), "", list[str]()
    for line in text.splitlines():
        header = re.fullmatch(r"\[([^\]]+)\]", line)
        if header:
            section = header[1].replace('"', "")
        key = re.match(r"(\w+) = ", line)
        name = f"{section}.{key[1]}" if key and section else (key[1] if key else "")
        if section != "free" and name in left:
            line = f"{line[: line.index('=')]}= {left.pop(name):.4g}"
        elif name == "origin" and not section:
            line = f'origin = "{origin}"'
        lines.append(line)
    if left:
        raise KeyError(", ".join(left))
    return "\n".join(lines) + "\n"
