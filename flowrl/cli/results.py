"""What a command came to, in one line or as a JSON object. Takes what the api gives, gives text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrl.api import Fixed, Key
    from flowrl.runtime.measure.session import Measured
    from flowrl.runtime.result import RunResult


def fixed_line(changed: Sequence[Fixed], is_clean: bool) -> str:
    """`2 places mended`, or that there was nothing to do. `is_clean`: whether the last check found no fault."""
    edits = sum(fixed.edits for fixed in changed)
    if edits == 0:
        return "nothing to mend" if is_clean else "nothing mended, for no fix is certain"
    return f"{edits} place{'' if edits == 1 else 's'} mended"


def key_lines(keys: Sequence[Key], width: int) -> str:
    """Keys of the language, a table each."""
    return "\n".join(_key(key, width) for key in keys)


def _key(key: Key, width: int) -> str:
    rows = {"type": key.type, "unit": key.unit, "default": key.default, "meaning": key.doc, "keys": ", ".join(key.keys)}
    lines = [key.path]
    for title, text in rows.items():
        if text:
            lines += textwrap.wrap(text, width, initial_indent=f"  {title:<8} ", subsequent_indent=" " * 11)
    return "\n".join(lines) + "\n"


def result_line(result: RunResult) -> str:
    """The closing line of a run: the mean reward before and after, and where everything lies."""
    places = [result.plan, result.trace, *([result.checkpoint] if result.checkpoint else [])]
    lie = ", ".join(str(place.relative_to(result.folder)) for place in places)
    return f"{reward_words(result)} · {result.folder}: {lie}"


def reward_words(result: RunResult) -> str:
    steps = ", ".join(f"{stage.name} {stage.steps}" for stage in result.stages)
    if result.metric is None or result.first_reward is None or result.last_reward is None:
        return f"{result.state}, steps: {steps}"
    return f"mean reward {result.first_reward:.3f} before, {result.last_reward:.3f} after ({result.metric})"


def result_record(result: RunResult) -> dict[str, Any]:
    """The same, for `--format json`. Paths are as given by `--runs`."""
    return {
        "run": str(result.folder),
        "state": str(result.state),
        "metric": result.metric,
        "reward_before": result.first_reward,
        "reward_after": result.last_reward,
        "plan": str(result.plan),
        "trace": str(result.trace),
        "checkpoint": path_or_none(result.checkpoint),
        "stages": [
            {"name": stage.name, "steps": stage.steps, "checkpoint": path_or_none(stage.checkpoint)}
            for stage in result.stages
        ],
    }


def path_or_none(path: Path | None) -> str | None:
    return None if path is None else str(path)


def measured_lines(measured: Measured, file: Path, width: int) -> str:
    """A row a figure, what is missing, and where it was written."""
    best = measured.by_path()
    rows = [(path, f"{figure.value:.4g}", f"±{figure.spread:.0%}", figure.text) for path, figure in best.items()]
    wide = [max((len(row[place]) for row in rows), default=0) for place in range(3)]
    lines: list[str] = []
    for path, value, spread, text in rows:
        head = f"{path:<{wide[0]}}  {value:>{wide[1]}}  {spread:>{wide[2]}}  "
        lines += textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head))
    lines += [f"also: {each.text}" for each in measured.figures if each.path is None]
    if measured.missing:
        lines += textwrap.wrap(f"not measured, as FlowRL assumes: {', '.join(measured.missing)}", width)
    took = f"measured on {measured.where} in {measured.seconds:.0f} s"
    kept = f"wrote {file}, {took}; flowrl plan FLOW --profile {file}"
    lines += textwrap.wrap(
        kept if measured.figures else "interrupted before anything was measured; nothing is written",
        width,
        break_long_words=False,
    )
    return "\n".join(lines)


def measured_record(measured: Measured, file: Path) -> dict[str, Any]:
    """The same, for `--format json`."""
    return {
        "file": str(file) if measured.figures else None,
        "where": measured.where,
        "seconds": measured.seconds,
        "interrupted": measured.interrupted,
        "missing": list(measured.missing),
        "figures": [
            {"path": each.path, "value": each.value, "spread": each.spread, "repeats": each.repeats, "how": each.text}
            for each in measured.figures
        ],
    }
