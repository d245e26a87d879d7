"""The best few ways once more, by a step in which generation is handed on in parts, with sizes of pools around them.

A search compares whole steps: what overlaps in parts is no part of its bounds. Where parts are allowed, the best ways
that it has worked out are timed in parts, and those of several pools are tried with some devices moved from one pool to
another, as long as that helps. Takes a settler and the seconds of a step in parts; gives candidates. Proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

from flowrl.machine.cluster import Cluster
from flowrl.placement.request import Mode
from flowrl.placement.search.candidate import Candidate, Option
from flowrl.placement.search.settle import Settler
from flowrl.placement.search.sizes import cluster_sizes
from flowrl.placement.search.ways import Part
from flowrl.plan.plan import Pool

MOST_COMPARED = 8
"""Ways that a search has worked out, of which the step in parts is asked: some programs, timed."""
MOST_ROUNDS = 3
"""Moves of devices from one pool to another."""
StepInParts = Callable[[Sequence[Pool]], float]
"""Seconds of a step on these pools, in the best of the parts that the flow allows."""


def compared(settler: Settler, cluster: Cluster, in_parts: StepInParts) -> dict[str, Candidate]:
    """By label the ways that were compared, with the seconds of their steps in parts. What the settler has tried holds
    them all, with the seconds of whole steps."""
    usable = sorted((each for each in settler.tried.values() if each.usable), key=Candidate.rank)
    found = {each.option.label: _timed(settler, each, in_parts) for each in usable[:MOST_COMPARED]}
    if settler.ways.request.mode not in (Mode.AUTO, Mode.DISAGGREGATED):
        return found
    apart = [each for each in found.values() if len(each.option.pools) > 1]
    best = min(apart, key=Candidate.rank, default=None)
    for _ in range(MOST_ROUNDS if best is not None else 0):
        assert best is not None
        near = [_tried(settler, option, in_parts) for option in _resized(settler, cluster, best.option)]
        found |= {each.option.label: each for each in near if each is not None}
        better = min((each for each in near if each is not None), key=Candidate.rank, default=best)
        if better.rank() >= best.rank():
            break
        best = better
    return found


def _timed(settler: Settler, whole: Candidate, in_parts: StepInParts) -> Candidate:
    seconds = min(whole.seconds, in_parts(whole.laid.pools))
    wanted = [(draft.group.name, len(draft.devices)) for draft in whole.option.pools]
    value, late = settler.objective.score(seconds, wanted)[0], seconds > settler.objective.at_most
    return Candidate(whole.option, whole.laid, seconds, value, whole.starved, late)


def _tried(settler: Settler, way: tuple[Sequence[Part], Sequence[int]], in_parts: StepInParts) -> Candidate | None:
    settled = settler.settle_way(*way)
    return None if settled is None or not settled.usable else _timed(settler, settled, in_parts)


def _resized(settler: Settler, cluster: Cluster, option: Option) -> Iterator[tuple[Sequence[Part], Sequence[int]]]:
    """With the devices of one pool fewer by a step of its sizes, and those of another more by as many."""
    allowed = cluster_sizes(cluster)
    parts = [Part(draft.roles, draft.group.name) for draft in option.pools]
    sizes = [len(draft.devices) for draft in option.pools]
    for giving, taking in permutations(range(len(sizes)), 2):
        group = parts[giving].group
        smaller = max((size for size in allowed[group] if size < sizes[giving]), default=0)
        room = sizes[taking] + sizes[giving] - smaller
        larger = max((size for size in allowed[group] if size <= room), default=0)
        if parts[taking].group == group and smaller and larger > sizes[taking]:
            changed = list(sizes)
            changed[giving], changed[taking] = smaller, larger
            yield parts, changed
