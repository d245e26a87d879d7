"""`vars`: their order by who refers to whom, and the tree with all of them rendered into its scalars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowrl.diag.diagnostic import Diagnostic, Label, diagnose
from flowrl.spec.tree import (
    Entry,
    MappingNode,
    Node,
    SequenceNode,
    Unknown,
    may_be_template,
    plain_value,
    scalars,
)


def render_variables(root: MappingNode, report: list[Diagnostic]) -> MappingNode:
    """Render every scalar of the flow. A stage's own `vars` add to the file's and win over them within the stage."""
    if not _mentions_templates(root):
        return root
    variables, scope = _evaluate(root.get("vars"), {}, report)
    stages = root.get("stages")
    rest = _render(root.without("vars", "stages"), scope, report)
    assert isinstance(rest, MappingNode)
    new: dict[str, Node] = {}
    if variables is not None:
        new["vars"] = variables
    if stages is not None:
        new["stages"] = _stages(stages, scope, report)
    entries = {
        key: replace(entry, node=new[key]) if key in new else rest.entries[key] for key, entry in root.entries.items()
    }
    return replace(root, entries=entries)


def _mentions_templates(node: Node) -> bool:
    """Whether any text holds a mark of a template; without one, Jinja2 need not be imported."""
    return any(may_be_template(each) for each in scalars(node))


def _render(node: Node, scope: Mapping[str, Any], report: list[Diagnostic]) -> Node:
    from flowrl.spec.template import render_tree

    return render_tree(node, scope, report.append)


def _stages(stages: Node, scope: Mapping[str, Any], report: list[Diagnostic]) -> Node:
    if not isinstance(stages, SequenceNode):
        return _render(stages, scope, report)
    return replace(stages, items=tuple(_stage(stage, scope, report) for stage in stages.items))


def _stage(stage: Node, scope: Mapping[str, Any], report: list[Diagnostic]) -> Node:
    if not isinstance(stage, MappingNode) or "vars" not in stage.entries:
        return _render(stage, scope, report)
    variables, own = _evaluate(stage.get("vars"), scope, report)
    rest = _render(stage.without("vars"), own, report)
    assert isinstance(rest, MappingNode)
    assert variables is not None
    entry: Entry = replace(stage.entries["vars"], node=variables)
    return rest.with_entry(entry)


def _evaluate(
    node: Node | None, outer: Mapping[str, Any], report: list[Diagnostic]
) -> tuple[Node | None, dict[str, Any]]:
    """The `vars` node rendered, and the scope that it gives over `outer`."""
    scope = dict(outer)
    if not isinstance(node, MappingNode):
        return node, scope
    done: dict[str, Entry] = {}
    for name in _in_order(node, report):
        entry = node.entries[name]
        told = len(report)
        done[name] = replace(entry, node=_render(entry.node, scope, report))
        scope[name] = plain_value(done[name].node) if len(report) == told else Unknown()
    for name in node.entries.keys() - done.keys():
        scope[name] = Unknown()  # part of a cycle, which is reported
    return replace(node, entries={name: done.get(name, entry) for name, entry in node.entries.items()}), scope


def _in_order(node: MappingNode, report: list[Diagnostic]) -> list[str]:
    """Names with what they refer to first, else as written. Those of a cycle are reported (FR0118) and left out."""
    from flowrl.spec.template import undeclared

    needs = {name: undeclared(entry.node) & set(node.entries) for name, entry in node.entries.items()}
    order = _ready_order(needs)
    done = set(order)
    waiting = [name for name in node.entries if name not in done]
    if waiting:
        first, *others = cycle = _cycle(waiting, needs)
        also = tuple(Label(node.entries[name].key_span, f"`{name}` is part of it") for name in others)
        way = " → ".join(f"`{name}`" for name in [*cycle, first])
        report.append(diagnose("FR0118", node.entries[first].key_span, also=also, way=way))
    return order


def _ready_order(needs: Mapping[str, set[str]]) -> list[str]:
    """Names whose needs can all be met, round by round: those that need nothing, those that need only these, …"""
    missing = {name: len(own) for name, own in needs.items()}
    users: dict[str, list[str]] = {name: [] for name in needs}
    for name, own in needs.items():
        for other in own:
            users[other].append(name)
    place = {name: index for index, name in enumerate(needs)}
    order: list[str] = []
    ready = [name for name, count in missing.items() if count == 0]
    while ready:
        order += ready
        freed: list[str] = []
        for name in (user for met in ready for user in users[met]):
            missing[name] -= 1
            if missing[name] == 0:
                freed.append(name)
        ready = sorted(freed, key=place.__getitem__)
    return order


def _cycle(waiting: list[str], needs: Mapping[str, set[str]]) -> list[str]:
    """One cycle among the names that could not be ordered; each of them needs another one of them."""
    left = set(waiting)
    path: dict[str, None] = {waiting[0]: None}
    here = waiting[0]
    while True:
        here = min(needs[here] & left)
        if here in path:
            names = list(path)
            return names[names.index(here) :]
        path[here] = None
