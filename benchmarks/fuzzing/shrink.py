"""A failing mutant made small: flags, files and lines are left out while it still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from benchmarks.fuzzing.draft import Mutant

_T = TypeVar("_T")


def shrink(whole: Mutant, fails: Callable[[Mutant], bool], tries: int) -> Mutant:
    """Delta debugging (Zeller and Hildebrandt 2002) on flags, files, and the lines of the flow."""
    left = [tries]

    def holds(candidate: Mutant) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(candidate)

    sets = reduced(whole.sets, lambda kept: holds(replace(whole, sets=tuple(kept))))
    whole = replace(whole, sets=tuple(sets))
    files = reduced(whole.files, lambda kept: holds(replace(whole, files=tuple(kept))))
    whole = replace(whole, files=tuple(files))
    lines = whole.data.split(b"\n")
    kept = reduced(lines, lambda some: holds(replace(whole, data=b"\n".join(some))))
    return replace(whole, data=b"\n".join(kept))


def reduced(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> Sequence[_T]:
    """A part of `items` that still fails and of which no single stretch of the last size tried can go."""
    size = max(len(items) // 2, 1)
    while items:
        at, shorter = 0, False
        while at < len(items):
            candidate = [*items[:at], *items[at + size :]]
            if fails(candidate):
                items, shorter = candidate, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(size // 2, 1) if not shorter or size > 1 else 1
    return items
