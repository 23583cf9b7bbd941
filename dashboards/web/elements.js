// Elements and text. Text from reports only ever becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

export function bytes(value) {
  if (typeof value !== "number") return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0, rest = Math.abs(value);
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit++;
  }
  return `${value < 0 ? "−" : ""}${unit && rest % 1 ? rest.toFixed(1) : rest} ${units[unit]}`;
}

export function seconds(value) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  if (size >= 120) return `${Math.round(value / 60)} min`;
  if (size >= 1) return `${value.toFixed(size < 10 ? 1 : 0)} s`;
  if (size >= 1e-3) return `${(value * 1e3).toFixed(2)} ms`;
  return size >= 1e-6 || !size ? `${(value * 1e6).toFixed(size < 1e-5 && size ? 1 : 0)} µs` : `${(value * 1e9).toFixed(0)} ns`;
}

export const count = (value) => (typeof value === "number" ? value.toLocaleString("en") : "–");
export const list = (value) => (Array.isArray(value) ? value : []);
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
export const add = (values) => values.reduce((sum, value) => sum + (typeof value === "number" ? value : 0), 0);

/** "rank 3" where the rank is known, else host and process. */
export function nameOf(report) {
  const rank = report.process?.rank;
  return typeof rank === "number" ? `rank ${rank}` : whereOf(report);
}

export const whereOf = (report) => `${report.process?.host ?? "?"}:${report.process?.pid ?? "?"}`;

// ---- tables

export function cell(text, kind) {
  return make("td", { class: kind }, text);
}

/** A table that scrolls by itself where it is too wide. `heads`: [name, class]. */
export function table(caption, heads, rows) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...heads.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)))),
      make("tbody", {}, ...rows)));
}
