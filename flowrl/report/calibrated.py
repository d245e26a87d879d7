"""A calibration as text: a row an op, the constants that moved, and what to write under `assume:`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from flowrl.explain.calibration import Calibration, Row
from flowrl.report.numbers import percent, seconds

HEAD = ("op", "before", "measured", "p90", "after", "error before", "after")


def render_calibration(found: Calibration) -> str:
    """Errors are of the half of the repeats that no constant was fitted to."""
    return "\n".join([*_table(found), "", *_moved(found), *_assume(found)]) + "\n"


def _table(found: Calibration) -> Iterator[str]:
    several = len({row.stage for row in found.rows}) > 1
    rows = [HEAD, *(_row(row, several) for row in found.rows)]
    rows.append(("all", "", "", "", "", percent(found.error_before), percent(found.error_after)))
    wide = [max(len(row[place]) for row in rows) for place in range(len(HEAD))]
    for row in rows:
        first, *rest = (
            f"{cell:<{wide[place]}}" if place == 0 else f"{cell:>{wide[place]}}" for place, cell in enumerate(row)
        )
        yield "  ".join([first, *rest]).rstrip()
    if any(row.is_assumed for row in found.rows):
        yield "* a function of the flow: its seconds are for `assume:`, not for a profile"
    if any(row.is_ruled for row in found.rows):
        yield "~ how many tokens its rows have follows a rule, not the run: nothing is fitted to it"


def _row(row: Row, several: bool) -> tuple[str, ...]:
    name = f"{row.stage}/{row.name}" if several else row.name
    return (
        name + (" *" if row.is_assumed else " ~" if row.is_ruled else ""),
        seconds(row.before),
        seconds(row.measured),
        seconds(row.p90),
        seconds(row.after),
        percent(row.error_before),
        percent(row.error_after),
    )


def _moved(found: Calibration) -> Iterator[str]:
    if not found.moved:
        yield "no constant moved"
        return
    wide = max(len(each.path) for each in found.moved)
    for each in found.moved:
        bound = "  at its bound" if each.at_bound else ""
        yield f"{each.path:<{wide}}  {each.before:.4g} → {each.after:.4g}{bound}"


def _assume(found: Calibration) -> Iterator[str]:
    """YAML that a flow may hold."""
    if not found.assume:
        return
    yield ""
    yield "assume:  # as the run had it"
    for id, said in found.assume.items():
        yield f"  {id}: {{{', '.join(f'{key}: {_yaml(value)}' for key, value in said.items())}}}"


def _yaml(value: Any) -> str:
    if isinstance(value, dict):
        said = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in said.items()) + "}"
    if not isinstance(value, float):
        return str(value)
    digits, e, power = f"{value:g}".partition("e")
    # YAML 1.1 takes a number with a power for one only if it has a point.
    return f"{digits}.0e{power}" if e and "." not in digits else f"{digits}{e}{power}"
