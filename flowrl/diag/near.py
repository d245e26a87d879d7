"""Near names: what a misspelt name may have meant. Takes a name and the known ones, knows nothing of flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST = 3
LONGEST = 80
SHORTEST_PREFIX = 4
LIMITS = {0: 0, 1: 0, 2: 0, 3: 1}
"""Most edits for short names; a name of two letters is near no other one."""


def edit_distance(one: str, other: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment; Boytsov 2011, 2.2)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        new = [i]
        for j, right in enumerate(other, start=1):
            best = min(new[j - 1] + 1, row[j] + 1, row[j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                best = min(best, before[j - 2] + 1)
            new.append(best)
        before, row = row, new
    return row[-1]


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Known names at most two edits away (fewer for short ones), else those that share a beginning; the nearest
    first, at most three."""
    if len(name) > LONGEST:
        return []
    candidates = sorted(set(known) - {name})
    limit = LIMITS.get(len(name), 2)
    close = [(edit_distance(name.lower(), other.lower()), other) for other in candidates if _may_be(name, other, limit)]
    found = sorted(pair for pair in close if pair[0] <= limit)
    if found:
        return [other for _, other in found[:MOST]]
    return [other for other in candidates if _share_beginning(name.lower(), other.lower())][:MOST]


def is_only_near(name: str, near: Sequence[str]) -> bool:
    """Whether `near`, from `near_names`, leaves no choice: one name, and so few edits away that it was misspelt."""
    return len(near) == 1 and edit_distance(name.lower(), near[0].lower()) <= LIMITS.get(len(name), 2)


def _may_be(name: str, other: str, limit: int) -> bool:
    return abs(len(name) - len(other)) <= limit


def _share_beginning(one: str, other: str) -> bool:
    shorter = min(len(one), len(other))
    same = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    return same >= SHORTEST_PREFIX or (same == shorter >= SHORTEST_PREFIX - 1)
