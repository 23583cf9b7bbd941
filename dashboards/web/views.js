// What is drawn: functions from documents of the API to elements. Text from reports only ever becomes text nodes
// and attributes.

const SVG = "http://www.w3.org/2000/svg";

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  return fill(element, attributes, children);
}

function draw(name, attributes = {}, ...children) {
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
  return `${value < 0 ? "−" : ""}${unit ? rest.toFixed(1) : rest} ${units[unit]}`;
}

const count = (value) => (typeof value === "number" ? value.toLocaleString("en") : "–");
const list = (value) => (Array.isArray(value) ? value : []);

export function devicesOf(report) {
  return list(report.enforcement?.devices);
}

function sumOf(object) {
  return Object.values(object ?? {}).reduce((sum, value) => sum + (typeof value === "number" ? value : 0), 0);
}

export function jobNumbers(job) {
  const numbers = { held: job.totals.held_bytes, needed: job.totals.needed_bytes, wouldSave: job.totals.would_save_bytes,
    physical: 0, saved: 0, violated: 0, prevented: 0, sharing: 0, depth: 0 };
  for (const report of list(job.processes)) {
    for (const channel of list(report.channels)) numbers.depth = Math.max(numbers.depth, channel.depth ?? 0);
    for (const device of devicesOf(report)) {
      numbers.physical += device.physical_bytes ?? 0;
      numbers.saved += device.saved_bytes ?? 0;
      numbers.violated += sumOf(device.conflicts?.violated);
      numbers.prevented += sumOf(device.conflicts?.prevented);
      numbers.sharing += device.active && report.mode === "enforce" ? 1 : 0;
    }
  }
  return numbers;
}

function figure(name, value, kind) {
  return make("div", {}, make("dt", {}, name), make("dd", { class: kind }, value));
}

function who(report) {
  const rank = report.process?.rank;
  const name = `${report.process?.host ?? "?"}:${report.process?.pid ?? "?"}`;
  return typeof rank === "number" ? `rank ${rank} (${name})` : name;
}

// ---- stages as columns

function stageRows(job) {
  const rows = [];
  for (const report of list(job.processes))
    for (const channel of list(report.channels)) {
      const shared = devicesOf(report).flatMap((device) => (device.active ? list(device.classes) : []))
        .filter((c) => c.direction === channel.direction && c.stage === channel.stage_ordinal && c.receive_bytes === channel.buffer_bytes);
      const pooled = report.mode === "enforce" && shared.length > 0 && typeof shared[0].physical_bytes === "number";
      rows.push({ report, channel, held: pooled ? shared[0].physical_bytes : channel.held_bytes });
    }
  return rows;
}

const COLUMN = 46, HEIGHT = 150;

function column(row, index, most) {
  const { channel } = row, x = 40 + index * COLUMN;
  const scale = (value) => (most > 0 ? (HEIGHT * value) / most : 0);
  const text = `${who(row.report)}, ${channel.direction}, stage ${channel.stage_ordinal}: stock ${bytes(channel.held_bytes)}, ` +
    `needed ${bytes(channel.needed_bytes)}, held ${bytes(row.held)}`;
  const bar = (offset, value, kind) =>
    draw("rect", { x: x + offset, y: HEIGHT + 10 - scale(value), width: 10, height: Math.max(scale(value), 1), class: kind });
  return draw("g", { role: "img", "aria-label": text }, draw("title", {}, text), bar(0, channel.held_bytes, "stock"),
    bar(12, channel.needed_bytes, "needed"), bar(24, row.held, "held"),
    draw("text", { x: x + 17, y: HEIGHT + 25, "text-anchor": "middle" }, String(row.report.process?.rank ?? index)),
    draw("text", { x: x + 17, y: HEIGHT + 38, "text-anchor": "middle", class: "soft" }, channel.direction === "gradient" ? "grad" : "act"));
}

