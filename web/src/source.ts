// The flow as it is written, with the lines of what is chosen marked.

import { html, section } from "./dom";
import type { Place, Stage, View } from "./types";

export function sourceSection(view: View, stage: Stage): HTMLElement | null {
  if (!view.sources.length) return null;
  const starts = new Map<string, string[]>();
  for (const [id, place] of Object.entries(stage.places)) {
    const at = `${place.file}:${place.line}`;
    starts.set(at, [...(starts.get(at) ?? []), id]);
  }
  const files = view.sources.map((source) =>
    html("figure", {}, html("figcaption", {}, source.path),
      html("pre", { tabindex: "0", "aria-label": `Source of ${source.path}` }, ...source.text.replace(/\n$/, "").split("\n").map((text, place) => {
        const ids = starts.get(`${source.path}:${place + 1}`);
        const line = html("span", { class: ids ? "line known" : "line", "data-line": `${source.path}:${place + 1}`, "data-number": place + 1 }, `${text}\n`);
        if (ids) line.setAttribute("data-line-ids", JSON.stringify(ids));
        return line;
      }))));
  return section("source", "Source", "Choose anything on the page and its lines are marked; choose a marked line to find it.", ...files);
}

export function markLines(places: Place[], scroll: boolean): void {
  document.querySelectorAll(".line.at").forEach((line) => line.classList.remove("at"));
  for (const [place, { file, line, end_line }] of places.entries())
    for (let at = line; at <= Math.min(end_line, line + 40); at += 1) {
      const found = document.querySelector(`[data-line="${CSS.escape(`${file}:${at}`)}"]`);
      found?.classList.add("at");
      if (found && scroll && place === 0 && at === line) {
        const box = found.parentElement!;
        box.scrollTop = (found as HTMLElement).offsetTop - box.offsetTop - box.clientHeight / 3;
      }
    }
}
