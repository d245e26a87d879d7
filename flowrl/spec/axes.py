"""The axes of a sweep, as flags give them: `--gpus 8,16`, `--gpu H100-80G,H20`, `--set KEY=V1,V2`; and prices.

A comma ends a value unless it stands in quotes, brackets or braces, as in a YAML list. Takes the texts of the flags,
gives values with their places, or every fault of them at once. Knows no devices and no clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flowrl.diag.diagnostic import Diagnostic, FlowError, Help, diagnose
from flowrl.diag.span import Span

GPUS, GPU, SET, PRICE = "--gpus", "--gpu", "--set", "--price"
_OPENING, _CLOSING, _QUOTES = "[{", "]}", "'\""
_BEFORE_A_QUOTE = ",[{:="


@dataclass(frozen=True, slots=True)
class Value:
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Axis:
    """What one flag, or several of one name, lets vary."""

    flag: str
    """`--gpus`, `--gpu` or `--set`."""
    name: str
    """The key of the flow, or the group of nodes; empty where no group is named."""
    values: tuple[Value, ...]
    """Each once, in the order given."""
    place: Span
    """Of the name where it is first written, else of the first value."""

    @property
    def title(self) -> str:
        """`gpus`, `gpu of rollout`, `step.prompts`."""
        if self.flag == SET:
            return self.name
        return f"{self.flag[2:]} of {self.name}" if self.name else self.flag[2:]


def split_values(text: str) -> list[tuple[int, str]]:
    """The values of a list without its brackets, each with where it begins; blanks around them are left out."""
    marks = [-1, *_commas(text), len(text)]
    found: list[tuple[int, str]] = []
    for before, end in pairwise(marks):
        piece = text[before + 1 : end]
        blank = len(piece) - len(piece.lstrip())
        found.append((before + 1 + blank, piece.strip()))
    return found


def _commas(text: str) -> Iterator[int]:
    """Places of the commas between values. In single quotes a quote is written twice, in double ones after a `\\`."""
    depth, quote, last, skip = 0, "", ",", False
    for at, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = (quote == '"' and char == "\\") or (quote == "'" and text[at : at + 2] == "''")
            quote = "" if char == quote and not skip else quote
        elif char in _QUOTES and last in _BEFORE_A_QUOTE:
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif char == "," and not depth:
            yield at
        last = last if char.isspace() else char


def read_axes(gpus: Sequence[str], gpu: Sequence[str], sets: Sequence[str]) -> tuple[Axis, ...]:
    """GPUs by kind first, then how many, then the keys of the flow, each in the order of its first flag.

    Raises FlowError FR0740 with every fault: no value, one that is empty, a number of GPUs that is none. What is wrong
    with a key or a value of the flow is told where it is planned.
    """
    report: list[Diagnostic] = []
    kinds, counts = _by_group(GPU, gpu, report), _by_group(GPUS, gpus, report)
    for axis in counts:
        report += [fault for value in axis.values if (fault := _count_fault(value)) is not None]
    keys = list(_keys(sets, report))
    if report:
        raise FlowError(report)
    return (*kinds, *counts, *keys)


def read_prices(prices: Sequence[str]) -> dict[str, tuple[float, Span]]:
    """Price of a GPU-hour by name of the device. Raises FlowError FR0740 for what is not NAME=NUMBER."""
    found: dict[str, tuple[float, Span]] = {}
    report: list[Diagnostic] = []
    for line, text in enumerate(prices, start=1):
        name, equals, number = (part.strip() for part in text.partition("="))
        value = _number(number)
        if not name or not equals or value is None:
            report.append(_fault(_span(PRICE, line, 0, len(text)), "a price is `NAME=PRICE_PER_GPU_HOUR`, from 0 up"))
        else:
            found[name] = (value, _span(PRICE, line, 0, len(name)))
    if report:
        raise FlowError(report)
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _by_group(flag: str, texts: Sequence[str], report: list[Diagnostic]) -> list[Axis]:
    """`8,16` or `GROUP=8,16`; flags of one group together."""
    found: dict[str, list[Value]] = {}
    places: dict[str, Span] = {}
    for line, text in enumerate(texts, start=1):
        group, equals, rest = text.partition("=") if "=" in text else ("", "", text)
        places.setdefault(group.strip(), _span(flag, line, 0, len(group or text)))
        found.setdefault(group.strip(), []).extend(_values(flag, line, len(group) + len(equals), rest, report))
    return [Axis(flag, group, _once(values), places[group]) for group, values in found.items()]


def _values(flag: str, line: int, start: int, text: str, report: list[Diagnostic]) -> Iterator[Value]:
    for at, piece in split_values(text):
        span = _span(flag, line, start + at, start + at + len(piece))
        if piece:
            yield Value(piece, span)
        else:
            report.append(_fault(span, "a value is missing"))


def _keys(sets: Sequence[str], report: list[Diagnostic]) -> Iterator[Axis]:
    """Flags of one key together, as those of one group are."""
    found: dict[str, list[Value]] = {}
    places: dict[str, Span] = {}
    for line, text in enumerate(sets, start=1):
        key, equals, rest = text.partition("=")
        name = key.strip() if equals else text
        places.setdefault(name, _span(SET, line, 0, len(key)))
        values = found.setdefault(name, [])
        if not equals or not split_values(rest)[1:]:
            values.append(Value(rest if equals else "", _span(SET, line, 0, len(text))))
        else:
            values.extend(_values(SET, line, len(key) + 1, rest, report))
    for name, values in found.items():
        yield Axis(SET, name, _once(values), places[name])


def _once(values: list[Value]) -> tuple[Value, ...]:
    first: dict[str, Value] = {}
    for value in values:
        first.setdefault(value.text.strip(), value)
    return tuple(first.values())


def _count_fault(value: Value) -> Diagnostic | None:
    if value.text.isascii() and value.text.isdecimal() and len(value.text) < 10:
        return None if int(value.text) else _fault(value.span, "no GPUs: a number from 1 up stands here")
    return _fault(value.span, f"`{value.text}` is not a number of GPUs")


def _fault(span: Span, problem: str, *helps: Help) -> Diagnostic:
    return diagnose("FR0740", span, helps=helps, problem=problem)


def _span(flag: str, line: int, start: int, stop: int) -> Span:
    return Span(flag, line, start + 1, line, max(stop, start + 1) + 1)
