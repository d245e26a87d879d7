"""The dataflow of a plan in the languages of other tools: Mermaid, which GitHub draws, and DOT of Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flowrl.plan.plan import Plan
from flowrl.report.arrows import Arrow, GraphView, Node
from flowrl.report.layers import layers
from flowrl.report.view import StageView, plan_view

_ODD = re.compile(r"[^A-Za-z0-9_]")
_MERMAID = {"data": "-->", "weights": "==>", "interaction": "<-->"}
_MOST_BESIDE = 5
_DOT = {
    "data": "",
    "weights": "style=dashed, penwidth=2, constraint=false",
    "interaction": "style=dotted, dir=both, penwidth=2",
}


def render_mermaid(plan: Plan) -> str:
    """A flowchart: a box for each op within its pool; data, weights and interactions have arrows of their own."""
    stages = plan_view(plan).stages
    first, *others = stages
    lines = [f"flowchart {'TB' if others else _direction(first.graphs[-1])}"]
    for place, stage in enumerate(stages):
        lines += [f"  {line}" for line in _mermaid_stage(stage, f"s{place}" if len(stages) > 1 else "")]
    lines += [f"  s{place} --> s{place + 1}" for place in range(len(stages) - 1)]
    return "\n".join(lines) + "\n"


def _direction(graph: GraphView) -> str:
    """Downwards, so that a page's column shows a long chain of ops at the size of its text; across where more ops go
    on beside each other than such a column holds."""
    arcs = [(arrow.source, arrow.target) for arrow in graph.arrows if arrow.kind != "weights"]
    beside, _ = layers([node.id for node in graph.nodes], arcs)
    return "TB" if max(map(len, beside), default=0) <= _MOST_BESIDE else "LR"


def _mermaid_stage(stage: StageView, prefix: str) -> list[str]:
    graph = stage.graphs[-1]
    names = _names(graph.nodes, prefix)
    lines: list[str] = []
    for pool in stage.pools:
        own = [node for node in graph.nodes if node.pool == pool.name]
        if own:
            size = f"{len(pool.devices):,} × {pool.device}" if pool.devices else "host"
            title = f"{pool.name}: {size}" if pool.devices else pool.name
            lines.append(f'subgraph {prefix}{_ODD.sub("_", pool.name)}_pool["{_quoted(title)}"]')
            lines += [f"  {names[node.id]}{_box(node)}" for node in own]
            lines.append("end")
    lines += [f"{names[node.id]}{_box(node)}" for node in graph.nodes if not node.pool]
    lines += [_mermaid_arrow(arrow, names) for arrow in _known(graph, names)]
    if not prefix:
        return lines
    head = [f'subgraph {prefix}["stage {_quoted(stage.name)}"]', f"  direction {_direction(graph)}"]
    return [*head, *(f"  {line}" for line in lines), "end"]


def _box(node: Node) -> str:
    note = f"<br/>{node.note}" if node.note else ""
    return f'["{_quoted(node.label)}{note}"]'


def _mermaid_arrow(arrow: Arrow, names: dict[str, str]) -> str:
    text = f'|"{_quoted(arrow.text)}"|' if arrow.kind != "data" else ""
    return f"{names[arrow.source]} {_MERMAID[arrow.kind]}{text} {names[arrow.target]}"


def render_dot(plan: Plan) -> str:
    """A digraph for Graphviz, with a cluster for each pool."""
    stages = plan_view(plan).stages
    lines = [
        f"digraph {_dot(plan.name)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style=rounded, fontname="sans-serif"];',
    ]
    for place, stage in enumerate(stages):
        prefix = f"{stage.name}." if len(stages) > 1 else ""
        lines += [f"  {line}" for line in _dot_stage(stage, prefix, place)]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_stage(stage: StageView, prefix: str, place: int) -> list[str]:
    graph = stage.graphs[-1]
    names = {node.id: _dot(prefix + node.id) for node in graph.nodes}
    lines: list[str] = []
    for number, pool in enumerate(stage.pools):
        own = [node for node in graph.nodes if node.pool == pool.name]
        if own:
            size = f": {len(pool.devices):,} × {pool.device}" if pool.devices else ""
            lines += [f"subgraph cluster_{place}_{number} {{", f"  label={_dot(prefix + pool.name + size)};"]
            lines += [f"  {names[node.id]} [label={_dot(_two_lines(node))}];" for node in own]
            lines.append("}")
    for arrow in _known(graph, names):
        marks = ", ".join(filter(None, [f"label={_dot(arrow.text)}" if arrow.text else "", _DOT[arrow.kind]]))
        lines.append(f"{names[arrow.source]} -> {names[arrow.target]} [{marks}];")
    return lines


def _two_lines(node: Node) -> str:
    return f"{node.label}\n{node.note}" if node.note else node.label


def _dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _names(nodes: Sequence[Node], prefix: str) -> dict[str, str]:
    """Identifiers that Mermaid takes, one for each op."""
    made: dict[str, str] = {}
    for node in nodes:
        name = prefix + "op_" + _ODD.sub("_", node.id)
        while name in made.values():
            name += "_"
        made[node.id] = name
    return made


def _known(graph: GraphView, names: dict[str, str]) -> Iterable[Arrow]:
    return (arrow for arrow in graph.arrows if arrow.source in names and arrow.target in names)


def _quoted(text: str) -> str:
    """Mermaid has entities in place of escapes."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
