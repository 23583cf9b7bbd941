// Stages as columns: what receive buffers take without pooling, what is needed, what is held.
import { add, bytes, count, draw, list, make, nameOf } from "./elements.js";

const MOST_GROUPS = 48, HEIGHT = 170, LEFT = 64;
const SHORT = { activation: "act", gradient: "grad", both: "both", unknown: "?" }; // directions in their order

/** Whether a process has ended: then what it held at most is told, for by then it has given its buffers back. */
export const isOver = (report) => ["finished", "ended"].includes(report.state);

/** Whether buffers of a device share memory, or did while the process ran. */
export const hasShared = (report, device) => device.active === true || (isOver(report) && device.one_to_one_peak_bytes > device.physical_peak_bytes);

/** The class of buffers whose memory a channel's share now, or did in a process that has ended, with what was measured of it; or undefined. */
function ownerOf(report, channel) {
  if (report.enforcement?.mode !== "enforce") return undefined;
  return list(report.enforcement.devices).filter((device) => hasShared(report, device) && device.device === channel.device)
    .flatMap((device) => list(device.classes)).find((owner) => owner.receive_bytes === channel.buffer_bytes &&
      typeof owner.physical_bytes === "number" && (owner.direction === "unknown" || owner.direction === channel.direction) &&
      (owner.stage === null || owner.stage === channel.stage_ordinal) && (owner.peer === null || owner.peer === channel.peer));
}

/** A row for each channel: what it holds without pooling (stock), needs, and holds now, or held at most. */
export function rowsOf(job) {
  return list(job.processes).flatMap((report) => list(report.channels).map((channel) => {
    const owner = ownerOf(report, channel);
    const over = isOver(report);
    return owner ? { report, channel, owner,
      stock: over ? owner.requested_peak_bytes ?? owner.one_to_one_peak_bytes : owner.requested_bytes ?? owner.one_to_one_bytes,
      held: over ? owner.physical_peak_bytes : owner.physical_bytes,
      needed: (owner.depth ?? owner.slots ?? 0) * (owner.mapped_bytes ?? owner.receive_bytes) }
      : { report, channel, stock: channel.held_bytes, needed: channel.needed_bytes, held: channel.held_bytes };
  }));
}

/** What the held bytes of rows are. */
export const heldName = (rows) => (rows.length && rows.every(({ report }) => isOver(report)) ? "held at most" : "held now");

/** Sums of rows; what several channels share counts once. */
export function sumOf(rows) {
  const owners = new Set(), sum = { stock: 0, needed: 0, held: 0 };
  for (const row of rows) {
    if (row.owner && owners.has(row.owner)) continue;
    owners.add(row.owner);
    for (const key of ["stock", "needed", "held"]) sum[key] = add([sum[key], row[key]]);
  }
  return sum;
}

/** Rank in the pipeline, where one communicator holds the pipeline; with one for each pair it says nothing. */
function ranksTell(rows) {
  const seen = new Map();
  for (const { report, channel } of rows) {
    if (typeof channel.pipeline_rank !== "number") return false;
    const before = seen.get(report.id) ?? channel.communicator_id;
    if (before !== channel.communicator_id) return false;
    seen.set(report.id, before);
  }
  return true;
}

/** Groups of channels with one column each: stages, over all replicas, or ranks where stages are not known. */
export function groupsOf(rows) {
  const staged = ranksTell(rows), groups = new Map();
  const chunks = rows.some(({ channel }) => channel.stage_ordinal > 0);
  for (const row of rows) {
    const rank = staged ? row.channel.pipeline_rank : row.report.process?.rank ?? row.report.process?.pid ?? 0;
    const chunk = row.channel.stage_ordinal ?? 0, key = rank * 4096 + chunk;
    if (!groups.has(key)) groups.set(key, { key, name: `${rank}${chunks ? `.${chunk}` : ""}`, last: null, rows: [] });
    groups.get(key).rows.push(row);
  }
  const sorted = [...groups.values()].sort((a, b) => a.key - b.key), size = Math.ceil(sorted.length / MOST_GROUPS);
  const bins = [];
  for (let i = 0; i < sorted.length; i += size) {
    const part = sorted.slice(i, i + size);
    bins.push({ name: part[0].name, last: part.length > 1 ? part.at(-1).name : null, rows: part.flatMap((group) => group.rows) });
  }
  return { staged, bins };
}

