// The slot timeline of the last step: which microbatch sat in which slot when. Where buffers share memory, a row is a
// slot of the pool; elsewhere it is a place that a pool would need, taken as a pool takes it: the one free for longest.
import { bytes, draw, list, make, seconds } from "./elements.js";

const ROW = 24, LINE = 16, LEFT = 62, RIGHT = 12;

const endOf = (life) => life.last_access_seconds ?? life.released_seconds ?? life.posted_seconds;
const isTimed = (life) => typeof life?.posted_seconds === "number";

/** Slot of each address, by class: those that buffers had before they were freed, then those they have. */
function bindingsOf(report) {
  const found = new Map();
  if (report.enforcement?.mode !== "enforce") return found;
  for (const name of ["last_bindings", "bindings"])
    for (const device of list(report.enforcement.devices))
      for (const owner of list(device.classes))
        for (const { address, slot } of list(owner[name]))
          if (typeof slot === "number") found.set(`${device.device}/${address}`, { slot, owner, device: device.device });
  return found;
}

function place(places, begin) {
  let best = -1;
  places.forEach((end, i) => {
    if (end <= begin && (best < 0 || end < places[best])) best = i;
  });
  return best < 0 ? places.push(0) - 1 : best;
}

/** Blocks of rows: a class whose slots are known, or a channel. */
function blocksOf(report) {
  const bound = bindingsOf(report), blocks = new Map();
  for (const channel of list(report.channels)) {
    const size = bytes(channel?.buffer_bytes), peer = `${channel?.direction} from rank ${channel?.peer ?? "?"}`;
    const name = `${peer}, stage ${channel?.stage_ordinal ?? "?"}, ${size}`;
    for (const life of list(channel?.lifetimes).filter(isTimed)) {
      const found = bound.get(`${channel.device}/${life.address}`);
      const at = found && [channel.direction, "unknown"].includes(found.owner.direction) ? found : undefined;
      const key = at ? `class ${at.device}/${at.owner.class}` : name;
      if (!blocks.has(key)) blocks.set(key, { name, slots: at ? at.owner.slots : 0, real: Boolean(at), alone: bound.size > 0, lives: [] });
      const block = blocks.get(key);
      if (block.name !== name) block.name = `several channels, ${size}`;
      block.lives.push({ life, direction: channel.direction, row: at ? at.slot : null });
    }
  }
  return [...blocks.values()].map(settle);
}

function settle(block) {
  const places = [];
  block.lives.sort((a, b) => a.life.posted_seconds - b.life.posted_seconds);
  for (const entry of block.lives) {
    if (entry.row === null) entry.row = place(places, entry.life.posted_seconds);
    places[entry.row] = endOf(entry.life);
  }
  return { ...block, rows: Math.max(block.slots, ...block.lives.map((entry) => entry.row + 1)) };
}

function tell({ life, direction, row }, block, from) {
  const first = life.first_access_seconds;
  return `Microbatch ${life.microbatch}, ${direction}, ${block.real ? "slot" : "place"} ${row}: posted at ${seconds(life.posted_seconds - from)}` +
    (typeof first === "number" ? `, first read ${seconds(first - life.posted_seconds)} later` : ", never read") +
    (typeof life.last_access_seconds === "number" ? `, last read ${seconds(life.last_access_seconds - life.posted_seconds)} after the post` : "") +
    `; ${life.accesses ?? "?"} uses` + (life.last_access_kernel ? `, the last by ${life.last_access_kernel}` : "") + (life.label ? ` (${life.label})` : "");
}

