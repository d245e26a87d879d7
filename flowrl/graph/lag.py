"""Lag: how old the weights behind the samples of an update may be, from the declared `=>` edges."""

from __future__ import annotations

from flowrl.graph.graph import Edge, EdgeKind, Graph, Op


def rollout_of(graph: Graph, op: Op) -> Op | None:
    """The call of generate whose tokens `op` reads, or None."""
    source = next((i.source for i in op.inputs if i.slot in ("tokens", "latents")), None)
    found = next((o for o in graph.ops if o.id == source), None)
    return found if found is not None and found.method == "generate" else None


def weights_edge(graph: Graph, source: str, target: str) -> Edge | None:
    """The declared edge that carries the weights of role `source` to role `target`."""
    edges = (e for e in graph.declared if e.kind is EdgeKind.WEIGHTS)
    return next((e for e in edges if e.source == source and e.target == target), None)


def on_policy(graph: Graph, update: Op) -> bool:
    """Whether every sample is made by the very weights that the step's only update starts from: lag 0, published every
    step, one update a step."""
    rollout = rollout_of(graph, update)
    if rollout is None or update.firings != 1 or graph.schedule.partial_rollout:
        return False
    edge = weights_edge(graph, update.role, rollout.role)
    if edge is None or edge.tokens != 1:
        return False
    return edge.every_steps in (None, 1) and edge.every_updates in (None, 1) and not edge.start_step
