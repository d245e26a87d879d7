"""FITS: the tightest phase of each group of devices against its limit, and the ledger lines that fill it."""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.plan.plan import LedgerLine, Memory, StagePlan
from flowrl.report.numbers import gib
from flowrl.report.page import bar, joined, shorten

_WIDEST_BAR = 20
_NARROWEST_BAR = 6
_SLIGHT = 0.01
_LINES = 4
"""Ledger lines shown per group of devices; those of a phase that does not fit stand in full at the top of the page."""


def fits(stage: StagePlan, width: int) -> list[str]:
    """Two lines or more per group of devices: how full, in which phase, and of what."""
    tightest = tightest_by_device(stage.memory)
    names = max((len(each.pool) for each in tightest), default=0)
    texts = [_measured(each, tightest) for each in tightest]
    room = width - names - 4 - max(map(len, texts), default=0)
    blocks = min(max(room, _NARROWEST_BAR), _WIDEST_BAR)
    indent = " " * (names + 2)
    found: list[str] = []
    for each, text in zip(tightest, texts, strict=True):
        found.append(shorten(f"{each.pool:<{names}}  {bar(fullness(each), blocks)}  {text}", width))
        found += joined(largest(each, _LINES), width, indent, first=indent)
    return found


def _measured(memory: Memory, all_: Sequence[Memory]) -> str:
    """The figures and the phase; the devices too where those of a pool differ."""
    several = sum(other.pool == memory.pool for other in all_) > 1
    over = ", over the limit," if memory.peak_bytes > memory.limit_bytes else ""
    text = f"{gib(memory.peak_bytes)} of {gib(memory.limit_bytes)} GiB{over} in {memory.phase}"
    return f"{text} on {memory.device}" if several else text


def tightest_by_device(memory: Sequence[Memory]) -> list[Memory]:
    """The entry nearest to (or furthest over) its limit, for each pool and group of devices that do the same."""
    groups: dict[tuple[str, str], Memory] = {}
    for each in memory:
        key = (each.pool, each.device)
        if key not in groups or fullness(each) > fullness(groups[key]):
            groups[key] = each
    return list(groups.values())


def fullness(memory: Memory) -> float:
    """Peak over limit."""
    return memory.peak_bytes / memory.limit_bytes if memory.limit_bytes > 0 else float("inf")


def largest(memory: Memory, most: int | None) -> list[str]:
    """`activations 23.4`, the largest first, those under one percent left out; a line of a role that is not at work
    names it."""
    lines = sorted((line for line in memory.lines if line.unit == "bytes"), key=lambda line: -line.value)
    kept = [line for line in lines if line.value >= _SLIGHT * memory.peak_bytes][:most]
    return [f"{_what(line, memory)} {gib(line.value)}" for line in kept]


def _what(line: LedgerLine, memory: Memory) -> str:
    at_work = line.role is None or memory.phase.split(".")[0].split(" ")[-1] == line.role
    return line.what if at_work else f"{line.what} of {line.role}"