function bar(entry, block, top, scale, from) {
  const { life } = entry, y = top + entry.row * ROW + 2, text = tell(entry, block, from);
  const first = life.first_access_seconds ?? endOf(life), kind = entry.direction === "gradient" ? "life gradient" : "life";
  const x = scale(life.posted_seconds), used = scale(first), end = Math.max(scale(endOf(life)), x + 3), label = String(life.microbatch);
  const part = (begin, until, extra) => draw("rect", { x: begin, y, width: Math.max(until - begin, 0), height: ROW - 4, class: `${kind} ${extra}` });
  const whole = draw("rect", { x, y, width: end - x, height: ROW - 4, rx: 2, class: "life-frame", fill: "transparent", role: "img", tabindex: -1, "aria-label": text },
    draw("title", {}, text));
  return draw("g", {}, part(x, Math.min(used, end), "waiting"), part(Math.min(used, end - 2), end, "used"),
    end - used >= label.length * 7 + 6 ? draw("text", { x: end - 4, y: y + 14, "text-anchor": "end", class: "on" }, label) : null, whole);
}

/** Arrow keys, Home and End walk through the bars; the timeline is one stop of the Tab key. */
function walkable(svg, show) {
  const bars = [...svg.querySelectorAll(".life-frame")];
  let at = 0;
  const go = (to) => {
    bars[at].setAttribute("tabindex", -1);
    at = Math.min(Math.max(to, 0), bars.length - 1);
    bars[at].setAttribute("tabindex", 0);
  };
  if (bars.length) go(0);
  bars.forEach((element, i) => {
    const say = () => show(element.getAttribute("aria-label"));
    element.addEventListener("focus", () => (go(i), say()));
    element.addEventListener("pointerenter", say);
  });
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: bars.length - 1 }[event.key];
    if (to === undefined || !bars.length) return;
    event.preventDefault();
    go(to);
    bars[at].focus();
  });
}

function legend() {
  const entry = (kind, text) => make("li", {}, draw("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, draw("rect", { width: 8, height: 8, class: kind })), text);
  return make("ul", { class: "legend" }, entry("life used", "activation, in use"), entry("life gradient used", "gradient, in use"),
    entry("life waiting", "posted, not read yet"));
}

/** The timeline of one process, `room` pixels wide. `show` is told about the bar in focus. */
export function timelineView(report, room, show) {
  const blocks = blocksOf(report);
  if (!blocks.length) return make("p", { class: "empty" }, "No complete step was seen yet.");
  const all = blocks.flatMap((block) => block.lives.map((entry) => entry.life)), width = Math.max(room, 320);
  const from = Math.min(...all.map((life) => life.posted_seconds)), to = Math.max(...all.map(endOf), from + 1e-9);
  const scale = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT - RIGHT), parts = [];
  let top = 4;
  for (const block of blocks) {
    const kind = block.real ? `${block.slots} slots that share memory` : block.alone ? "buffers with memory of their own"
      : `${block.rows} of ${block.lives.length} buffers in use at once`;
    for (const text of room < 600 ? [`${block.name}:`, kind] : [`${block.name}: ${kind}`])
      parts.push(draw("text", { x: 0, y: (top += LINE) - 3 }, text));
    top += 6;
    for (let row = 0; row < block.rows; row++)
      parts.push(draw("line", { x1: LEFT, x2: width - RIGHT, y1: top + (row + 1) * ROW - 1, y2: top + (row + 1) * ROW - 1, class: "rule" }),
        draw("text", { x: LEFT - 8, y: top + row * ROW + 16, "text-anchor": "end", class: "soft" }, `${block.real ? "slot" : "place"} ${row}`));
    parts.push(...block.lives.map((entry) => bar(entry, block, top, scale, from)));
    top += block.rows * ROW + 8;
  }
  for (const part of [0, 0.5, 1])
    parts.push(draw("text", { x: scale(from + part * (to - from)), y: top + 12, "text-anchor": ["start", "middle", "end"][part * 2], class: "soft" }, seconds(part * (to - from))));
  const svg = draw("svg", { width, height: top + 18, role: "group", "aria-label": "Slots over time; arrow keys walk through the microbatches" }, ...parts);
  walkable(svg, show);
  return make("div", {}, legend(), make("div", { class: "scroll", role: "region", "aria-label": "Timeline" }, svg));
}
