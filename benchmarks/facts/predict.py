"""What FlowRL says of a case: it is planned once, then timed under as many profiles as are asked for.

Takes a Case, gives Predictions: seconds of a step in the steady state and of each phase. The plan (graph, pools,
program) does not depend on the profile where pools and layouts are given; only times do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from benchmarks.facts.flows import FOLDER, document_of, text_of
from benchmarks.facts.rules import Case, UnusableError
from flowrl.api.compile import check_spec
from flowrl.api.machine import cluster_of
from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.lower.run import lower_stage_run
from flowrl.diag.diagnostic import FlowError
from flowrl.execution.critical import critical_circle
from flowrl.execution.steady import is_plain, steady
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.profile import PROFILE, Profile, with_generation
from flowrl.machine.shape import ModelShape
from flowrl.placement.checks.sync import unreachable
from flowrl.placement.decisions import decide
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.search import search
from flowrl.placement.shapes import shapes_of
from flowrl.placement.time.instructions import durations
from flowrl.program.program import Program
from flowrl.spec.pipeline import loads

PHASES = {"generate": "gen", "update": "train", "log_probs": "logprob", "values": "values", "score": "reward"}


@dataclass(frozen=True)
class Planned:
    """A case with its place and its program."""

    case: Case
    graph: Graph
    shapes: Mapping[str, ModelShape]
    cluster: Cluster
    request: PlacementRequest
    placement: Placement
    program: Program
    fits: bool
    note: str
    """What of the record's layouts the planner did not take."""


@dataclass(frozen=True)
class Predicted:
    step: float
    phases: Mapping[str, float]
    """Seconds of gen, train, logprob, ref, values, reward, sync, move in one step, each for itself."""


Edit = Callable[[dict[str, Any]], dict[str, Any]]
"""A flow as a document → the flow that is planned in its place."""


def plan(case: Case, edit: Edit = lambda document: document) -> Planned:
    """Plan a case with the layouts of its record; where the planner refuses these, with its own.

    Raises UnusableError with the planner's words if it refuses both, or if no flow can be made of the case's figures.
    """
    try:
        return _plan(case, edit, True, "")
    except FlowError as error:
        first = _words(error)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise UnusableError(f"its figures make no flow: {error}") from None
    if not (case.train or case.rollout):
        raise UnusableError(first)
    try:
        return _plan(case, edit, False, first)
    except FlowError as error:
        raise UnusableError(_words(error)) from None


def _words(error: FlowError) -> str:
    found = error.diagnostics[0]
    return f"{found.code} {found.headline}: {found.why or ''}".strip(": ")


def _plan(case: Case, edit: Edit, layouts: bool, note: str) -> Planned:
    spec = loads(text_of(edit(document_of(case, layouts=layouts))), folder=str(FOLDER))
    checked = check_spec(spec)
    if not checked.graphs:
        raise FlowError(checked.diagnostics)
    graph, cluster = checked.graphs[0], cluster_of(spec, None)
    shapes, request = shapes_of(graph, spec.folder, {}), lower_placement(spec, 0)
    if case.generation:
        request = replace(request, profile=with_generation(request.profile, case.generation))
    found = search(graph, cluster, request, shapes)
    best = found.best
    broken = tuple(unreachable(graph, cluster, best.laid.pools))
    if broken:
        raise FlowError(broken)
    # As `place` does, without its ledger of memory and what would help a placement that does not fit: 9/10 of the time.
    decisions = decide(graph, cluster, request, found)
    placement = Placement(pools=best.laid.pools, decisions=decisions, memory=())
    program = emit(graph, placement.pools, lower_stage_run(spec, 0))
    return Planned(case, graph, shapes, cluster, request, placement, program, best.laid.fits, note)


def seconds_of(planned: Planned, profile: Profile) -> dict[str, float]:
    """Seconds of each instruction of the program under `profile`."""
    placement, generation = planned.placement, planned.case.generation
    if generation:
        profile = with_generation(profile, generation)
    return durations(
        planned.graph,
        placement.pools,
        planned.program,
        planned.shapes,
        planned.cluster,
        request=replace(planned.request, profile=profile),
        decisions=placement.decisions,
    )


def predict(planned: Planned, profile: Profile = PROFILE) -> Predicted:
    """Seconds of a step and of its phases under `profile`: the simulated steady state, as a plan prints it."""
    seconds = seconds_of(planned, profile)
    return Predicted(steady(planned.program, seconds).step_seconds, phases_of(planned, seconds))


def phases_of(planned: Planned, seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase in one step, added up over its instructions."""
    phases: dict[str, float] = {}
    for instruction in planned.program.instructions:
        if instruction.every_steps == 1:
            name = _phase(instruction.kind, instruction.op)
            phases[name] = phases.get(name, 0.0) + seconds[instruction.id]
    return phases


class Circles:
    """The step time of one plan for many profiles. In the steady state a step takes as long as the critical circle of
    the program: its seconds over its steps (max-plus theory, flowrl/execution/steady.py). Circles that were critical
    once are kept; the slowest of them is the step time for other seconds too, unless a new one becomes critical, which
    `exact` finds."""

    def __init__(self, planned: Planned) -> None:
        self.planned = planned
        self._known: dict[tuple[str, ...], int] = {}
        self._plain = {i.id: is_plain(i) for i in planned.program.instructions}

    def exact(self, profile: Profile) -> float:
        """Simulated. Learns the circle that is critical."""
        seconds = seconds_of(self.planned, profile)
        step = steady(self.planned.program, seconds).step_seconds
        if step > 0:
            working = self._working(seconds)
            circle = critical_circle(self.planned.program, working, step)
            self._known[circle] = max(1, round(sum(working[id] for id in circle) / step))
        return step

    def quick(self, profile: Profile) -> float:
        """The slowest of the circles known so far."""
        if not self._known:
            return self.exact(profile)
        working = self._working(seconds_of(self.planned, profile))
        return max(sum(working[id] for id in circle) / steps for circle, steps in self._known.items())

    def _working(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Seconds of what works in every step; a checkpoint takes none here."""
        return {id: value if self._plain[id] else 0.0 for id, value in seconds.items()}


def _phase(kind: str, op: str | None) -> str:
    if op is None:
        return "sync" if "weights" in kind else "move"
    role, _, method = op.partition(".")
    if role == "reference":
        return "ref"
    return PHASES.get(method.partition("@")[0], "host")
