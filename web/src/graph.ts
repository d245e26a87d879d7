// WHAT: the dataflow. Ops are boxes, laid out by dagre; data, weights and interactions are three kinds of arrows.

import { Graph as Layout, layout as lay } from "@dagrejs/dagre";
import { curveBasis, line } from "d3-shape";
import { Colours } from "./colours";
import { choosable, html, section, svg } from "./dom";
import type { Arrow, Graph, Node, Stage } from "./types";

const BOX = { height: 44, margin: 12, letter: 7.4 };

interface Drawn { node: Node; x: number; y: number; width: number }

export function graphSection(stage: Stage, colours: Colours, redraw: () => void): HTMLElement {
  const stack = html("div", { class: "graph", "data-part": "graph" });
  const last = stage.graphs.length - 1;
  const removed = html("p", { class: "removed" });
  const name = html("output", {}, "");
  const show = (place: number): void => {
    const graph = stage.graphs[place];
    const before = place > 0 && place < last + 1 && last > 0 ? new Set(stage.graphs[place - 1].nodes.map((n) => n.id)) : null;
    stack.replaceChildren(picture(graph, colours, before));
    name.textContent = place === 0 && last > 0 ? "as written" : last === 0 ? graph.name : `after ${graph.name} (${place} of ${last})`;
    removed.textContent = graph.removed.length ? `left out: ${graph.removed.join(" · ")}` : "";
    redraw();
  };
  const slider = html("input", {
    type: "range", min: 0, max: last, value: last, step: 1, "aria-label": "Passes of the compiler", class: "passes",
  });
  slider.addEventListener("input", () => show(Number(slider.value)));
  const passes = last > 0 ? html("div", { class: "slider" }, html("span", {}, "passes"), slider, name) : null;
  const made = section("what", "What runs", "Each box is an op of a role; → data, ⇒ weights, ↔ turn by turn.",
    passes, stack, legend(), removed);
  show(last);
  return made;
}

function legend(): HTMLElement {
  const arrow = (kind: string, text: string): HTMLElement =>
    html("span", {}, svg("svg", { width: 34, height: 10, "aria-hidden": "true" },
      svg("line", { x1: 1, y1: 5, x2: 33, y2: 5, class: `arrow ${kind}` })), text);
  return html("p", { class: "legend" }, arrow("data", "data"), arrow("weights", "weights"), arrow("interaction", "interaction"));
}

function picture(graph: Graph, colours: Colours, before: Set<string> | null): SVGSVGElement {
  const layout = laidOut(graph);
  const known = new Map<string, Drawn>();
  for (const node of graph.nodes) {
    const { x, y, width } = layout.node(node.id) as { x: number; y: number; width: number };
    known.set(node.id, { node, x, y, width });
  }
  const [left, top, width, height] = frame(layout);
  const heads = svg("defs", {}, ...["data", "weights", "interaction"].map(head));
  const arrows = graph.arrows.filter((a) => known.has(a.source) && known.has(a.target)).map((a) => drawnArrow(a, layout));
  const boxes = [...known.values()].map((drawn) => box(drawn, colours, before));
  return svg("svg", {
    viewBox: `${left} ${top} ${width} ${height}`, width, height, style: `min-width: ${Math.round(0.7 * width)}px`, role: "group", "aria-label": `The dataflow: ${graph.nodes.length} ops`,
  }, heads, ...arrows, ...boxes);
}

// Arrows may leave the box that the nodes fill.
function frame(layout: Layout): [number, number, number, number] {
  const size = layout.graph() as { width: number; height: number };
  const points = layout.edges().flatMap((edge) => (layout.edge(edge) as unknown as { points: { x: number; y: number }[] }).points);
  const left = Math.floor(Math.min(0, ...points.map((p) => p.x - 4))), top = Math.floor(Math.min(0, ...points.map((p) => p.y - 4)));
  const right = Math.max(size.width || 0, ...points.map((p) => p.x + 4)), bottom = Math.max(size.height || 0, ...points.map((p) => p.y + 4));
  return [left, top, Math.ceil(right - left) + 2, Math.ceil(bottom - top) + 2];
}

function laidOut(graph: Graph): Layout {
  const made = new Layout({ multigraph: true });
  made.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 44, marginx: 8, marginy: 8, acyclicer: "greedy" });
  made.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) {
    const letters = Math.max(node.label.length, node.note.length + node.kind.length + 3);
    made.setNode(node.id, { width: letters * BOX.letter + 2 * BOX.margin, height: BOX.height });
  }
  for (const arrow of graph.arrows)
    // Weights go back against the data: they must not turn the picture round.
    if (made.hasNode(arrow.source) && made.hasNode(arrow.target)) {
      const [from, to] = arrow.kind === "weights" ? [arrow.target, arrow.source] : [arrow.source, arrow.target];
      made.setEdge(from, to, { weight: arrow.kind === "data" ? 2 : 1 }, arrow.kind);
    }
  lay(made);
  return made;
}

function head(kind: string): SVGElement {
  return svg("marker", {
    id: `head-${kind}`, viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
  }, svg("path", { d: "M0 0L10 5L0 10z", class: `head ${kind}` }));
}

const curve = line<{ x: number; y: number }>((p) => p.x, (p) => p.y).curve(curveBasis);

function drawnArrow(arrow: Arrow, layout: Layout): SVGElement {
  const back = arrow.kind === "weights";
  const edge = layout.edge({ v: back ? arrow.target : arrow.source, w: back ? arrow.source : arrow.target, name: arrow.kind });
  const points = (edge as unknown as { points: { x: number; y: number }[] }).points;
  const way = curve(back ? [...points].reverse() : points) ?? "";
  const both = arrow.kind === "interaction" ? `url(#head-${arrow.kind})` : null;
  return svg("path", {
    d: way, class: `arrow ${arrow.kind}`, fill: "none", "marker-end": `url(#head-${arrow.kind})`, "marker-start": both,
    "data-ends": JSON.stringify([arrow.source, arrow.target]),
  }, svg("title", {}, `${arrow.source} ${{ data: "→", weights: "⇒", interaction: "↔" }[arrow.kind]} ${arrow.target}: ${arrow.text}`));
}

function box(drawn: Drawn, colours: Colours, before: Set<string> | null): SVGElement {
  const { node, x, y, width } = drawn;
  const added = before !== null && !before.has(node.id);
  const note = [node.kind, node.note].filter(Boolean).join(" · ");
  const group = svg("g", {
    class: `op${node.derived ? " derived" : ""}${added ? " added" : ""}`, transform: `translate(${x - width / 2} ${y - BOX.height / 2})`,
    style: `--own: ${colours.of(node.role)}`, "data-box": node.id,
  },
    svg("rect", { width, height: BOX.height, rx: 6 }),
    svg("rect", { width: 5, height: BOX.height, rx: 2, class: "tab" }),
    svg("text", { x: BOX.margin, y: 18 }, node.label),
    svg("text", { x: BOX.margin, y: 34, class: "note" }, added ? `${note} · new` : note));
  return choosable(group, `${node.label}, ${note}`, node.id, node.role, `pool ${node.pool}`);
}
