"""Writes fitted constants into the profile that is shipped, line by line, so that its comments and order stay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.facts.section import Section

PROFILE_FILE = Path(__file__).resolve().parents[2] / "flowrl" / "machine" / "catalogue" / "profile.toml"


def write_constants(path: Path, steps: Section) -> None:
    """Replace each fitted constant of the profile at `path`, its error (90 % of core records are nearer, their families
    left out) and its origin by those of the section of step times."""
    fitted: Mapping[str, Mapping[str, float]] = steps.summary["constants"]
    origin = f"fitted on {len(steps.rows)} step times of published runs (benchmarks/accuracy.py)"
    values = {name: float(found["value"]) for name, found in fitted.items()}
    likely = steps.summary["core, left out: 90th percentile"]["value"]
    if likely is not None:
        values["error"] = round(float(likely), 2)
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
            line = f"{line[: line.index('=')]}= {_toml(left.pop(name))}"
        elif name == "origin" and not section:
            line = f'origin = "{origin}"'
        lines.append(line)
    if left:
        raise KeyError(", ".join(left))
    return "\n".join(lines) + "\n"


def _toml(value: float) -> str:
    text = f"{value:.4g}"
    return text if set(text) & {".", "e"} else f"{text}.0"
