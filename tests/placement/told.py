"""From a YAML flow to its placement, the way the api does it; for tests and for the golden cases of FR04 and FR05."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowrl.compiler.lower.cluster import lower_cluster, lower_stage_cluster
from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.placement import lower_placement
from flowrl.compiler.passes.pipeline import run_passes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import Graph
from flowrl.machine.cluster import Cluster
from flowrl.machine.shape import ModelShape
from flowrl.placement.place import place
from flowrl.placement.request import Placement, PlacementRequest
from flowrl.placement.shapes import handed_on, shapes_of
from flowrl.spec import load, loads
from flowrl.spec.flow import FlowSpec
from flowrl.spec.sources import with_sources


@dataclass(frozen=True, slots=True)
class Told:
    """A stage with all that placement was asked and answered."""

    graph: Graph
    cluster: Cluster
    request: PlacementRequest
    shapes: dict[str, ModelShape]
    placement: Placement


def told(spec: FlowSpec, cluster: str | None = None) -> list[Told]:
    """Every stage of a flow, placed; on `cluster` in place of its own if that is given."""
    found: list[Told] = []
    earlier: dict[str, ModelShape] = {}
    for index, stage in enumerate(spec.stages):
        graph, _ = run_passes(lower_stage(spec, index))
        where = lower_cluster(cluster) if cluster is not None else lower_stage_cluster(spec, index)
        shapes, request = shapes_of(graph, spec.folder, earlier), lower_placement(spec, index)
        found.append(Told(graph, where, request, shapes, place(graph, where, request, shapes)))
        earlier |= handed_on(stage.name, graph, shapes)
    return found


def told_text(text: str, cluster: str | None = None, folder: str = ".") -> Told:
    """The one stage of a flow given as text."""
    return told(loads(text, folder=folder), cluster)[0]


def diagnostics() -> tuple[Diagnostic, ...]:
    """What flow.yaml in the working directory is told (golden cases)."""
    spec = load(Path("flow.yaml"))
    try:
        return tuple(each for stage in told(spec) for each in stage.placement.diagnostics)
    except FlowError as error:
        raise FlowError(with_sources(spec, error.diagnostics)) from None
