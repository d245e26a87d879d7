"""How much one flow may hold, so that checking it takes seconds and not hours: entries of its sections, and edges.

Takes the tree with presets and included files worked in; raises FR0032 or FR0033 (edges.py counts edges, FR0030).
Limits of text, depth and values are yaml_tree.py's, those of included files include.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.spec.tree import MappingNode, Node, SequenceNode, may_be_template, scalars

MOST_EDGES = 10_000
"""Pairs of ends, after commas are fanned out."""
MOST_TEMPLATES = 500
"""Scalars that Jinja2 has to compile, about a millisecond each."""
LONGEST_TEMPLATE = 20_000
"""Characters of one scalar that Jinja2 compiles; a longer one is no name or number any more."""
MOST_ENTRIES: Mapping[str, int] = {
    "roles": 1000,
    "edges": 5000,
    "models": 500,
    "data": 500,
    "vars": 1000,
    "assume": 2000,
    "allow": 500,
    "stages": 32,
}
"""Of each section, in a flow or a stage."""


def check_limits(root: MappingNode) -> None:
    """Raises FlowError at the first entry too many of a section (FR0032), else the first such template (FR0033)."""
    _check(root)
    stages = root.get("stages")
    for stage in stages.items if isinstance(stages, SequenceNode) else ():
        if isinstance(stage, MappingNode):
            _check(stage)
    templates = (node for node in scalars(root) if may_be_template(node))
    extra = next(islice(templates, MOST_TEMPLATES, None), None)
    if extra is not None:
        raise FlowError(diagnose("FR0033", extra.span, limit=MOST_TEMPLATES))


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
