// The page of a plan. State lives in the fragment (stage, what is chosen, theme), so that a link shows the same again.

import { clusterSection } from "./cluster";
import { Colours } from "./colours";
import { curvesSection } from "./curves";
import { html } from "./dom";
import { graphSection } from "./graph";
import { inspected } from "./inspector";
import { memorySection } from "./memory";
import { markLines, sourceSection } from "./source";
import { timeSection, type Shown } from "./time";
import type { Stage, View } from "./types";
import { messagesSection, whySection } from "./why";

const view = JSON.parse(document.getElementById("view")!.textContent!) as View;
const page = document.getElementById("page")!;
let stage: Stage = view.stages[0];
let chosen = "";
let shown: Shown = "estimated";

function parameters(): URLSearchParams {
  return new URLSearchParams(location.hash.slice(1));
}

function remember(changes: Record<string, string>): void {
  const known = parameters();
  for (const [name, value] of Object.entries(changes)) if (value) known.set(name, value); else known.delete(name);
  history.replaceState(null, "", `#${known.toString()}`);
}

function build(): void {
  const colours = new Colours(stage.pools.flatMap((pool) => pool.roles.map((each) => each.role)));
  const main = html("main", { id: "main" }, messagesSection(view), graphSection(stage, colours, mark), clusterSection(view, stage),
    timeSection(stage, colours, shown), memorySection(stage, colours), whySection(stage), curvesSection(view), sourceSection(view, stage));
  const aside = html("aside", { id: "inspector", "aria-live": "polite", "aria-label": "What is chosen" });
  page.replaceChildren(header(), html("div", { class: "columns" }, main, aside));
  mark();
}

function header(): HTMLElement {
  const verdict = html("span", { class: `verdict ${view.verdict}` }, view.verdict === "fits" ? "fits" : "does not fit");
  const stages = view.stages.length > 1 ? html("nav", { "aria-label": "Stages", class: "stages" }, ...view.stages.map((each) => {
    const button = html("button", { type: "button", "aria-pressed": String(each === stage) }, each.name);
    button.addEventListener("click", () => { stage = each; chosen = ""; remember({ stage: each.name, id: "" }); build(); });
    return button;
  })) : null;
  const told = shown === "measured" && stage.measured_figures.length ? stage.measured_figures : stage.figures;
  const figures = html("dl", { class: "figures" }, ...told.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
  return html("header", { class: "top" }, html("div", { class: "title" }, html("h1", {}, view.name),
    html("span", { class: "digest" }, `flow ${view.digest} · ${view.cluster}`), verdict, tools()), stages, figures);
}

function tools(): HTMLElement {
  const theme = html("button", { type: "button" }, "light or dark");
  theme.addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    remember({ theme: document.documentElement.dataset.theme });
  });
  const ran = view.stages.some((each) => each.pools.some((pool) => pool.bars.some((bar) => bar.measured !== null)));
  const both: Shown[] = ["estimated", "measured"];
  const toggle = ran ? html("span", { role: "group", "aria-label": "Times" }, ...both.map((each) => {
    const button = html("button", { type: "button", "aria-pressed": String(each === shown) }, each);
    button.addEventListener("click", () => { shown = each; remember({ times: each }); build(); });
    return button;
  })) : null;
  return html("span", { class: "tools" }, toggle, theme);
}

function keysOf(element: Element): string[] {
  return JSON.parse(element.getAttribute("data-keys") ?? "[]") as string[];
}

// Everything that stands for what is chosen is marked; what shares its role is near to it.
function mark(): void {
  const roles = new Set<string>();
  document.querySelectorAll("[data-keys]").forEach((each) => { const keys = keysOf(each); if (keys[0] === chosen) keys.slice(1).forEach((key) => roles.add(key)); });
  document.querySelectorAll("[data-keys]").forEach((each) => {
    const keys = keysOf(each);
    each.classList.toggle("chosen", chosen !== "" && keys.includes(chosen));
    each.classList.toggle("near", chosen !== "" && !keys.includes(chosen) && keys.some((key) => !key.startsWith("pool ") && roles.has(key)));
    each.setAttribute("aria-pressed", String(chosen !== "" && keys[0] === chosen));
  });
  for (const name of ["data-hit", "data-device", "data-ends"])
    document.querySelectorAll(`[${name}]`).forEach((each) => {
      const keys = JSON.parse(each.getAttribute(name)!) as string[];
      each.classList.toggle("chosen", chosen !== "" && (keys.includes(chosen) || (name === "data-device" && roles.has(keys[0]))));
    });
  page.classList.toggle("choosing", chosen !== "");
  const aside = document.getElementById("inspector");
  if (!aside) return;
  aside.replaceChildren(...(chosen ? inspected(stage, chosen) : [html("p", { class: "hint" }, "Choose an op, a role, a device or a decision: it is marked in every part of the page, and its numbers open here. Esc lets go.")]));
  const known = [chosen, ...roles].map((key) => stage.places[key]).filter(Boolean);
  markLines(known.slice(0, chosen in stage.places ? 1 : 2), true);
}

function choose(key: string): void {
  chosen = key === chosen ? "" : key;
  remember({ id: chosen });
  mark();
}

page.addEventListener("click", (event) => {
  const target = event.target as Element;
  const line = target.closest("[data-line-ids]");
  const found = target.closest("[data-keys]");
  if (found) choose(keysOf(found)[0]);
  else if (line) {
    const ids = JSON.parse(line.getAttribute("data-line-ids")!) as string[];
    choose(ids[(ids.indexOf(chosen) + 1) % ids.length]);
  }
});

document.addEventListener("keydown", (event) => {
  const target = event.target as Element;
  if (event.key === "Escape" && chosen) choose(chosen);
  else if ((event.key === "Enter" || event.key === " ") && target.matches("[data-keys]")) { event.preventDefault(); choose(keysOf(target)[0]); }
  else if (["ArrowRight", "ArrowLeft"].includes(event.key) && target.matches("[data-keys]")) {
    const all = [...(target.closest("section") ?? page).querySelectorAll<HTMLElement>("[data-keys]")];
    all[all.indexOf(target as HTMLElement) + (event.key === "ArrowRight" ? 1 : -1)]?.focus();
    event.preventDefault();
  }
});

function restore(): void {
  const known = parameters();
  stage = view.stages.find((each) => each.name === known.get("stage")) ?? view.stages[0];
  chosen = known.get("id") ?? "";
  shown = known.get("times") === "measured" ? "measured" : "estimated";
  const theme = known.get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  build();
}

window.addEventListener("hashchange", restore);
restore();
