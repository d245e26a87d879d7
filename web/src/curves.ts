// After a run: its metrics over the steps.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { line } from "d3-shape";
import { html, section, svg } from "./dom";
import type { View } from "./types";

const WIDTH = 320, HEIGHT = 150, LEFT = 58, BOTTOM = 24, TOP = 8;

export function curvesSection(view: View): HTMLElement | null {
  const curves = Object.entries(view.curves).filter(([, points]) => points.length);
  if (!curves.length) return null;
  return section("curves", "How it went", "Metrics of the run over its steps.", html("div", { class: "curves" }, ...curves.map(([name, points]) => {
    const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
    const spread = Math.max(...ys) - Math.min(...ys) || Math.abs(ys[0]) || 1;
    const x = scaleLinear([Math.min(...xs), Math.max(...xs)], [LEFT, WIDTH - 16]);
    const y = scaleLinear([Math.min(...ys) - 0.05 * spread, Math.max(...ys) + 0.05 * spread], [HEIGHT - BOTTOM, TOP]);
    const left = svg("g", { transform: `translate(${LEFT} 0)`, class: "axis" }), bottom = svg("g", { transform: `translate(0 ${HEIGHT - BOTTOM})`, class: "axis" });
    select(left).call(axisLeft(y).ticks(4).tickFormat((value) => String(Number(Number(value).toPrecision(3)))) as never);
    select(bottom).call(axisBottom(x).ticks(4) as never);
    const last = points[points.length - 1];
    return html("figure", {}, html("figcaption", {}, name),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": `${name}: ${points[0][1].toPrecision(4)} at step ${points[0][0]}, ${last[1].toPrecision(4)} at step ${last[0]}` },
        left, bottom, svg("path", { d: line()(points.map(([a, b]) => [x(a), y(b)])) ?? "", class: "curve", fill: "none" }),
        points.length === 1 ? svg("circle", { cx: x(last[0]), cy: y(last[1]), r: 3, class: "dot" }) : null));
  })));
}