/** By process and direction; of several processes in one column the one with the largest stock. */
function barsOf(bin) {
  const found = new Map(), bars = [];
  for (const row of bin.rows) {
    const direction = row.owner?.direction === "unknown" ? "both" : row.channel.direction;
    const key = `${row.report.id ?? nameOf(row.report)}/${direction}`;
    if (!found.has(key)) found.set(key, { direction: SHORT[direction] ? direction : "unknown", report: row.report, rows: [] });
    found.get(key).rows.push(row);
  }
  for (const direction of Object.keys(SHORT)) {
    const of = [...found.values()].filter((part) => part.direction === direction).map((part) => ({ ...part, ...sumOf(part.rows) }));
    if (of.length) bars.push({ ...of.reduce((most, part) => (part.stock > most.stock ? part : most)), processes: of.length });
  }
  return bars;
}

function column(bar, x, width, scale, what) {
  const bottom = HEIGHT + 10, wide = Math.max(Math.min((width - 8) / 3, 26), 3), left = x + (width - 3 * wide) / 2;
  const text = `${what}, ${bar.direction}: stock ${bytes(bar.stock)}, needed ${bytes(bar.needed)}, ${heldName([bar])} ${bytes(bar.held)}` +
    (bar.processes > 1 ? ` (largest of ${count(bar.processes)} processes: ${nameOf(bar.report)})` : ` (${nameOf(bar.report)})`);
  const rect = (i, value, kind) => draw("rect", { x: left + i * wide, y: bottom - scale(value), width: wide - 1,
    height: Math.max(scale(value), 1), class: kind });
  return draw("g", { role: "img", "aria-label": text }, draw("title", {}, text), draw("rect", { x, y: 10, width, height: HEIGHT, fill: "transparent" }),
    rect(0, bar.stock, "stock"), rect(1, bar.needed, "needed"), rect(2, bar.held, "held"),
    width >= 26 ? draw("text", { x: x + width / 2, y: bottom + 14, "text-anchor": "middle", class: "soft" }, SHORT[bar.direction]) : null);
}

function axis(most, width) {
  return [0, 0.5, 1].flatMap((part) => {
    const y = HEIGHT + 10 - part * HEIGHT;
    return [draw("line", { x1: LEFT - 4, x2: width, y1: y, y2: y, class: "rule" }),
      draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end", class: "soft" }, bytes(Math.round(most * part)))];
  });
}

function legend(held) {
  const entry = (kind, text) => make("li", {}, draw("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" },
    draw("rect", { width: 8, height: 8, class: kind })), text);
  return make("ul", { class: "legend" }, entry("stock", "stock: one buffer for each microbatch"),
    entry("needed", "needed: most in flight at once"), entry("held", held));
}

/** The chart of a job, at most `room` pixels wide unless it has to scroll. */
export function columnsView(rows, room) {
  const { staged, bins } = groupsOf(rows), bars = bins.map(barsOf);
  const most = Math.max(1, ...bars.flat().flatMap((bar) => [bar.stock, bar.needed, bar.held]));
  const total = add(bars.map((of) => of.length)), gaps = bins.length * 12;
  const each = Math.max(Math.min((room - LEFT - gaps) / total, 90), bins.length > 12 ? 14 : 32);
  const width = Math.ceil(LEFT + gaps + each * total), name = staged ? "stage" : "rank";
  const parts = axis(most, width);
  let x = LEFT;
  bins.forEach((bin, i) => {
    const wide = each * bars[i].length, what = bin.last ? `${name}s ${bin.name} to ${bin.last}` : `${name} ${bin.name}`;
    bars[i].forEach((bar, k) => parts.push(column(bar, x + 6 + k * each, each, (value) => (HEIGHT * value) / most, what)));
    const label = bin.last ? `${bin.name}–${bin.last}` : bin.name;
    if (wide + 12 >= label.length * 7 || i % Math.ceil((label.length * 7 + 8) / (wide + 12)) === 0)
      parts.push(draw("text", { x: x + 6 + wide / 2, y: HEIGHT + 40, "text-anchor": "middle" }, label));
    x += wide + 12;
  });
  parts.push(draw("text", { x: LEFT - 8, y: HEIGHT + 40, "text-anchor": "end", class: "soft" }, `${name}${bins[0]?.last ? "s" : ""}`));
  const caption = `Bytes of receive buffers by ${name} and direction`;
  return make("div", {}, legend(heldName(rows)), make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    draw("svg", { width, height: HEIGHT + 48, role: "group", "aria-label": caption }, ...parts)));
}
