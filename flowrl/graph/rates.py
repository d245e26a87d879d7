"""Rates: how many rows an op has for each prompt of the step."""

from __future__ import annotations

from flowrl.graph.graph import Graph, Op
from flowrl.graph.params import GenerateParams


def samples_per_prompt(graph: Graph, op: Op) -> int:
    """Samples of each prompt that `op` makes or reads: those of the call of generate upstream of it along its bound
    inputs; 1 where there is none. A field that `inputs:` took from another call does not count."""
    known = {o.id: o for o in graph.ops}
    seen: set[str] = set()
    queue = [op.id]
    most = 1
    while queue:
        node = known.get(queue.pop())
        if node is None or node.id in seen:
            continue
        seen.add(node.id)
        if isinstance(node.params, GenerateParams):
            most = max(most, node.params.samples_per_prompt)
            continue
        queue.extend(i.source for i in node.inputs if i.source is not None and i.chosen is None)
    return most
