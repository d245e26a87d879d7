"""A plan drawn for other places than the terminal, and what a run made of it.

Each verb gives a text; the rooms below draw. The passes and the source of a flow are shown where its file is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from flowrl.api.graphs import STOPS, graphs_after
from flowrl.diag.diagnostic import FlowError
from flowrl.graph.graph import Graph
from flowrl.plan.plan import Plan
from flowrl.report.arrows import graph_view
from flowrl.report.exports import render_dot, render_mermaid
from flowrl.report.html.page import render_page
from flowrl.report.markdown import render_markdown
from flowrl.report.svg import draw_graphs, render_svg
from flowrl.report.text import render_plan
from flowrl.report.view import Passes, SourceText, plan_view
from flowrl.spec import load
from flowrl.spec.flow import FlowSpec

FORMATS: Mapping[str, Callable[[Plan], str]] = {
    "mermaid": render_mermaid,
    "dot": render_dot,
    "svg": render_svg,
    "markdown": render_markdown,
}
"""What a plan alone is drawn as; a page shows more."""
MOST_SOURCE = 400_000
"""Characters of a source file that a page brings."""


def draw_plan(plan: Plan, format: str, file: str | Path | None = None, sets: Sequence[str] = ()) -> str:
    """The plan as `html`, or as one of FORMATS. `file`, `sets`: the flow that it was made from, for its page."""
    return html(plan, _spec(file, sets)) if format == "html" else FORMATS[format](plan)


def html(plan: Plan, spec: FlowSpec | None = None) -> str:
    """One file for a browser. With the flow also its source and its graph after each pass."""
    view = plan_view(plan) if spec is None else plan_view(plan, _passes(spec), _sources(plan))
    return render_page(view, render_plan(plan))


def framed(plan: Plan, spec: FlowSpec | None = None, height: int = 900) -> str:
    """The page as an element of another one, such as a notebook; its style and script stay its own."""
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(html(plan, spec))}"></iframe>'


def flow_picture(spec: FlowSpec) -> str:
    """The dataflow of a flow that has not been planned, as SVG. Raises FlowError with the faults of the flow."""
    return draw_graphs(spec.document.name, [graph_view(graph.name, graph) for graph in graphs_after(spec)])


def _spec(file: str | Path | None, sets: Sequence[str]) -> FlowSpec | None:
    if file is None or Path(file).suffix == ".json":
        return None
    try:
        return load(file, sets)
    except FlowError:
        return None


def _passes(spec: FlowSpec) -> Passes:
    found: dict[str, list[tuple[str, Graph]]] = {}
    try:
        for stop in STOPS:
            for graph in graphs_after(spec, stop):
                found.setdefault(graph.name, []).append((stop, graph))
    except FlowError:
        return {}
    return found


def _sources(plan: Plan) -> list[SourceText]:
    """The flow's own files, under the names that places have."""
    folder = Path(plan.folder)
    found: list[SourceText] = []
    for source in plan.sources:
        if source.role not in ("flow", "include"):
            continue
        path = folder / source.path
        try:
            found.append(SourceText(str(path), path.read_text(encoding="utf-8-sig")[:MOST_SOURCE]))
        except (OSError, UnicodeDecodeError):
            continue
    return found
