"""The critical circle: the instructions that wait for each other in turn and so bound the step.

Of several circles with the largest ratio it names the first that a walk through the program meets, so that the same
program always gets the same sentence (`ratio_of` names the one that its method runs into).
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.execution.cycle_ratio import Arc
from flowrl.execution.expand import event_arcs, named
from flowrl.program.program import Program


def critical_circle(program: Program, durations: Mapping[str, float], step_seconds: float) -> tuple[str, ...]:
    """Instructions of one circle whose ratio is `step_seconds`, in order; empty where slots bound the step, not a
    circle."""
    return named(tuple(arc.source for arc in critical_arcs(program, durations, step_seconds)), program)


def critical_arcs(program: Program, durations: Mapping[str, float], step_seconds: float) -> tuple[Arc, ...]:
    """The circle's arcs, each from where the one before ends.

    With λ = step_seconds no circle of the arc lengths seconds - λ · tokens is positive, so longest paths exist; the
    arcs that they use up to equality hold every circle of ratio λ.
    """
    arcs = list(event_arcs(program, durations))
    slack = 1e-7 * (max((arc.seconds for arc in arcs), default=0.0) + step_seconds)
    reached = longest_paths(arcs, [i.id for i in program.instructions], step_seconds, slack)
    following: dict[str, list[Arc]] = {id: [] for id in reached}
    for arc in arcs:
        if reached[arc.source] + arc.seconds - step_seconds * arc.tokens >= reached[arc.target] - slack:
            following[arc.source].append(arc)
    return _first_circle(following)


def longest_paths(arcs: list[Arc], nodes: list[str], step_seconds: float, slack: float) -> dict[str, float]:
    """Longest paths to each node from anywhere (Bellman & Ford), to within `slack`."""
    reached = dict.fromkeys(nodes, 0.0)
    for _ in nodes:
        moved = False
        for arc in arcs:
            longer = reached[arc.source] + arc.seconds - step_seconds * arc.tokens
            if longer > reached[arc.target] + slack / len(nodes):
                reached[arc.target], moved = longer, True
        if not moved:
            break
    return reached


def _first_circle(following: Mapping[str, list[Arc]]) -> tuple[Arc, ...]:
    """The first circle that a depth-first walk in the order of the nodes closes."""
    done: set[str] = set()
    for start in following:
        path, taken, ways = [start], list[Arc](), [iter(following[start])]
        while path:
            arc = next((arc for arc in ways[-1] if arc.target not in done), None)
            if arc is None:
                done.add(path.pop())
                ways.pop()
                taken = taken[:-1]
            elif arc.target in path:
                return (*taken[path.index(arc.target) :], arc)
            else:
                path.append(arc.target)
                taken.append(arc)
                ways.append(iter(following[arc.target]))
    return ()
