"""A run beside its plan as text: the rows of the plan, estimated and measured, the largest difference first."""

from __future__ import annotations

from flowrl.explain.ran import Ran, RanRow, RanStage
from flowrl.report.numbers import count, seconds
from flowrl.report.page import finish, joined, shorten

_OFF = 1.25
"""A ratio beyond it, either way, is marked."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE = 32


def render_ran(report: Ran, width: int = 100, color: bool = False, ascii: bool = False) -> str:
    """For each stage its step and a table, then the metrics; lines of at most `width` columns."""
    lines = [f" {report.name} · {report.folder}{f' · {report.state}' if report.state else ''}"]
    for stage in report.stages:
        lines += ["", *_stage(stage, width, len(report.stages) > 1)]
    lines += _curves(report, width)
    resume = [f"flowrl resume {report.folder}"] if report.state == "interrupted" else []
    follow = [*resume, f"flowrl report {report.folder} --format html", f"flowrl calibrate {report.folder}"]
    lines += ["", *joined([*follow, f"flowrl trace {report.folder}"], width, " " * 11, first=" next      ")]
    return finish([shorten(line, width) for line in lines], width, color, ascii)


def _stage(stage: RanStage, width: int, several: bool) -> list[str]:
    name = f"{stage.name}: " if several else ""
    if stage.measured_step_seconds is None:
        return [f" {name}no whole step"]
    ratio = stage.measured_step_seconds / stage.estimated_step_seconds if stage.estimated_step_seconds > 0 else 0.0
    head = f" {name}step ≈ {seconds(stage.estimated_step_seconds)} estimated, {seconds(stage.measured_step_seconds)}"
    lines = [f"{head} measured × {ratio:.2f} · {count(stage.steps)} steps", ""]
    names = min(max((len(row.instruction) for row in stage.rows), default=0), max(width - 44, 20))
    lines.append(f" {'instruction':<{names}}  {'estimated':>10}  {'measured':>10}  {'×':>6}")
    lines += [_row(row, names) for row in stage.rows]
    return lines


def _row(row: RanRow, names: int) -> str:
    mark = " !" if not 1 / _OFF <= row.ratio <= _OFF else ""
    ratio = f"{row.ratio:.2f}" if row.ratio < 1000 else "-"
    times = f"{seconds(row.estimated_seconds):>10}  {seconds(row.measured_seconds):>10}  {ratio:>6}{mark}"
    return f" {shorten(row.instruction, names):<{names}}  {times}"


def _curves(report: Ran, width: int) -> list[str]:
    if not report.curves:
        return []
    names = min(max(len(name) for name in report.curves), max(width - _CURVE - 28, 20))
    lines = [""]
    for name, points in report.curves.items():
        values = [value for _, value in points]
        lines.append(f" {shorten(name, names):<{names}}  {_sparkline(values)}  {values[0]:.4g} to {values[-1]:.4g}")
    return lines


def _sparkline(values: list[float]) -> str:
    """The means of up to 32 equal parts of the run, as blocks between the smallest and the largest."""
    size = min(len(values), _CURVE)
    parts = [values[place * len(values) // size : (place + 1) * len(values) // size] for place in range(size)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    if high == low:
        return _BLOCKS[0] * size
    return "".join(_BLOCKS[round((mean - low) / (high - low) * (len(_BLOCKS) - 1))] for mean in means)
