"""infer_granularity: how many rows an op takes at once, and in which unit each edge streams."""

from __future__ import annotations

from msgspec.structs import replace

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.graph.params import EstimateParams, FilterParams
from flowrl.graph.signatures import estimate_granularity
from flowrl.graph.types import Granularity


def infer_granularity(graph: Graph) -> Graph:
    """Set the granularity that parameters decide, and each data edge's to the coarser of its two ends.

    before: advantage.estimate (gae, normalize: batch): sample · generate -> score · score -> estimate
    after:  advantage.estimate: step (a barrier) · generate -> score streams by sample · score -> estimate by step

    Requires: lowered edges. Ensures: every data edge has a granularity.
    """
    ops = tuple(replace(op, granularity=_granularity(op)) for op in graph.ops)
    by_id = {op.id: op.granularity for op in ops}
    return replace(graph, ops=ops, edges=tuple(_streamed(edge, by_id) for edge in graph.edges))


def _granularity(op: Op) -> Granularity:
    if isinstance(op.params, EstimateParams):
        return estimate_granularity(op.params)
    if isinstance(op.params, FilterParams):
        return _filtered(op.params)
    return op.granularity


def _filtered(params: FilterParams) -> Granularity:
    """A fixed share of the best needs all that it is the best of, the step or the group; a rule on groups a group."""
    if params.keep_top is not None and (params.unit == "group" or params.within == "step"):
        return Granularity.STEP
    return Granularity.GROUP if "group" in (params.unit, params.within) else Granularity.SAMPLE


def _streamed(edge: Edge, by_id: dict[str, Granularity]) -> Edge:
    if edge.kind is not EdgeKind.DATA:
        return edge
    ends = (by_id[edge.source], by_id[edge.target])
    return replace(edge, granularity=max(ends, key=lambda g: g.rank))
