"""Sections as text that a human reads in 120 columns. Takes Sections, gives text; works nothing out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.facts.section import Section

WIDTH = 120
LETTERS = {
    "gpu": "g",
    "prompt": "p",
    "response": "r",
    "most response": "m",
    "batch": "b",
    "samples": "n",
    "updates": "u",
    "train layout": "t",
    "rollout layout": "l",
    "split": "s",
    "lag": "a",
}
"""A letter for each gap that a rule closed."""


def text_of(section: Section) -> str:
    """The section: its rows, what was left out and why, and its summary."""
    lines = [f"== {section.name} ".ljust(WIDTH, "=")]
    lines.extend([section.text.rstrip()] if section.text else _rows(section.rows))
    if section.excluded:
        lines.append(f"-- left out: {len(section.excluded)}")
        lines.extend(_excluded(section.excluded))
    lines.append("-- summary")
    lines.extend(_summary(section.summary))
    return "\n".join(lines)


def step_times(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of step times: seconds measured and predicted, errors (fitted on all, family left out), phases."""
    letters = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    lines = [
        "* core: GPU type, devices, a length and a layout are said (the bars); ! does not fit; ? its notes doubt it",
        f"filled by a rule: {letters}",
        f"{'record':<41}{'filled':<9}{'measured':>8}{'planned':>8}{'error':>7}{'out':>6}  phases (measured)",
    ]
    family = None
    for row in sorted(rows, key=lambda each: str(each["family"])):
        if row["family"] != family:
            family = row["family"]
            lines.append(f"[{family}]")
        lines.append(_step_row(row)[:WIDTH].rstrip())
    return "\n".join(lines)


def _step_row(row: Mapping[str, Any]) -> str:
    marks = ("*" if row["core"] else " ") + ("" if row["fits"] else "!") + ("?" if row["doubted"] else "")
    filled = "".join(LETTERS.get(name, "?") for name in row["filled"])
    out = f"{row['error_left_out']:+6.0%}" if "error_left_out" in row else " " * 7
    measured: Mapping[str, float] = row["measured_phases"]
    shown = {
        name: value for name, value in row["phases"].items() if name in measured or value >= 0.02 * row["predicted"]
    }
    phases = " ".join(
        f"{name} {value:.{0 if value >= 9.5 else 1}f}" + (f"({measured[name]:.0f})" if name in measured else "")
        for name, value in shown.items()
    )
    if "wait" in measured:
        phases += f" wait({measured['wait']:.0f})"
    name = f"{row['id'][:38]}{marks}"
    return f"{name:<41}{filled:<9}{row['measured']:8.1f}{row['predicted']:8.1f}{row['error']:+7.0%}{out}  {phases}"


def _rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        text = "  ".join(f"{key} {_value(value)}" for key, value in row.items() if key != "id")
        yield f"{row.get('id', '')!s:<44} {text}"[:WIDTH].rstrip()


def _excluded(excluded: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """By reason, with the ids that share it."""
    by_reason: dict[str, list[str]] = {}
    for each in excluded:
        by_reason.setdefault(each["reason"], []).append(each["id"])
    for reason, ids in sorted(by_reason.items()):
        yield f"{reason[: WIDTH - 6]} ({len(ids)})"
        yield from _wrapped(ids)


def _wrapped(words: Sequence[str]) -> Iterator[str]:
    line = "   "
    for word in words:
        if len(line) + len(word) + 1 > WIDTH:
            yield line
            line = "   "
        line += f" {word}"
    yield line


def _summary(summary: Mapping[str, Any]) -> Iterator[str]:
    for name, value in summary.items():
        if isinstance(value, Mapping) and {"value", "bar", "holds"} <= value.keys():
            holds = "holds" if value["holds"] else "DOES NOT HOLD"
            yield f"{name:<72}{_value(value['value']):>10}  bar {_value(value['bar'])}: {holds}"
        elif isinstance(value, Mapping):
            yield f"{name}:"
            yield from (f"    {key:<56}{_value(inner)}" for key, inner in value.items())
        else:
            yield f"{name:<72}{_value(value):>10}"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_value(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_value(each) for each in value)
    return "-" if value is None else str(value)
