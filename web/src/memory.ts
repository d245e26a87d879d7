// FITS: the memory of each group of devices over the step, a column of ledger lines for each phase, under its limit.

import { axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { Colours } from "./colours";
import { choosable, html, section, svg } from "./dom";
import type { Line, Phase, Pool, Stage } from "./types";
import { gib, seconds } from "./words";

const WIDTH = 1000, LEFT = 60, BEFORE = 26, HEIGHT = 150, TOP = 16, BOTTOM = 22;

export function memorySection(stage: Stage, colours: Colours): HTMLElement {
  const charts = stage.pools.flatMap((pool) => {
    const devices = [...new Set(pool.phases.map((phase) => phase.device))];
    return devices.map((device) => chart(stage, pool, device, pool.phases.filter((p) => p.device === device), colours));
  });
  return section("fits", "Does it fit", "Estimated peak of each phase while it goes on, before the first step on the left. Choose one for its ledger.",
    ...charts);
}

function chart(stage: Stage, pool: Pool, device: string, phases: Phase[], colours: Colours): HTMLElement {
  const limit = Math.max(...phases.map((phase) => phase.limit_bytes));
  const most = Math.max(limit, ...phases.map((phase) => phase.peak_bytes));
  const before = phases.filter((phase) => !phase.spans.length);
  const start = LEFT + (before.length ? Math.max(before.length * BEFORE, 40) + 14 : 0);
  const x = scaleLinear([0, stage.step_seconds || 1], [start, WIDTH - 10]);
  const y = scaleLinear([0, (most * 1.05) / 2 ** 30], [HEIGHT - BOTTOM, TOP]);
  const columns = [
    ...before.map((phase, place) => column(phase, LEFT + 4 + place * BEFORE, BEFORE - 4, y, colours, pool.name)),
    ...phases.flatMap((phase) => phase.spans.flatMap(([from, length]) => pieces(from, length, stage.step_seconds)
      .map(([a, b]) => column(phase, x(a), Math.max(x(b) - x(a), 2), y, colours, pool.name)))),
  ];
  const axis = svg("g", { transform: `translate(${LEFT - 2} 0)`, class: "axis", "aria-hidden": "true" });
  select(axis).call(axisLeft(y).ticks(4).tickFormat((value) => `${value} GiB`) as never);
  const line = y(limit / 2 ** 30);
  const peak = phases.reduce((a, b) => (b.peak_bytes / b.limit_bytes > a.peak_bytes / a.limit_bytes ? b : a));
  const over = peak.peak_bytes > peak.limit_bytes;
  return html("figure", { class: over ? "over" : "" },
    html("figcaption", {}, html("b", {}, pool.name), ` ${device}: ${gib(peak.peak_bytes)} of ${gib(peak.limit_bytes)} GiB in ${peak.phase}`,
      over ? html("strong", {}, " does not fit") : null),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "group", "data-part": "memory",
      "aria-label": `Memory of ${pool.name}, ${device}, over one step` },
      axis, ...columns,
      svg("line", { x1: LEFT, x2: WIDTH - 10, y1: line, y2: line, class: "limit" }),
      svg("text", { x: WIDTH - 12, y: line - 4, class: "limit", "text-anchor": "end" }, `limit ${gib(limit)} GiB`),
      before.length ? svg("text", { x: LEFT + 4, y: HEIGHT - 6, class: "note" }, "before") : null,
      svg("text", { x: start, y: HEIGHT - 6, class: "note" }, "0 s"),
      svg("text", { x: WIDTH - 10, y: HEIGHT - 6, class: "note", "text-anchor": "end" }, seconds(stage.step_seconds))));
}

function pieces(from: number, length: number, step: number): [number, number][] {
  return from + length > step * (1 + 1e-9) ? [[from, step], [0, from + length - step]] : [[from, from + length]];
}

function column(phase: Phase, x: number, width: number, y: (gibs: number) => number, colours: Colours, pool: string): SVGElement {
  const lines = bytes(phase.lines);
  let sum = 0;
  const blocks = lines.map((line) => {
    const from = y(sum / 2 ** 30);
    sum += line.value;
    const to = y(sum / 2 ** 30);
    return svg("rect", { x, y: to, width, height: Math.max(from - to, 0), style: `--own: ${colours.of(line.role)}` });
  });
  const label = `${phase.phase}: ${gib(phase.peak_bytes)} of ${gib(phase.limit_bytes)} GiB`;
  const told = lines.slice(0, 6).map((line) => `${line.what}${line.role ? ` of ${line.role}` : ""} ${gib(line.value)}`).join("\n");
  const group = svg("g", { class: phase.peak_bytes > phase.limit_bytes ? "phase over" : "phase" },
    svg("title", {}, `${label}\n${told}`), ...blocks,
    svg("rect", { x, y: y(phase.peak_bytes / 2 ** 30), width, height: y(0) - y(phase.peak_bytes / 2 ** 30), class: "frame" }));
  const role = phase.phase.split(" ").pop()!.split(".")[0];
  const op = phase.phase.includes(" ") ? role : phase.phase;
  return choosable(group, label, `memory ${pool} ${phase.device} ${phase.phase}`, op, role, `pool ${pool}`);
}

export function bytes(lines: Line[]): Line[] {
  return lines.filter((line) => line.unit === "bytes" && line.value > 0).sort((a, b) => b.value - a.value);
}