function legend() {
  const entry = (kind, text) => make("li", {}, draw("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, draw("rect", { width: 8, height: 8, class: kind })), text);
  return make("ul", { class: "legend" }, entry("stock", "stock: one buffer per microbatch"), entry("needed", "needed: in flight at once"), entry("held", "held now"));
}

function columns(rows) {
  const most = Math.max(1, ...rows.map((row) => row.channel.held_bytes));
  const width = 50 + rows.length * COLUMN;
  const svg = draw("svg", { width, height: HEIGHT + 45, role: "group", "aria-label": "Bytes by rank and direction" },
    draw("line", { x1: 36, x2: width, y1: HEIGHT + 10, y2: HEIGHT + 10, class: "rule" }),
    draw("text", { x: 0, y: 14, class: "soft" }, bytes(most)), ...rows.map((row, index) => column(row, index, most)));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Bytes by rank and direction" }, svg);
}

// ---- the table of channels

function cell(text, kind) {
  return make("td", { class: kind }, text);
}

export function table(caption, heads, rows) {
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...heads.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)))),
      make("tbody", {}, ...rows)));
}

function channelRow(row) {
  const { report, channel } = row;
  return make("tr", {}, cell(who(report), "text"), cell(channel.direction, "text"), cell(count(channel.stage_ordinal)),
    cell(count(channel.buffers)), cell(count(channel.depth)), cell(count(channel.slots)), cell(bytes(channel.buffer_bytes)),
    cell(bytes(channel.held_bytes)), cell(bytes(channel.needed_bytes)), cell(bytes(row.held)),
    cell(channel.decision?.reason ?? "", "text"), cell(channel.decision?.text ?? "", "text wide"));
}

const CHANNEL_HEADS = [["process", "text"], ["direction", "text"], ["stage"], ["N"], ["D"], ["K"], ["buffer"], ["stock"], ["needed"], ["held now"], ["decision", "text"], ["what that means", "text"]];

export function jobView(job, index, now) {
  const numbers = jobNumbers(job), rows = stageRows(job);
  const stale = list(job.processes).filter((report) => report.state === "running" && now - report.written_unix_seconds > 60).length;
  const running = list(job.processes).filter((report) => report.state === "running").length - stale;
  const state = running ? "running" : stale ? "stale" : "finished";
  return make("section", { "aria-label": `Job ${index + 1}` },
    make("h3", {}, `Job ${index + 1}: ${list(job.processes).length} processes `, make("span", { class: `state ${state === "stale" ? "mark" : ""}` }, state)),
    make("p", { class: "conclusion" }, job.conclusion ?? ""),
    make("dl", { class: "figures" }, figure("stock", bytes(numbers.held)), figure("needed", bytes(numbers.needed)),
      numbers.sharing ? figure("saved now, measured", bytes(numbers.saved), "good") : figure("pooling would save", bytes(numbers.wouldSave)),
      figure("processes that pool", `${numbers.sharing} of ${list(job.processes).length}`),
      figure("violations", count(numbers.violated), numbers.violated ? "bad" : "good"),
      figure("prevented", count(numbers.prevented), numbers.prevented ? "mark" : "")),
    rows.length ? legend() : make("p", { class: "empty" }, "No receives of this job were seen yet."),
    rows.length ? columns(rows) : null,
    rows.length ? make("details", {}, make("summary", {}, "All numbers"), table("Channels", CHANNEL_HEADS, rows.map(channelRow))) : null);
}

// ---- violations

function side(what) {
  if (!what) return "";
  const parts = [what.call, what.function, typeof what.microbatch === "number" ? `microbatch ${what.microbatch}` : null,
    typeof what.step === "number" ? `step ${what.step}` : null, `stream ${what.stream}`, `buffer ${what.address}`];
  return parts.filter(Boolean).join(", ");
}

export function violationsView(jobs) {
  const rows = [];
  for (const job of jobs)
    for (const report of list(job.processes))
      for (const device of devicesOf(report))
        for (const conflict of list(device.conflicts?.kept))
          rows.push(make("tr", {}, cell(who(report), "text"), cell(conflict.kind, "text"),
            cell(report.mode !== "enforce" ? "would be prevented" : conflict.prevented ? "prevented" : "violation", `text ${conflict.prevented ? "" : "bad"}`),
            cell(side(conflict.earlier), "text wide"), cell(side(conflict.later), "text wide")));
  if (!rows.length) return make("p", { class: "empty" }, "None.");
  return table("Conflicts, the first ones of each process", [["process", "text"], ["kind", "text"], ["", "text"], ["earlier use", "text"], ["what came to it", "text"]], rows);
}

