// WHEN: one step of the steady state, a lane for each role of each pool. What goes on in the next step comes in again on the left.

import { axisTop } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { Colours } from "./colours";
import { choosable, html, section, svg } from "./dom";
import type { Bar, Stage } from "./types";
import { seconds } from "./words";

const WIDTH = 1000, NAMES = 190, LANE = 24, HEAD = 22, TOP = 30;

export type Shown = "estimated" | "measured";

export function timeSection(stage: Stage, colours: Colours, shown: Shown): HTMLElement {
  const measured = shown === "measured";
  const length = (measured && stage.measured_seconds) || stage.step_seconds;
  const stretch = measured && stage.step_seconds > 0 ? length / stage.step_seconds : 1;
  const x = scaleLinear([0, length || 1], [NAMES, WIDTH - 10]);
  const parts: SVGElement[] = [];
  let y = TOP;
  for (const pool of stage.pools) {
    const lanes = [...new Set(pool.bars.map((bar) => bar.role))];
    if (!lanes.length) continue;
    parts.push(svg("text", { x: 4, y: y + 15, class: "pool-name" }, `${pool.name} · busy ${(100 * pool.busy).toFixed(0)} %`));
    y += HEAD;
    for (const role of lanes) {
      parts.push(svg("text", { x: 14, y: y + 16, class: "lane" }, role));
      parts.push(svg("line", { x1: NAMES, x2: WIDTH - 10, y1: y + LANE - 1, y2: y + LANE - 1, class: "rule" }));
      for (const bar of pool.bars.filter((each) => each.role === role))
        parts.push(...drawn(bar, x, y, length, stretch, measured, colours, pool.name));
      y += LANE;
    }
    y += 8;
  }
  const axis = svg("g", { transform: `translate(0 ${TOP - 6})`, class: "axis", "aria-hidden": "true" });
  select(axis).call(axisTop(x).ticks(8).tickFormat((value) => seconds(Number(value))) as never);
  const chart = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${y + 6}`, class: "chart", role: "group", "aria-label": `One step of ${seconds(length)}`, "data-part": "time",
  }, axis, ...parts);
  return section("when", "When", "One step of the steady state. Outlined bars are the circle that bounds it.",
    html("div", { class: "wide" }, chart),
    stage.bound ? html("p", { class: "bound" }, stage.bound) : null, table(stage));
}

function drawn(
  bar: Bar, x: (value: number) => number, y: number, step: number, stretch: number, measured: boolean, colours: Colours, pool: string,
): SVGElement[] {
  const took = measured && bar.measured !== null ? bar.measured : bar.seconds * stretch;
  if (took <= 0) return [];
  const start = (measured && bar.measured_start !== null ? bar.measured_start : bar.start * stretch) % step;
  const pieces: [number, number][] = start + took > step * (1 + 1e-9)
    ? [[start, step], [0, Math.min(start + took - step, step)]] : [[start, start + took]];
  const text = `${bar.text}: ${seconds(took)}${bar.critical ? ", bounds the step" : ""}`;
  return pieces.map(([from, to], place) => {
    const width = Math.max(x(to) - x(from), 1.2);
    const group = svg("g", { class: `bar ${bar.kind}${bar.critical ? " critical" : ""}`, style: `--own: ${colours.of(bar.role)}` },
      svg("title", {}, text), svg("rect", { x: x(from), y: y + 3, width, height: LANE - 7, rx: 2 }),
      width > 60 ? svg("text", { x: x(from) + 5, y: y + 15 }, clipped(bar.text.replace(/^run [^.]*\./, "").replace(/^run /, ""), width)) : null);
    if (place > 0) group.setAttribute("data-again", "");
    return choosable(group, text, bar.id, bar.target, bar.role, `pool ${pool}`);
  });
}

function clipped(text: string, width: number): string {
  const most = Math.floor((width - 8) / 6.4);
  return text.length <= most ? text : most > 1 ? `${text.slice(0, most - 1)}…` : "";
}

// After a run: estimated and measured side by side, the largest misestimate first.
function table(stage: Stage): HTMLElement | null {
  if (!stage.rows.length) return null;
  return html("div", { class: "wide" }, html("table", { class: "misestimates" },
    html("caption", {}, "Estimated and measured, the largest difference first"),
    html("thead", {}, html("tr", {}, ...["instruction", "estimated", "measured", "×"].map((each) => html("th", { scope: "col" }, each)))),
    html("tbody", {}, ...stage.rows.map((row) => html("tr", { "data-hit": JSON.stringify([row.id, row.target, row.role]) },
      html("td", {}, row.id), html("td", {}, seconds(row.seconds)), html("td", {}, seconds(row.measured)),
      html("td", {}, row.measured < 1000 * row.seconds ? (row.measured / row.seconds).toFixed(2) : "-"))))));
}
