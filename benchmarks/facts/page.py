"""Writes what docs/cost/accuracy.md shows of a run of the benchmark: tables, constants and both pictures.

Takes the sections that a run made and the shipped profile; replaces the parts of the page between its marks and leaves
the words around them. Deterministic. Works nothing out that a section does not say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.facts.plot import picture
from benchmarks.facts.section import Section
from benchmarks.facts.times import spearman
from flowrl.machine.profile import Profile, value_of

Row = Mapping[str, Any]

PAGE = "accuracy.md"
SECTIONS = ("times", "rank", "phases", "microbatch")
"""What the page needs of the benchmark."""
PICTURES = (
    ("accuracy-shipped.svg", "shipped", "Step times by the shipped constants, fitted on all rows"),
    ("accuracy.svg", "left_out", "Step times, each family planned without it in the fit"),
)


def write_page(folder: Path, sections: Sequence[Section], profile: Profile) -> None:
    """The page's parts and the pictures. Raises KeyError for a mark that the page lacks."""
    made = {each.name: each for each in sections}
    steps = made["step times"]
    for name, key, title in PICTURES:
        (folder / name).write_text(picture(steps.rows, key, title), encoding="utf-8")
    text = (folder / PAGE).read_text(encoding="utf-8")
    parts = {
        "step times": _step_times(steps),
        "families": _families(steps.rows),
        "constants": _constants(steps, profile),
        "others": _others(made),
    }
    for name, part in parts.items():
        text = _replaced(text, name, part)
    (folder / PAGE).write_text(text, encoding="utf-8")


def _replaced(text: str, name: str, part: str) -> str:
    start, end = f"<!-- made: {name} -->", "<!-- end -->"
    if start not in text:
        raise KeyError(name)
    return re.sub(
        f"{re.escape(start)}.*?{re.escape(end)}",
        lambda _: f"{start}\n\n{part}\n\n{end}",
        text,
        count=1,
        flags=re.DOTALL,
    )


def _step_times(steps: Section) -> str:
    core = [row for row in steps.rows if row["core"]]
    said = [row for row in core if "gpu" not in row["filled"]]
    chosen = {
        "core": core,
        "core, GPU type in its field": said,
        "of them nothing filled but prompt lengths": [row for row in said if not set(row["filled"]) - {"prompt"}],
        "core, without those that their own notes doubt": [row for row in core if not row["doubted"]],
        "core, GPU type in its field, not doubted": [row for row in said if not row["doubted"]],
        "all, whatever was filled": steps.rows,
    }
    lines = [
        "| rows | number | shipped: median | left out: median | left out: 90th percentile | left out: Spearman |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in chosen.items():
        shipped, out = (sorted(abs(row[key]) for row in rows) for key in ("error_shipped", "error_left_out"))
        ranks = spearman(rows, "left_out")
        lines.append(
            f"| {name} | {len(rows)} | {median(shipped):.0%} | {median(out):.0%} | {_ninth(out):.0%} "
            f"| {'-' if ranks is None else f'{ranks:.2f}'} |"
        )
    lines.append("| bar (core) | | 20% | 30% | 60% | 0.90 |")
    lines.append(f"\n{len(steps.excluded)} records of steps have no row; the command lists each with its reason.")
    return "\n".join(lines)


def _ninth(ordered: Sequence[float]) -> float:
    """The 90th percentile, between the two nearest."""
    place = 0.9 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _families(rows: Sequence[Row]) -> str:
    lines = ["| family | rows | core | shipped: median error | left out: median error |", "|---|---|---|---|---|"]
    for family in sorted({str(row["family"]) for row in rows}):
        own = [row for row in rows if row["family"] == family]
        shipped, out = (median(row[key] for row in own) for key in ("error_shipped", "error_left_out"))
        core = sum(bool(row["core"]) for row in own)
        lines.append(f"| {family} | {len(own)} | {core} | {shipped:+.0%} | {out:+.0%} |")
    return "\n".join(lines)


def _constants(steps: Section, profile: Profile) -> str:
    tried: Mapping[str, Any] = steps.summary["constants"]
    lines = ["| constant | shipped | with a family left out |", "|---|---|---|"]
    for path in profile.free:
        low, high = tried[path]["left out"]
        lines.append(f"| `{path}` | {value_of(profile, path):.4g} | {low:.3g} to {high:.3g} |")
    return "\n".join(lines)


def _others(made: Mapping[str, Section]) -> str:
    ranks, batches, phases = (
        made[name].summary for name in ("rankings", "training micro-batches", "phases and ratios")
    )
    kinds = [
        f"- {name.removeprefix('right: ')}: {value}" for name, value in ranks.items() if name.startswith("right: ")
    ]
    lines = [
        f"{ranks['comparisons']} comparisons, {ranks['disputed within the data']} of them answered both ways by the",
        f"data. Right: {ranks['right']['value']:.0%} (bar {ranks['right']['bar']:.0%}); with comparisons of systems,",
        f"which are about software more than hardware, {ranks['right, comparisons of systems too']['value']:.0%}.",
        "",
        *kinds,
        "",
        *(f"- {name}: {_figure(value)}" for name, value in batches.items()),
        f"- phases and ratios alone: median error {phases['median |error|']:.0%} of {phases['rows']}",
    ]
    return "\n".join(lines)


def _figure(value: object) -> str:
    if isinstance(value, Mapping) and "bar" in value:
        return f"{_figure(value['value'])}, bar {_figure(value['bar'])}"
    return f"{value:.1%}" if isinstance(value, float) else str(value)