export function skippedView(skipped) {
  return table("Skipped files", [["file", "text"], ["reason", "text"]],
    skipped.map((entry) => make("tr", {}, cell(entry.path ?? entry.name ?? "", "text wide"), cell(entry.reason ?? "", "text"))));
}

// ---- the slot timeline of the last step

function lane(lanes, begin) {
  let best = -1; // the lane that has been free for longest, as the pool chooses
  lanes.forEach((end, i) => {
    if (end <= begin && (best < 0 || end < lanes[best])) best = i;
  });
  if (best < 0) best = lanes.push(0) - 1;
  return best;
}

function lifeBars(lifetimes, show) {
  const posted = lifetimes.filter((life) => typeof life.posted_seconds === "number").sort((a, b) => a.posted_seconds - b.posted_seconds);
  const endOf = (life) => life.last_access_seconds ?? life.released_seconds ?? life.posted_seconds;
  const from = Math.min(...posted.map((life) => life.posted_seconds)), to = Math.max(...posted.map(endOf), from + 1e-9);
  const lanes = [], width = 860, left = 60;
  const x = (seconds) => left + ((seconds - from) / (to - from)) * (width - left - 10);
  const bars = posted.map((life) => {
    const slot = lane(lanes, life.posted_seconds);
    lanes[slot] = endOf(life);
    const first = life.first_access_seconds ?? endOf(life), y = 8 + slot * 22;
    const text = `Microbatch ${life.microbatch} in place ${slot}: posted at ${((life.posted_seconds - from) * 1e3).toFixed(3)} ms, first read after ` +
      `${((first - life.posted_seconds) * 1e3).toFixed(3)} ms, last read after ${((endOf(life) - life.posted_seconds) * 1e3).toFixed(3)} ms; ${life.accesses} accesses` +
      (life.last_access_kernel ? `, the last by ${life.last_access_kernel}` : "");
    const box = (begin, end, kind) => draw("rect", { x: x(begin), y, width: Math.max(x(end) - x(begin), 2), height: 18, rx: 2, class: kind });
    const whole = draw("rect", { x: x(life.posted_seconds), y, width: Math.max(x(endOf(life)) - x(life.posted_seconds), 4), height: 18, rx: 2,
      fill: "transparent", class: "life-focus", tabindex: 0, role: "img", "aria-label": text });
    const tell = () => show(text);
    whole.addEventListener("focus", tell);
    whole.addEventListener("pointerenter", tell);
    return draw("g", {}, draw("title", {}, text), box(life.posted_seconds, first, "life waiting"), box(first, endOf(life), "life"),
      draw("text", { x: x(life.posted_seconds) + 3, y: y + 13 }, String(life.microbatch)), whole);
  });
  return { bars, lanes: lanes.length, width, span: to - from };
}

export function timelineView(lifetimes, show) {
  if (!list(lifetimes).length) return make("p", { class: "empty" }, "No complete step was seen yet.");
  const { bars, lanes, width, span } = lifeBars(lifetimes, show);
  const height = lanes * 22 + 30;
  const names = Array.from({ length: lanes }, (_, i) => draw("text", { x: 0, y: 21 + i * 22, class: "soft" }, `place ${i}`));
  return make("div", { class: "scroll" }, draw("svg", { width, height, role: "group", "aria-label": `${lanes} places are enough for ${lifetimes.length} messages` },
    ...names, ...bars, draw("text", { x: width - 10, y: height - 6, "text-anchor": "end", class: "soft" }, `${(span * 1e3).toFixed(2)} ms`),
    draw("text", { x: 60, y: height - 6, class: "soft" }, "grey: posted, not read yet; blue: in use")));
}
