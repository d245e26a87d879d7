"""The dataflow of a plan as an SVG picture that stands alone: for a page, a slide or a README.

Columns and their order come from `layers`, the same as in the drawing of the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from flowrl.plan.plan import Plan
from flowrl.report.arrows import Arrow, GraphView, Node
from flowrl.report.layers import layers
from flowrl.report.view import plan_view

_LETTER, _MARGIN, _BOX, _ROW, _GAP, _TITLE = 7.2, 12, 40, 56, 56, 28
_POOLS = ("#2f6fb2", "#c8641b", "#3b8b57", "#8d59a8", "#8a6a00", "#0f7d86", "#b23a70", "#5e6b16")
_STYLE = """
 .paper{fill:#fff} .op{fill:#fff;stroke:#c4c9cf} .data{stroke:#5b6470;stroke-width:1.4}
 .weights{stroke:#0b5fb4;stroke-width:2;stroke-dasharray:7 4}
 .interaction{stroke:#8d59a8;stroke-width:2;stroke-dasharray:2 3}
 text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:#1c2024} .note{fill:#5b6470;font-size:11px}
 .title{font-weight:600;font-size:14px}
"""


class _Box:
    """Where a node stands: left, middle and width."""

    __slots__ = ("node", "width", "x", "y")

    def __init__(self, node: Node, x: float, y: float, width: float) -> None:
        self.node, self.x, self.y, self.width = node, x, y, width


def render_svg(plan: Plan) -> str:
    """One picture below the other for the stages of the plan."""
    view = plan_view(plan)
    parts: list[tuple[str, GraphView, Sequence[str]]] = []
    for stage in view.stages:
        title = f"{view.name} · {stage.name}" if len(view.stages) > 1 else view.name
        pools = [pool.name for pool in stage.pools]
        parts.append((f"{title} · step {stage.figures[0][1]} · {view.cluster}", stage.graphs[-1], pools))
    return _svg(view.name, parts)


def draw_graphs(name: str, graphs: Sequence[GraphView]) -> str:
    """The same of graphs that have no place yet."""
    return _svg(name, [(f"{name} · {graph.name}" if len(graphs) > 1 else name, graph, ()) for graph in graphs])


def _svg(name: str, parts: Sequence[tuple[str, GraphView, Sequence[str]]]) -> str:
    """Of each part its title, its graph, and the pools in the order of their colours."""
    body: list[str] = []
    width, top = 0.0, 0.0
    for title, graph, pools in parts:
        drawn, right, bottom = _part(title, graph, pools, top)
        body += drawn
        width, top = max(width, right), bottom + 12
    size = f'width="{width:.0f}" height="{top:.0f}" viewBox="0 0 {width:.0f} {top:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(name)}">'
    marker = "".join(_marker(kind, colour) for kind, colour in _HEADS.items())
    frame = f"<style>{_STYLE}</style><defs>{marker}</defs>"
    return "\n".join([head, frame, '<rect class="paper" width="100%" height="100%"/>', *body, "</svg>"]) + "\n"


_HEADS = {"data": "#5b6470", "weights": "#0b5fb4", "interaction": "#8d59a8"}


def _marker(kind: str, colour: str) -> str:
    size = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse"'
    return f'<marker id="{kind}" {size}><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'


def _part(title: str, graph: GraphView, pools: Sequence[str], top: float) -> tuple[list[str], float, float]:
    """The picture from `top` on: its elements, and how far it reaches to the right and down."""
    places, right, bottom = _laid_out(graph, top + _TITLE)
    boxes = {id: place for id, place in places.items() if isinstance(place, _Box)}
    colours = {pool: _POOLS[number % len(_POOLS)] for number, pool in enumerate(pools)}
    lines = [f'<text class="title" x="{_MARGIN}" y="{top + 18:.0f}">{escape(title)}</text>']
    lines += [_arrow(arrow, boxes, bottom) for arrow in graph.arrows if {arrow.source, arrow.target} <= boxes.keys()]
    lines += [line for box in boxes.values() for line in _drawn(box, colours)]
    weights = any(arrow.kind == "weights" for arrow in graph.arrows)
    return lines, max(right, len(title) * _LETTER + 2 * _MARGIN), bottom + (_GAP if weights else 0)


def _laid_out(graph: GraphView, top: float) -> tuple[Mapping[str, _Box | None], float, float]:
    arcs = [(arrow.source, arrow.target) for arrow in graph.arrows if arrow.kind != "weights"]
    columns, _ = layers([node.id for node in graph.nodes], arcs)
    nodes = {node.id: node for node in graph.nodes}
    tallest = max((len(column) for column in columns), default=0)
    places: dict[str, _Box | None] = {}
    x: float = _MARGIN
    for column in columns:
        width = max((_width(nodes[id]) for id in column if id in nodes), default=0.0)
        start = top + (tallest - len(column)) * _ROW / 2
        for row, id in enumerate(column):
            node = nodes.get(id)
            places[id] = None if node is None else _Box(node, x, start + row * _ROW + _BOX / 2, width)
        x += width + _GAP
    return places, x - _GAP / 2 + _MARGIN, top + tallest * _ROW


def _width(node: Node) -> float:
    return max(len(node.label), len(_note(node))) * _LETTER + 2 * _MARGIN


def _note(node: Node) -> str:
    return " · ".join(filter(None, (node.pool or node.kind, node.note)))


def _drawn(box: _Box, colours: Mapping[str, str]) -> Iterator[str]:
    left, up = box.x, box.y - _BOX / 2
    colour = colours.get(box.node.pool, "#9aa3ad")
    yield f'<rect class="op" x="{left:.1f}" y="{up:.1f}" width="{box.width:.1f}" height="{_BOX}" rx="6"/>'
    yield f'<rect x="{left:.1f}" y="{up:.1f}" width="5" height="{_BOX}" rx="2" fill="{colour}"/>'
    yield f'<text x="{left + _MARGIN:.1f}" y="{up + 17:.1f}">{escape(box.node.label)}</text>'
    yield f'<text class="note" x="{left + _MARGIN:.1f}" y="{up + 32:.1f}">{escape(_note(box.node))}</text>'


def _arrow(arrow: Arrow, boxes: Mapping[str, _Box], bottom: float) -> str:
    source, target = boxes[arrow.source], boxes[arrow.target]
    if arrow.kind == "weights":
        way = _below(source, target, bottom)
    else:
        ends = _sides(source, target)
        bend = (ends[2] - ends[0]) / 2
        way = f"M{ends[0]:.1f} {ends[1]:.1f}C{ends[0] + bend:.1f} {ends[1]:.1f} {ends[2] - bend:.1f} {ends[3]:.1f} "
        way += f"{ends[2]:.1f} {ends[3]:.1f}"
    both = f' marker-start="url(#{arrow.kind})"' if arrow.kind == "interaction" else ""
    said = f"<title>{escape(f'{arrow.source} to {arrow.target}: {arrow.text}')}</title>"
    return f'<path class="{arrow.kind}" d="{way}" fill="none" marker-end="url(#{arrow.kind})"{both}>{said}</path>'


def _sides(source: _Box, target: _Box) -> Sequence[float]:
    return source.x + source.width, source.y, target.x, target.y


def _below(source: _Box, target: _Box, bottom: float) -> str:
    """Weights leave on the right, where no box stands below, and go back under the boxes."""
    start, end = source.x + source.width, target.x + target.width / 2
    out, low = start + _GAP / 2, bottom + _GAP / 2
    first = f"M{start:.1f} {source.y:.1f}C{out:.1f} {source.y:.1f} {out:.1f} {low:.1f} {start:.1f} {low:.1f} "
    last = f"L{end + _GAP:.1f} {low:.1f}C{end:.1f} {low:.1f} {end:.1f} {low:.1f} {end:.1f} {target.y + _BOX / 2:.1f}"
    return first + last
