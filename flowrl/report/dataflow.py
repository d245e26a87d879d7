"""WHAT: the dataflow of a stage as a drawing, and as an indented list where a drawing would not fit or not be true.

Takes a Graph; gives lines: each connected part, then in words what no arrow says: interactions, routes, filters, late
starts, the weights that travel, and what passes added and took away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import networkx as nx

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op
from flowrl.graph.judges import asks_pairs
from flowrl.graph.params import AskParams, EnvParams, FilterParams, ScoreParams
from flowrl.report.drawing import draw
from flowrl.report.numbers import count
from flowrl.report.page import wrapped
from flowrl.report.picture import Picture, folded, interactions, is_acyclic, picture

MOST_DRAWN = 14
"""Ops in one drawing; more are listed."""


def dataflow(graph: Graph, width: int) -> list[str]:
    """Lines of at most `width` columns."""
    lines: list[str] = []
    parts = picture(graph).parts()
    for part in sorted(parts, key=lambda part: _interval(graph, part)):
        lines += _part(graph, part, width)
    for name, text in _notes(graph):
        lines += wrapped(text, width, "    ", f"{name}  ")
    return [*lines, *_changes(graph, width)]


def _part(graph: Graph, part: Picture, width: int) -> list[str]:
    every = _interval(graph, part)
    title = [] if every == 1 else [f"every {count(every)} steps, and after the last:"]
    indent = "  " if title else ""
    room = width - len(indent)
    shown = part if len(part.nodes) <= MOST_DRAWN else folded(part)
    drawing = None
    if len(shown.nodes) <= MOST_DRAWN and is_acyclic(shown):
        drawing = draw(shown.nodes, shown.arcs, shown.labels, room)
    return [*title, *(indent + line for line in drawing or _listed(shown, room))]


def _interval(graph: Graph, part: Picture) -> int:
    """Steps between two firings of a part that works seldom as a whole; 1 for the rest."""
    ops = [graph.op(id) for id in part.nodes]
    if any(op.method == "update" for op in ops):
        return 1
    edges = [e.every_steps or 1 for e in graph.edges if e.kind is EdgeKind.DATA and e.target in part.nodes]
    return max(op.every_steps for op in ops) if not edges else max(*edges, *(op.every_steps for op in ops))


def _listed(part: Picture, width: int) -> list[str]:
    """One op a line, under the last of those that it reads from; the others are named behind it."""
    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(part.nodes)
    digraph.add_edges_from(part.arcs)
    if not is_acyclic(part):
        return [line for arc in part.arcs for line in wrapped(" ─▶ ".join(arc), width, "    ")]
    order = list(nx.lexicographical_topological_sort(digraph, key=part.nodes.index))
    under = {id: max(digraph.predecessors(id), key=order.index, default=None) for id in order}
    lines: list[str] = []

    def add(id: str, depth: int) -> None:
        indent = "  " * depth
        others = sorted((source for source in digraph.predecessors(id) if source != under[id]), key=order.index)
        after = f" ◀ {', '.join(others)}" if others else ""
        lines.extend(wrapped(" ".join(part.labels[id]) + after, width, indent + "    ", indent))
        for other in order:
            if under[other] == id:
                add(other, depth + 1)

    for id in order:
        if under[id] is None:
            add(id, 0)
    return lines


def _notes(graph: Graph) -> Iterator[tuple[str, str]]:
    """A name and what is to be said of it."""
    for step, generators in interactions(graph).items():
        params = graph.op(step).params
        turns = f", at most {count(params.max_turns)} turns each" if isinstance(params, EnvParams) else ""
        yield f"{', '.join(generators)} <-> {step}", f"turn by turn{turns}"
    for op in graph.ops:
        if isinstance(op.params, ScoreParams):
            yield from ((op.id, text) for text in _reward(op.params.extra))
        if isinstance(op.params, AskParams):
            yield op.id, _asking(graph, op, op.params)
        if isinstance(op.params, FilterParams):
            yield op.id, _filter(graph, op, op.params)
        if op.start_step:
            yield op.id, f"from step {count(op.start_step + 1)} on"
    for edge in graph.edges if graph.edges else graph.declared:
        if edge.kind is EdgeKind.WEIGHTS:
            yield edge.id, _age(graph, edge)


def _reward(extra: dict[str, Any]) -> Iterator[str]:
    if "router" in extra:
        routes = cast("dict[str, str]", extra["router"]["routes"])
        told = " · ".join(f"{value} to {role}" for value, role in routes.items())
        yield f"by `{extra['router']['by']}`: {told}"
    if "combine" in extra:
        weights = cast("dict[str, float]", extra["combine"])
        yield " + ".join(f"{weight:g} × {role}" for role, weight in weights.items())


def _asking(graph: Graph, op: Op, params: AskParams) -> str:
    """`asks judge_lm with pair.j2, once for each pair of a prompt's samples`."""
    of = params.endpoint or graph.role(op.role).model or op.role
    rows = "each pair of a prompt's samples" if asks_pairs(op) else "each sample"
    return f"asks {of} with {params.template}, once for {rows}"


def _filter(graph: Graph, op: Op, params: FilterParams) -> str:
    """`drops groups by zero_spread of correct.rewards; refilled up to 10 times`."""
    read = next((f" of {i.chosen or i.source or ''}.{i.field}" for i in op.inputs), "")
    verb = "masks" if params.action == "mask" else "drops"
    if params.keep_top is not None:
        ranked = "the samples of a prompt" if params.within == "group" else f"all {params.unit}s"
        told = f"keeps the top {params.keep_top:g} of {ranked} by {params.rule}{read}"
    else:
        limits = [
            f"{name} {value:g}" for name, value in (("min", params.min), ("max", params.max)) if value is not None
        ]
        told = ", ".join([f"{verb} {params.unit}s by {params.rule}{read}", *limits])
    refill = graph.step.refill
    if refill is not None and params.action == "drop" and params.keep_top is None:
        told += f"; drawn again up to {count(refill.max_rounds)} times to {count(graph.step.prompts)} prompts"
    return told


def _age(graph: Graph, edge: Edge) -> str:
    """How often weights travel, and how old the samples may be: tokens beyond those that one step publishes."""
    updates = next((op.firings for op in graph.ops if op.role == edge.source and op.method == "update"), 1)
    often, published = "step", 1
    if edge.every_updates is not None:
        often = "update" if edge.every_updates == 1 else f"{count(edge.every_updates)} updates"
        published = max(updates // edge.every_updates, 1)
    elif edge.every_steps is not None and edge.every_steps > 1:
        often = f"{count(edge.every_steps)} steps"
    lag = edge.tokens - published
    age = f"samples up to {count(lag)} version{'' if lag == 1 else 's'} old" if lag > 0 else "on-policy (lag 0)"
    by = f" by {edge.transport}" if edge.transport else ""
    partial = ", rollouts go on over new weights" if graph.schedule.partial_rollout else ""
    return f"weights every {often}{by}; {age}{partial}"


def _changes(graph: Graph, width: int) -> list[str]:
    added = [op.id for op in graph.ops if op.derived]
    lines = wrapped(f"added: {', '.join(added)}", width, "    ") if added else []
    gone = {removal.id for removal in graph.removed}
    for removal in graph.removed:
        # That an op's edges went with it goes without saying.
        if not any(end in gone for end in removal.id.split(" -> ")) or " -> " not in removal.id:
            lines += wrapped(f"left out: {removal.id}: {removal.text}", width, "    ")
    return lines
