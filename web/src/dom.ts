// Elements in one expression.

type Child = Element | string | null | undefined;
type Attributes = Record<string, string | number | boolean | null | undefined>;

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}

export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// A section of the page under a title.
export function section(id: string, title: string, hint: string, ...children: Child[]): HTMLElement {
  return html("section", { id, "aria-labelledby": `${id}-title` },
    html("header", {}, html("h2", { id: `${id}-title` }, title), html("p", { class: "hint" }, hint)), ...children);
}

// Makes `element` something that can be chosen, by mouse and keys. `keys`: all that it stands for, the first is its own.
export function choosable<E extends Element>(element: E, label: string, ...keys: string[]): E {
  element.setAttribute("tabindex", "0");
  element.setAttribute("role", "button");
  element.setAttribute("aria-label", label);
  element.setAttribute("data-keys", JSON.stringify(keys));
  return element;
}
