"""Which trainers recompute their activations: the choices to evaluate where the flow leaves it open.

Takes a graph; gives `none` or `full` by trainer. Knows no memory and no time: search ranks the choices. `selective` is
never chosen, since it has to be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from flowrl.graph.graph import Graph

MOST_COMBINED = 3
"""Trainers of which every combination is tried. Of more, the first k recompute, for every k."""


def choices(graph: Graph) -> list[Mapping[str, str]]:
    """Every choice to evaluate, by trainer; those that recompute less come first, the first recomputes nothing."""
    names = [role.name for role in graph.roles if role.trainable and role.engine.recompute is None]
    if len(names) > MOST_COMBINED:
        return [_full(names, names[:count]) for count in range(len(names) + 1)]
    found = [_full(names, [n for n, is_full in zip(names, way, strict=True) if is_full]) for way in _ways(len(names))]
    return sorted(found, key=lambda choice: list(choice.values()).count("full"))


def _ways(count: int) -> list[tuple[bool, ...]]:
    return list(product((False, True), repeat=count))


def _full(names: list[str], full: list[str]) -> Mapping[str, str]:
    return {name: "full" if name in full else "none" for name in names}
