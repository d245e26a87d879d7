"""What FlowRL says of a case: it is planned once, then timed under as many profiles as are asked for.

Takes a Case, gives Predictions: seconds of a step in the steady state and of each phase. The plan (graph, pools,
program) does not depend on the profile where pools and layouts are given; only times do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from benchmarks.facts.flows import FOLDER, document_of, text_of
from benchmarks.facts.rules import Case, UnusableError
from flowrl.api.compile import check_spec
from flowrl.api.machine import cluster_of
from flowrl.compiler.emit.program import emit
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.lower.run import lower_stage_run
from flowrl.diag.diagnostic import FlowError
from flowrl.execution.steady import steady
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.profile import PROFILE, Profile
from flowrl.machine.shape import ModelShape
from flowrl.placement.place import place
from flowrl.placement.request import Placement, PlacementRequest
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
    note: str
    """What of the record's layouts the planner did not take."""

    @property
    def fits(self) -> bool:
        return self.placement.fits


@dataclass(frozen=True)
class Predicted:
    step: float
    phases: Mapping[str, float]
    """Seconds of gen, train, logprob, ref, values, reward, sync, move in one step, each for itself."""


def plan(case: Case) -> Planned:
    """Plan a case with the layouts of its record; where the planner refuses these, with its own.

    Raises UnusableError with the planner's words if it refuses both.
    """
    try:
        return _plan(case, True, "")
    except FlowError as error:
        first = _words(error)
    if not (case.train or case.rollout):
        raise UnusableError(first)
    try:
        return _plan(case, False, first)
    except FlowError as error:
        raise UnusableError(_words(error)) from None


def _words(error: FlowError) -> str:
    found = error.diagnostics[0]
    return f"{found.code} {found.headline}: {found.why or ''}".strip(": ")


def _plan(case: Case, layouts: bool, note: str) -> Planned:
    spec = loads(text_of(document_of(case, layouts=layouts)), folder=str(FOLDER))
    checked = check_spec(spec)
    if not checked.graphs:
        raise FlowError(checked.diagnostics)
    graph, cluster = checked.graphs[0], cluster_of(spec, None)
    shapes, request = shapes_of(graph, spec.folder, {}), lower_placement(spec, 0)
    placement = place(graph, cluster, request, shapes)
    program = emit(graph, placement.pools, lower_stage_run(spec, 0))
    return Planned(case, graph, shapes, cluster, request, placement, program, note)


def predict(planned: Planned, profile: Profile = PROFILE) -> Predicted:
    """Seconds of a step and of its phases under `profile`."""
    request = replace(planned.request, profile=profile)
    placement, program = planned.placement, planned.program
    seconds = durations(
        planned.graph,
        placement.pools,
        program,
        planned.shapes,
        planned.cluster,
        request=request,
        decisions=placement.decisions,
    )
    phases: dict[str, float] = {}
    for instruction in program.instructions:
        if instruction.every_steps == 1:
            name = _phase(instruction.kind, instruction.op)
            phases[name] = phases.get(name, 0.0) + seconds[instruction.id]
    return Predicted(steady(program, seconds).step_seconds, phases)


def _phase(kind: str, op: str | None) -> str:
    if op is None:
        return "sync" if "weights" in kind else "move"
    role, _, method = op.partition(".")
    if role == "reference":
        return "ref"
    return PHASES.get(method.partition("@")[0], "host")
