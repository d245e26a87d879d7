// What is chosen, in full: its ledger lines, columns and decisions.

import { bytes } from "./memory";
import { html } from "./dom";
import type { Line, Phase, Pool, Stage } from "./types";
import { amount, gib, seconds } from "./words";

export function inspected(stage: Stage, key: string): HTMLElement[] {
  const graph = stage.graphs[stage.graphs.length - 1];
  const op = stage.graphs.flatMap((each) => each.nodes).filter((node) => node.id === key).pop();
  const pool = stage.pools.find((each) => `pool ${each.name}` === key);
  const decision = stage.decisions.find((each) => each.id === key);
  const bar = stage.pools.flatMap((each) => each.bars).find((each) => each.id === key);
  const phase = stage.pools.flatMap((each) => each.phases.map((p): [Pool, Phase] => [each, p])).find(([each, p]) => `memory ${each.name} ${p.device} ${p.phase}` === key);
  const living = stage.pools.flatMap((each) => each.roles).find((each) => each.role === key);
  const title = (text: string, kind: string): HTMLElement => html("h3", {}, text, html("small", {}, kind));
  if (phase) {
    const [where, { phase: name, device, peak_bytes, limit_bytes, lines }] = phase;
    return [title(name, `memory of ${where.name}, ${device}`), html("p", {}, `${gib(peak_bytes)} of ${gib(limit_bytes)} GiB`), ledger(bytes(lines))];
  }
  if (bar) return [title(bar.text, "instruction"), ...took(bar.seconds, bar.measured), ...(bar.work.length ? [ledger(bar.work)] : [])];
  if (op) {
    const bars = stage.pools.flatMap((each) => each.bars).filter((each) => each.target === key);
    const here = graph.nodes.some((node) => node.id === key);
    return [title(op.id, `${op.kind}${op.derived ? ", added by the compiler" : ""}${here ? "" : ", left out of the plan"}`),
      ...(op.note ? [html("p", {}, `${op.note} in pool ${op.pool}`)] : []),
      ...list("reads", op.reads), ...list("writes", op.writes), ...(bars[0]?.work.length ? [ledger(bars[0].work)] : []), ...choices(stage, op.role)];
  }
  if (pool) {
    const size = pool.devices.length ? `${pool.devices.length.toLocaleString("en")} × ${pool.device}` : "the host";
    return [title(pool.name, `pool of ${size}`), ...list("roles", pool.roles.map((each) => `${each.role} ${each.layout}`))];
  }
  if (living) {
    return [title(living.role, living.kind), html("p", {}, [living.backend, living.layout, ...living.notes].filter(Boolean).join(" · ")),
      ...list("ops", graph.nodes.filter((node) => node.role === key).map((node) => node.label)), ...choices(stage, key)];
  }
  if (decision) return [title(decision.id, decision.what), html("p", {}, decision.text), ...list("rejected", decision.rejected.map((each) => `${each.option}: ${each.reason.replaceAll("_", " ")}${each.delta ? `, ${each.delta}` : ""}`))];
  return [html("p", {}, key)];
}

function took(estimated: number, measured: number | null): HTMLElement[] {
  const ratio = measured === null || estimated <= 0 ? "" : `, × ${(measured / estimated).toFixed(2)}`;
  return [html("p", {}, `estimated ${seconds(estimated)}${measured === null ? "" : ` · measured ${seconds(measured)}${ratio}`}`)];
}

function choices(stage: Stage, role: string): HTMLElement[] {
  return list("decisions", stage.decisions.filter((each) => each.what.split(/\W+/).includes(role)).map((each) => `${each.id} ${each.what}: ${each.chosen}`));
}

function list(name: string, values: string[]): HTMLElement[] {
  return values.length ? [html("h4", {}, name), html("ul", {}, ...values.map((value) => html("li", {}, value)))] : [];
}

function ledger(lines: Line[]): HTMLElement {
  return html("table", { class: "ledger" }, html("tbody", {}, ...lines.map((line) => {
    const inputs = Object.entries(line.inputs).map(([name, value]) => `${name} = ${String(value)}${line.origins[name] ? ` (${line.origins[name]})` : ""}`);
    return html("tr", {}, html("td", {}, html("details", {},
      html("summary", {}, `${line.what}${line.role ? ` of ${line.role}` : ""}`, html("span", {}, amount(line.value, line.unit))),
      html("code", {}, line.formula), html("ul", {}, ...inputs.map((each) => html("li", {}, each))))));
  })));
}
