"""A sweep as a table, as JSON and as CSV. Takes a Sweep and nothing else; gives lines of at most `width` columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from flowrl.explain.sweep import FITS, INFEASIBLE, MONEY, PER_SAMPLE, Point, Sweep
from flowrl.report.numbers import count, percent, rate, seconds
from flowrl.report.page import finish, joined, shorten, wrapped

MARK = "*"
"""Before a point of the front."""
NARROWEST_REASON = 12
CSV_FIGURES = (
    "cluster",
    "devices",
    "verdict",
    "codes",
    "used",
    "step_seconds",
    "samples",
    "samples_per_second",
    "gpu_seconds",
    "price",
    "tightest",
    "bound",
    "bound_share",
    "front",
    "reason",
)


def sweep_json(found: Sweep) -> str:
    """All of it: the fields of Sweep, each point with its ledger lines."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()


def sweep_csv(found: Sweep) -> str:
    """A line a point, a column an axis, then the figures in their base units; what is not known is empty."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*found.axes, *CSV_FIGURES])
    for point in found.points:
        rows.writerow([*(point.settings[name] for name in found.axes), *map(_cell, _figures(point))])
    return out.getvalue()


def _figures(point: Point) -> list[object]:
    bound = point.bound
    return [
        point.cluster,
        point.devices,
        point.verdict,
        " ".join(point.codes),
        point.used,
        point.step_seconds,
        point.samples,
        point.samples_per_second,
        point.gpu_seconds,
        point.price,
        point.tightest,
        None if bound is None else bound.what,
        None if bound is None else bound.share,
        point.front,
        point.reason,
    ]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else "yes" if value is True else "no" if value is False else str(value)


def render_sweep(found: Sweep, width: int = 100, color: bool = False, ascii: bool = False) -> str:
    """The table ending in a newline: a row a point, those of the front marked, and what the mark means."""
    width = max(width, 60)
    lines = joined(_title(found), width, " ", first=" ")
    lines += ["", *_table(found, width), "", *_legend(found, width)]
    return finish(lines, width, color, ascii)


def _title(found: Sweep) -> list[str]:
    done, plural = len(found.points), "" if found.planned == 1 else "s"
    points = (
        f"{count(done)} of {count(found.planned)} point{plural}"
        if found.interrupted
        else f"{count(done)} point{plural}"
    )
    parts = [found.name, f"{points}, each a plan"]
    parts += [f"placed for {found.objective}"] if found.objective != "step_time" else []
    parts += list(found.fixed)
    return [*parts, "interrupted"] if found.interrupted else parts


def _table(found: Sweep, width: int) -> list[str]:
    """A head and a row a point: mark, settings, then figures, or why there are none."""
    priced = any(point.price is not None for point in found.points)
    idle = any(point.used not in (None, point.devices) for point in found.points)
    figures = [*(["used"] if idle else []), "step", "samples/s", "GPU-s", *(["price"] if priced else []), "fullest"]
    settings = [list(point.settings.values()) for point in found.points]
    cells = [_cells(point, idle, priced) if point.verdict == FITS else [] for point in found.points]
    own = _columns([_short_names(list(found.axes)), *settings], [not _is_number(each) for each in found.axes.values()])
    rest = _columns([[*figures, "bound by"], *(each for each in cells if each)], [False] * len(figures) + [True])
    lines = [f" {' ':<{len(MARK)}}  {own[0]}  {rest[0]}"]
    filled = iter(rest[1:])
    for point, start, figure in zip(found.points, own[1:], cells, strict=True):
        head = f" {MARK if point.front else ' ':<{len(MARK)}}  {start}  "
        lines.append(head + (next(filled) if figure else _why(point, width - len(head))))
    return lines


def _short_names(axes: Sequence[str]) -> list[str]:
    """The last word of each key, where no two axes share it."""
    last = [name.rpartition(".")[2] for name in axes]
    return [short if last.count(short) == 1 else name for name, short in zip(axes, last, strict=True)]


def _columns(rows: Sequence[Sequence[str]], left: Sequence[bool]) -> list[str]:
    """Cells in columns; `left` says which of them begin on one line, the others end on one."""
    wide = [max(len(row[at]) for row in rows) for at in range(len(left))]
    return [
        "  ".join(
            f"{text:<{size}}" if is_left else f"{text:>{size}}"
            for text, size, is_left in zip(row, wide, left, strict=True)
        )
        for row in rows
    ]


def _is_number(values: Sequence[str]) -> bool:
    return all(value.replace(".", "", 1).isdecimal() for value in values)


def _cells(point: Point, idle: bool, priced: bool) -> list[str]:
    """Figures of a point that fits, in the order of the head."""
    bound = "slots of the host" if point.bound is None else f"{point.bound.what} {percent(point.bound.share)}"
    return [
        *([count(point.used or 0)] if idle else []),
        seconds(point.step_seconds or 0.0),
        rate(point.samples_per_second or 0.0),
        rate(point.gpu_seconds or 0.0),
        *([f"{point.price:,.2f}" if point.price is not None else ""] if priced else []),
        percent(point.tightest or 0.0),
        bound,
    ]


def _why(point: Point, room: int) -> str:
    """Why there is no plan, with its code."""
    code = point.codes[0] if point.codes else ""
    if point.verdict == INFEASIBLE:
        over = "" if point.tightest is None else f": the fullest device at {percent(point.tightest)}"
        return shorten(f"{code} does not fit{over}", max(room, NARROWEST_REASON))
    return shorten(f"{code} {point.reason or ''}".strip(), max(room, NARROWEST_REASON))


def _legend(found: Sweep, width: int) -> list[str]:
    what = "money" if found.cost == MONEY else "GPU-seconds"
    per = "a sample (steps differ in how many they have)" if found.per == PER_SAMPLE else "a step"
    text = f"{MARK} nothing is both as fast and as cheap: seconds against {what} of {per}"
    if not found.fits:
        text = "no point fits"
    return wrapped(text, width, "   ", " ")
