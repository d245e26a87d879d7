"""Where two plain values differ: lists of named things are matched by their names, everything else by place.

Takes what `digests.meaning` gives; knows nothing of plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

Path = tuple[str, ...]
NAMES = ("id", "name", "path", "slot", "edge", "pool", "role")
"""Fields that name an element of a list, the first that all have and that tells them apart."""
ORDER = "(order)"
"""Last part of the path where the same elements stand in another order."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Leaf:
    """`before` is MISSING for what the second value alone has, `after` for what the first alone has."""

    path: Path
    before: Any
    after: Any


def leaves(before: Any, after: Any, path: Path = ()) -> Iterator[Leaf]:
    """Every difference, in the order of the first value and then of the second."""
    if before == after and type(before) is type(after):
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        yield from _of_mappings(cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after), path)
        return
    if isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(cast("list[Any]", before), cast("list[Any]", after), path)
        return
    yield Leaf(path, before, after)


def _of_mappings(before: Mapping[str, Any], after: Mapping[str, Any], path: Path) -> Iterator[Leaf]:
    for key in dict.fromkeys((*before, *after)):
        here, there = before.get(key, MISSING), after.get(key, MISSING)
        if here is MISSING or there is MISSING:
            yield Leaf((*path, key), here, there)
        else:
            yield from leaves(here, there, (*path, key))


def _of_lists(before: list[Any], after: list[Any], path: Path) -> Iterator[Leaf]:
    name = _name_of([*before, *after])
    if name is None:
        yield Leaf(path, before, after)
        return
    mine, theirs = ({str(item[name]): item for item in items} for items in (before, after))
    if len(mine) != len(before) or len(theirs) != len(after):
        yield Leaf(path, before, after)
        return
    yield from _of_mappings(mine, theirs, path)
    common = [key for key in mine if key in theirs]
    if common != [key for key in theirs if key in mine]:
        yield Leaf((*path, ORDER), list(mine), list(theirs))


def _name_of(items: Sequence[Any]) -> str | None:
    """The field that names each of the elements; None if they are plain or have no names."""
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    return next((name for name in NAMES if all(isinstance(item.get(name), str) for item in items)), None)
