"""Which edits make a placement fit, found by placing the edited flow again, and the cheapest of them.

An edit of a role is tried on the pools of the placement that does not fit, one of pools or devices by a search anew.
What is shown has been searched anew, as far as the number of tries goes. Takes a situation and the candidate nearest to
fitting; gives fixes. Knows no words but those of edits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from flowrl.diag.diagnostic import FlowError
from flowrl.machine.shape import ModelShape
from flowrl.placement.checks.rows import fewest_prompts
from flowrl.placement.cost.workload import Workload
from flowrl.placement.relax import (
    Edit,
    Situation,
    Step,
    cluster_edits,
    combined_edits,
    device_edits,
    fewer_prompts,
    joint_edits,
    placement_edits,
    role_edits,
    shorter_edits,
)
from flowrl.placement.search import Candidate, search
from flowrl.plan.plan import Memory

SHOWN = 3
MOST_WORK = 40
"""In tries on pools that are given; a search anew counts as WHOLE of them. So explaining takes no longer than a second,
whatever the machine: what is left out is an edit that might have been shown."""
WHOLE = 8
AS_FAST_SECONDS = 0.05
"""Effects on a step that differ by less are told apart by how much of the flow changes."""


@dataclass(frozen=True, slots=True)
class Fix:
    """An edit that fits."""

    text: str
    freed_bytes: int
    """Of the tightest phase."""
    added_seconds: float
    keys: int
    apply: Callable[[Situation], Situation] = field(repr=False)
    anew: bool = False
    """Whether its pools were searched anew."""


def fixes(situation: Situation, shapes: Mapping[str, ModelShape], tightest: Memory, best: Candidate) -> list[Fix]:
    """Edits that fit, at most SHOWN: the cheapest in step time first, of equal ones the one that changes less of the
    flow; then more devices, as few as are enough, and devices of more memory."""
    graph, cluster, request = situation
    tries = Tries(situation, shapes, tightest, best)
    guilty, phases = guilty_roles(best), frozenset(entry.phase for entry in _over(best))
    found = tries.fitting(role_edits(graph, guilty), best) or tries.fitting(joint_edits(graph, guilty, phases), best)
    found = found or tries.fitting(combined_edits(graph, guilty), best)
    found = found or tries.fitting((*shorter_edits(graph, request), *fewer_prompts(graph, tries.least_prompts)), best)
    found = sorted((*found, *tries.fitting(placement_edits(request), best)), key=_cost)
    found = sorted((tries.anew(fix) for fix in found[:SHOWN]), key=_cost)
    more = tries.fitting(cluster_edits(cluster, request), best)[:1]
    if len(found) + len(more) < SHOWN:
        more += tries.fitting(device_edits(cluster), best)
    return [*found[: SHOWN - min(1, len(more))], *more][:SHOWN]


def _cost(fix: Fix) -> tuple[int, int]:
    return round(fix.added_seconds / AS_FAST_SECONDS), fix.keys


def guilty_roles(best: Candidate) -> frozenset[str]:
    """Roles with a part in some phase that does not fit."""
    return frozenset(line.role for entry in _over(best) for line in entry.lines if line.role is not None)


def _over(best: Candidate) -> list[Memory]:
    return [entry for entry in best.laid.memory if entry.peak_bytes > entry.limit_bytes]


@dataclass(slots=True)
class Tries:
    """Places changed flows again, a limited number of times in all."""

    situation: Situation
    shapes: Mapping[str, ModelShape]
    tightest: Memory
    best: Candidate
    left: int = MOST_WORK

    def fitting(self, edits: Iterable[Edit], best: Candidate) -> list[Fix]:
        """Those that fit, each in its weakest form."""
        over = _over(best)
        found = (self._weakest(edit) for edit in edits if edit.may_help(over))
        return [fix for fix in found if fix is not None]

    @property
    def least_prompts(self) -> int:
        """Of a step that gives each rank of the candidate's pools work."""
        graph, _, request = self.situation
        return fewest_prompts(graph, Workload(graph, self.shapes, request), self.best.laid.pools)

    def anew(self, fix: Fix) -> Fix:
        """The same with its pools searched anew, which may be faster; as it is where no try is left."""
        if fix.anew or self.left < WHOLE:
            return fix
        placed = self._placed(fix.apply, anew=True)
        if placed is None or not placed.laid.fits:
            return fix
        return replace(
            fix, added_seconds=placed.seconds - self.best.seconds, freed_bytes=self._freed(placed), anew=True
        )

    def _weakest(self, edit: Edit) -> Fix | None:
        """The first of the steps that fits, looked for in strides that double and then halve; where each needs no more
        than the one before, by halves from the last."""
        steps = edit.steps
        if len(steps) == 0:
            return None
        failed, at = -1, len(steps) - 1 if edit.falling else 0
        found = self._fix(edit, steps[at])
        while found is None and at < len(steps) - 1 and self.left > 0:
            failed, at = at, min(2 * at + 1, len(steps) - 1)
            found = self._fix(edit, steps[at])
        while found is not None and at - failed > 1 and self.left > 0:
            middle = (failed + at) // 2
            tried = self._fix(edit, steps[middle])
            failed, at, found = (middle, at, found) if tried is None else (failed, middle, tried)
        return found

    def _fix(self, edit: Edit, step: Step) -> Fix | None:
        text, apply = step
        placed = self._placed(apply, anew=edit.anew)
        if placed is None or not placed.laid.fits:
            return None
        added = placed.seconds - self.best.seconds
        return Fix(text, self._freed(placed), added, edit.keys, apply, edit.anew)

    def _placed(self, apply: Callable[[Situation], Situation], *, anew: bool) -> Candidate | None:
        if self.left <= 0:
            return None
        self.left -= WHOLE if anew else 1
        graph, cluster, request = apply(self.situation)
        try:
            found = search(graph, cluster, request, self.shapes, only=None if anew else self.best.option, near=False)
        except FlowError:
            return None
        return found.best

    def _freed(self, placed: Candidate) -> int:
        """Of the same phase; of the tightest one if that phase is gone."""
        same = [entry.peak_bytes for entry in placed.laid.memory if entry.phase == self.tightest.phase]
        every = same or [entry.peak_bytes for entry in placed.laid.memory]
        return self.tightest.peak_bytes - max(every, default=0)
