"""How much one flow may hold, so that checking it takes seconds and not hours: entries of its sections, and edges.

Takes the tree with presets and included files worked in; raises FR0030 or FR0032. Limits of text, depth and values are
yaml_tree.py's, those of included files include.py's.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.spec.tree import MappingNode, Node, SequenceNode

MOST_EDGES = 10_000
"""Pairs of ends, after commas are fanned out."""
MOST_ENTRIES: Mapping[str, int] = {
    "roles": 1000,
    "edges": 5000,
    "models": 500,
    "data": 500,
    "vars": 2000,
    "assume": 2000,
    "allow": 500,
    "stages": 32,
}
"""Of each section, in a flow or a stage."""


def check_limits(root: MappingNode) -> None:
    """Raises FlowError FR0032 for the first section with too many entries."""
    _check(root)
    stages = root.get("stages")
    for stage in stages.items if isinstance(stages, SequenceNode) else ():
        if isinstance(stage, MappingNode):
            _check(stage)


def _check(flow: MappingNode) -> None:
    for key, most in MOST_ENTRIES.items():
        first = _first_over(flow.get(key), most)
        if first is not None:
            raise FlowError(diagnose("FR0032", first, key=key, limit=most))


def _first_over(node: Node | None, most: int) -> Span | None:
    """The place of the first entry too many."""
    if isinstance(node, MappingNode) and len(node.entries) > most:
        return list(node.entries.values())[most].key_span
    if isinstance(node, SequenceNode) and len(node.items) > most:
        return node.items[most].span
    return None
