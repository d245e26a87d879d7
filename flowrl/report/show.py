"""Graphs as text for `flowrl show`: the drawing of each stage, and a table of what travels on its edges.

Takes graphs and nothing else; gives lines of at most `width` columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.graph.lag import path_lags
from flowrl.graph.params import UpdateParams
from flowrl.graph.types import Granularity
from flowrl.report.dataflow import dataflow
from flowrl.report.numbers import count
from flowrl.report.page import INDENT, finish, joined, section, shorten, wrapped

_NARROWEST_FIELDS = 20
_BARRIERS = (Granularity.GROUP, Granularity.MINIBATCH, Granularity.STEP)


def render_graphs(
    name: str, graphs: Sequence[Graph], width: int = 100, color: bool = False, ascii: bool = False
) -> str:
    """The graphs of a flow's stages, in order, as text ending in a newline. `width` is at least 60."""
    width = max(width, 60)
    several = len(graphs) > 1
    lines = [f" {name}"] if several else []
    for graph in graphs:
        title = ["", *joined([f"STAGE {graph.name}", *_batch(graph)], width, " ", first=" ")]
        lines += title if several else joined([name, *_batch(graph)], width, " ", first=" ")
        room = width - INDENT
        lines += section("WHAT", dataflow(graph, room))
        lines += section("EDGES", _edges(graph, room))
        lines += section("WAITS", _waits(graph, room))
        lines += section("LAG", _lags(graph, room))
    return finish(lines, width, color, ascii)


def _batch(graph: Graph) -> Iterator[str]:
    step = graph.step
    samples = f" × {count(step.samples_per_prompt)} samples" if step.samples_per_prompt > 1 else ""
    yield f"{count(step.prompts)} prompts{samples} a step"
    if step.updates > 1:
        yield f"{count(step.updates)} updates"
    if step.epochs > 1:
        yield f"{count(step.epochs)} epochs"


def _edges(graph: Graph, width: int) -> list[str]:
    """`source -> target  unit in which it streams  columns`, aligned; the columns go below where they do not fit."""
    order = {op.id: place for place, op in enumerate(graph.ops)}
    edges = [edge for edge in graph.edges if edge.kind is EdgeKind.DATA]
    edges.sort(key=lambda edge: (order[edge.source], order[edge.target]))
    names = max((len(edge.id) for edge in edges), default=0)
    units = max((len(_unit(edge)) for edge in edges), default=0)
    lines: list[str] = []
    for edge in edges:
        start = f"{edge.id:<{names}}  {_unit(edge):<{units}}  "
        if len(start) + _NARROWEST_FIELDS <= width:
            lines += wrapped(", ".join(edge.fields), width, " " * len(start), start)
        else:
            lines += [shorten(edge.id, width), *wrapped(f"{_unit(edge)}  {', '.join(edge.fields)}", width, "  ", "  ")]
    return lines


def _unit(edge: Edge) -> str:
    return "" if edge.granularity is None else f"by {edge.granularity}"


def _waits(graph: Graph, width: int) -> list[str]:
    """Ops that cannot start on a sample alone, and what must come before them that they read nothing of."""
    lines: list[str] = []
    for op in graph.ops:
        if op.granularity in _BARRIERS:
            lines += wrapped(f"for {_rows(graph, op)}", width, "    ", f"{op.id}  ")
    state = [edge for edge in graph.edges if edge.kind is EdgeKind.STATE and edge.source != edge.target]
    for (target, why), sources in _grouped(state).items():
        lines += wrapped(f"for {', '.join(sources)}, {why}", width, "    ", f"{target}  ")
    return lines


def _grouped(edges: Iterable[Edge]) -> dict[tuple[str, str], list[str]]:
    """Sources by target and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for edge in edges:
        why = "which chooses its rows" if edge.fields else "which reads the weights as they are before"
        found.setdefault((edge.target, why), []).append(edge.source)
    return found


def _lags(graph: Graph, width: int) -> list[str]:
    """For every rollout that an update trains on: how many versions old it may be, and how far the update moves on from
    its newest version within a step."""
    lines: list[str] = []
    for lag in path_lags(graph):
        drift = lag.drift_minibatches
        more = f", up to {count(drift)} update{'' if drift == 1 else 's'} more within a step" if drift else ""
        text = f"lag {count(lag.versions)}{more}; weights by {lag.edge}"
        lines += wrapped(text, width, "    ", f"{lag.generate} -> {lag.update}  ")
    return lines


def _rows(graph: Graph, op: Op) -> str:
    """What one firing of an op takes, with its size."""
    step = graph.step
    if op.granularity is Granularity.GROUP:
        return "all samples of a prompt"
    if op.granularity is Granularity.STEP:
        return "the whole step"
    updates = op.params.updates if isinstance(op.params, UpdateParams) else step.updates
    prompts = step.prompts // updates
    return f"a minibatch of {count(prompts)} prompts"
