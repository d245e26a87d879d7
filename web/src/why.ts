// WHY: the decisions, each with what was chosen, what was rejected and the key that overrides it.

import { choosable, html, section } from "./dom";
import type { Decision, Message, Stage, View } from "./types";

export function whySection(stage: Stage): HTMLElement {
  return section("why", "Why so", "What the flow left open and how it was settled.",
    html("ol", { class: "decisions" }, ...stage.decisions.map((each) => decision(each, stage))));
}

function decision(each: Decision, stage: Stage): HTMLElement {
  const roles = stage.pools.flatMap((pool) => pool.roles.map((living) => living.role)).filter((role) => each.what.split(/\W+/).includes(role));
  const head = choosable(html("div", { class: "decision-head" }, html("b", {}, each.id), html("span", {}, each.text),
    html("em", {}, each.reason.replaceAll("_", " "))), `decision ${each.id}: ${each.what}, ${each.chosen}`, each.id, ...roles);
  const rejected = each.rejected.length
    ? html("ul", {}, ...each.rejected.map((other) => html("li", {}, `not ${other.option}: ${other.reason.replaceAll("_", " ")}${other.delta ? `, ${other.delta}` : ""}`)))
    : null;
  const chosen = html("p", { class: "chosen" }, `${each.what}: ${each.chosen}`, each.override ? html("code", {}, ` override: ${each.override}`) : null);
  return html("li", { id: `decision-${each.id}` }, head, chosen, rejected);
}

export function messagesSection(view: View): HTMLElement | null {
  if (!view.messages.length) return null;
  return section("messages", view.verdict === "infeasible" ? "It does not fit" : "Warnings", "",
    html("ul", { class: "messages" }, ...view.messages.map(message)));
}

function message(each: Message): HTMLElement {
  return html("li", { class: each.severity },
    html("b", {}, `${each.code} `), each.text, each.place ? html("span", { class: "place" }, ` ${each.place.file}:${each.place.line}`) : null,
    each.helps.length ? html("ul", {}, ...each.helps.map((help) => html("li", {}, help))) : null);
}
