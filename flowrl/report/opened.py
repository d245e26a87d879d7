"""An opened number of a plan as text: what it is, its formula with the values in it, each input with its origin.

Takes an Opened, gives lines no wider than asked for. Knows no plan.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from flowrl.explain.opened import Opened, OpenedInput
from flowrl.plan.plan import Decision
from flowrl.report.numbers import gib, percent
from flowrl.report.numbers import seconds as time_text

INDENT = "  "
LARGEST_WHOLE = 1e15
"""Whole numbers beyond it are written with a power of ten."""


def render_opened(opened: Opened, width: int = 100) -> str:
    """The number first, then what its inputs stand for, each under its own key."""
    blocks = ["\n".join(_block(each, width)) for each in _flat(opened)]
    return "\n\n".join(blocks) + "\n"


def _flat(opened: Opened) -> Iterator[Opened]:
    yield opened
    for each in opened.below:
        yield from _flat(each)


def _block(opened: Opened, width: int) -> Iterator[str]:
    if opened.decision is not None:
        yield f"{opened.key}  {opened.what}"
        yield from _decision(opened, opened.decision, width)
        return
    value = "" if opened.value is None else f"  {_value(opened.value, opened.unit)}"
    limit = "" if opened.limit is None else f" of {_brief(opened.limit, opened.unit)}"
    yield from _wrapped(f"{opened.key}  {opened.what}{value}{limit}", width, "", INDENT)
    if opened.formula is not None:
        yield from _worked(opened, width)
    for note in opened.notes:
        yield from _wrapped(note, width, INDENT, INDENT * 2)
    yield from _parts(opened, width)


def _worked(opened: Opened, width: int) -> Iterator[str]:
    """`= L*T*a`, `= 3*6656*14108`, `= 281708544 bytes`, then the inputs."""
    assert opened.formula is not None
    given = {each.name: number(each.value) for each in opened.inputs}
    filled = re.sub(r"[A-Za-z_]\w*", lambda found: given.get(found.group(), found.group()), opened.formula)
    yield from _wrapped(f"= {opened.formula}", width, INDENT, INDENT * 3)
    if filled != opened.formula:
        yield from _wrapped(f"= {filled}", width, INDENT, INDENT * 3)
    yield f"{INDENT}= {number(opened.again or 0.0)} {opened.unit}{_check(opened)}"
    yield from _inputs(opened.inputs, width)


def _check(opened: Opened) -> str:
    """Bytes are rounded up to whole ones; anything else that differs would be a fault of ours, and is told."""
    value, again = opened.value or 0.0, opened.again or 0.0
    if abs(value - again) <= 1e-9 * max(1.0, abs(value)):
        return ""
    if opened.unit == "bytes" and 0 <= value - again < 1:
        return f", rounded up to {number(value)}"
    return f", not the {number(value)} of the plan"


def _inputs(inputs: Sequence[OpenedInput], width: int) -> Iterator[str]:
    names = max((len(each.name) for each in inputs), default=0)
    values = max((len(number(each.value)) for each in inputs), default=0)
    for each in inputs:
        opens = f" → {each.opens}" if each.opens and not each.origin.startswith("decided") else ""
        head = f"{INDENT * 2}{each.name:<{names}}  {number(each.value):>{values}}  "
        yield from _wrapped(each.origin + opens, width, head, " " * len(head))


def _parts(opened: Opened, width: int) -> Iterator[str]:
    parts = opened.parts
    whole = opened.value if opened.adds_up and opened.value else None
    keys = max((len(part.key) for part in parts), default=0)
    for part in parts:
        limit = f" of {_brief(part.limit, part.unit)}" if part.limit is not None else ""
        share = f"  {percent(part.value / whole)}" if whole else ""
        text = f"{part.key:<{keys}}  {_brief(part.value, part.unit)}{limit}{share}"
        yield from _wrapped(text, width, INDENT * 2, INDENT * 3)
    if opened.adds_up and parts:
        unit = parts[0].unit
        yield f"{INDENT * 2}sum {_value(sum(part.value for part in parts), unit)}"


def _decision(opened: Opened, decision: Decision, width: int) -> Iterator[str]:
    yield from _wrapped(decision.text, width, INDENT, INDENT * 2)
    rows = [("chosen", f"{decision.chosen} ({decision.reason}: {_words(opened, decision.reason)})")]
    for each in decision.rejected:
        delta = f", {each.delta}" if each.delta else ""
        rows.append(("rejected", f"{each.option} ({each.reason}: {_words(opened, each.reason)}){delta}"))
    if not decision.rejected:
        rows.append(("rejected", "nothing: there was no other option"))
    rows.append(("override", decision.override or "no key of the flow changes it"))
    rows += [("search", note) for note in opened.notes]
    for name, text in rows:
        yield from _wrapped(text, width, f"{INDENT}{name:<8}  ", " " * 12)
    for place, line in enumerate(opened.write):
        yield from _wrapped(line.lstrip(), width, f"{INDENT}{'' if place else 'write':<8}  {_indent(line)}", " " * 20)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _words(opened: Opened, reason: str) -> str:
    return opened.reasons.get(reason, reason.replace("_", " "))


def number(value: float) -> str:
    """A number to calculate with: whole ones in full, others to six figures."""
    if value == int(value) and abs(value) < LARGEST_WHOLE:
        return str(int(value))
    return f"{value:.6g}"


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{gib(value)} GiB ({value:,.0f} bytes)" if value >= 2**20 else f"{value:,.0f} bytes"
    if unit == "seconds":
        return time_text(value)
    return f"{value:,.6g} {unit}".rstrip()


def _brief(value: float, unit: str) -> str:
    return f"{gib(value)} GiB" if unit == "bytes" and value >= 2**20 else _value(value, unit)


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    if len(first) + len(text) <= width:
        return [first + text]
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
