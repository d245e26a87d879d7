"""Answers kept while the same graph is asked again: passes, the verifier and warnings ask one graph the same questions.

A graph never changes, so a pure function of it has one answer. Graphs that share their parts (a pass that only checks
gives back all of them) share the answer too. Nothing else is kept: a few graphs back, answers are forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from flowrl.graph.graph import Graph

KEPT = 4
"""Graphs whose answer is remembered."""
_T = TypeVar("_T")


def once(function: Callable[[Graph], _T]) -> Callable[[Graph], _T]:
    """`function` of a graph, worked out once for graphs of the same parts. It must not look at `passes` or `name`
    beyond whether weights edges are lowered."""
    kept: deque[tuple[tuple[object, ...], _T]] = deque(maxlen=KEPT)

    @wraps(function)
    def asked(graph: Graph) -> _T:
        parts = _parts(graph)
        for known, answer in kept:
            if all(one is other for one, other in zip(known, parts, strict=True)):
                return answer
        answer = function(graph)
        kept.appendleft((parts, answer))
        return answer

    return asked


def _parts(graph: Graph) -> tuple[object, ...]:
    # The parts themselves are kept, so that no other object can have their identity.
    lowered = "insert_weight_sync" in graph.passes
    parts = (graph.models, graph.roles, graph.ops, graph.declared, graph.edges, graph.removed, graph.step)
    return (*parts, graph.schedule, lowered)
