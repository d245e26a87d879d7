"""The maximum cycle ratio of an event graph whose nodes have names: how long a step is, and the circle that says so.

Takes arcs; gives the ratio in seconds a step and the nodes of one circle that has it, in order. Exact: it is the ratio
of a circle, and no circle has a larger one (program/ratio.py says how it is found).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flowrl.program.ratio import largest_ratio


@dataclass(frozen=True, slots=True)
class Arc:
    """`target` starts `seconds` or more after `source` of `tokens` steps before."""

    source: str
    target: str
    seconds: float
    tokens: int


def maximum_cycle_ratio(arcs: Iterable[Arc]) -> tuple[float, tuple[str, ...]]:
    """The largest seconds / tokens over all circles, and the nodes of a circle that has it, each waiting for the one
    before; 0 and no nodes where no circle takes time. Raises ValueError for a circle without tokens: it never starts,
    and the checker refuses its program."""
    given = tuple(arcs)
    number = {node: place for place, node in enumerate(dict.fromkeys(n for a in given for n in (a.source, a.target)))}
    numbered = [(number[arc.source], number[arc.target], arc.seconds, arc.tokens) for arc in given]
    ratio, circle = largest_ratio(len(number), numbered)
    return ratio, tuple(given[place].source for place in circle)
