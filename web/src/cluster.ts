// WHERE: every device of the cluster, coloured by the pool that holds it, and the roles of each pool.

import { choosable, html, section } from "./dom";
import type { Stage, View } from "./types";
import { percent } from "./words";

const MOST_NODES = 160;

export function clusterSection(view: View, stage: Stage): HTMLElement {
  const owner = new Map<string, number>();
  stage.pools.forEach((pool, place) => pool.devices.forEach((device) => owner.set(device, place)));
  const shown = view.nodes.slice(0, MOST_NODES);
  const rest = view.nodes.length - shown.length;
  const map = html("div", { class: "map", "data-part": "cluster" }, ...shown.map(([name, devices]) =>
    html("div", { class: "node", title: name }, html("span", { class: "name" }, name),
      html("span", { class: "devices" }, ...devices.map((device) => {
        const place = owner.get(device);
        const pool = place === undefined ? null : stage.pools[place];
        return html("i", {
          title: pool ? `${device}: ${pool.name}` : `${device}: not used`, class: pool ? "" : "free",
          style: pool ? `--own: var(--pool-${place! % 8})` : null, "data-device": pool ? JSON.stringify([`pool ${pool.name}`]) : null,
        }, pool ? pool.name.slice(0, 1) : "");
      })))));
  const pools = html("div", { class: "pools" }, ...stage.pools.map((pool, place) => {
    const size = pool.devices.length ? `${pool.devices.length.toLocaleString("en")} × ${pool.device}` : "on the host";
    const head = choosable(html("div", { class: "pool-head", style: `--own: var(--pool-${place % 8})` },
      html("b", {}, pool.name), html("span", {}, size), html("span", { class: "busy" }, `busy ${percent(pool.busy)}`)),
      `pool ${pool.name}, ${size}, busy ${percent(pool.busy)}`, `pool ${pool.name}`);
    return html("div", { class: "pool" }, head, html("table", {}, html("tbody", {}, ...pool.roles.map((each) =>
      html("tr", { "data-hit": JSON.stringify([each.role, `pool ${pool.name}`]) },
        html("td", {}, choosable(html("span", { class: "role" }, each.role), `role ${each.role}`, each.role, `pool ${pool.name}`)),
        html("td", {}, each.backend), html("td", {}, each.layout), html("td", {}, each.notes.join(", ")))))));
  }));
  return section("where", "Where", `${view.cluster}. Devices show the first letter of their pool.`,
    map, rest > 0 ? html("p", { class: "hint" }, `and ${rest.toLocaleString("en")} more nodes`) : null, pools);
}
