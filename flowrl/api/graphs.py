"""The graphs of a flow's stages after all passes, or after only the first of them."""

from __future__ import annotations

from flowrl.compiler.lower.graph import lower_stage
from flowrl.compiler.lower.stage import Stage
from flowrl.compiler.passes.pipeline import PASSES, run_passes
from flowrl.diag.diagnostic import Diagnostic, FlowError
from flowrl.graph.graph import Graph
from flowrl.spec.flow import FlowSpec
from flowrl.spec.sources import with_sources

LOWERED = "lowered"
"""The name of the graph before any pass."""
STOPS: tuple[str, ...] = (LOWERED, *(step.name for step in PASSES))
"""Where the way of a graph can be looked at, in order."""


def graphs_after(spec: FlowSpec, after: str = STOPS[-1]) -> tuple[Graph, ...]:
    """Every stage's graph after pass `after` (one of STOPS). Raises FlowError with the faults found up to there."""
    passes = PASSES[: STOPS.index(after)]
    graphs: list[Graph] = []
    faults: list[Diagnostic] = []
    for index in range(len(spec.stages)):
        try:
            graphs.append(run_passes(lower_stage(spec, index), passes=passes)[0])
        except FlowError as error:
            faults.extend(Stage(spec, index).with_data(error.diagnostics))
    if faults:
        raise FlowError(dict.fromkeys(with_sources(spec, faults)))
    return tuple(graphs)
