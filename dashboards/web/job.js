// One job: its figures, what follows from them, the channels as a table, and its unsafe reuse.
import { add, bytes, cell, count, list, make, nameOf, plural, seconds, table, whereOf } from "./elements.js";
import { columnsView, hasShared, heldName, isOver, rowsOf, sumOf } from "./columns.js";

export const STALE_SECONDS = 60;
const ENDED = "ended without a final report";
const TABLE_ROWS = 512, CONFLICT_ROWS = 50;

export const devicesOf = (report) => list(report.enforcement?.devices);
const enforces = (report) => report.enforcement?.mode === "enforce";

/** Sums over a job; of depths the largest. */
export function numbersOf(job) {
  const numbers = { ...sumOf(rowsOf(job)), wouldSave: 0, saved: 0, violated: 0, prevented: 0, wouldPrevent: 0, sharing: 0, asked: 0, depth: 0 };
  for (const report of list(job.processes)) {
    numbers.wouldSave = add([numbers.wouldSave, report.totals?.would_save_bytes]);
    for (const channel of list(report.channels)) numbers.depth = Math.max(numbers.depth, channel.depth ?? 0);
    if (enforces(report)) numbers.asked++;
    for (const device of devicesOf(report)) {
      if (!enforces(report)) {
        numbers.wouldPrevent = add([numbers.wouldPrevent, ...Object.values(device.prevented ?? {})]);
        continue;
      }
      numbers.saved = add([numbers.saved, ...(isOver(report) ? list(device.classes).map((owner) => owner.saved_peak_bytes) : [device.saved_bytes])]);
      numbers.violated = add([numbers.violated, ...Object.values(device.violated ?? {})]);
      numbers.prevented = add([numbers.prevented, ...Object.values(device.prevented ?? {})]);
    }
    if (enforces(report) && devicesOf(report).some((device) => hasShared(report, device))) numbers.sharing++;
  }
  return numbers;
}

/** A process, with its job where there are several: each of them has a rank 0. */
export function nameIn(jobs, index, report) {
  return (jobs.length > 1 ? `job ${jobs[index].number ?? index + 1}, ` : "") + nameOf(report);
}

// ---- how it goes

export function stateOf(report, now) {
  if (["finished", "ended"].includes(report.state)) return report.state;
  return now !== null && now - report.written_unix_seconds > STALE_SECONDS ? "stale" : report.state === "running" ? "running" : "unknown";
}

function jobState(job, now) {
  const states = list(job.processes).map((report) => stateOf(report, now));
  for (const state of ["running", "stale", "ended", "finished"]) if (states.includes(state)) return state;
  return "unknown";
}

function staleText(job, now) {
  const stale = list(job.processes).filter((report) => stateOf(report, now) === "stale");
  if (!stale.length) return null;
  const age = Math.min(...stale.map((report) => now - report.written_unix_seconds));
  return make("p", { class: "mark" }, stale.length === list(job.processes).length
    ? `No process has written for ${seconds(age)}: the job was killed, or it hangs. The numbers are the last ones it wrote.`
    : `${plural(stale.length, "process", "processes")} of it (${stale.slice(0, 4).map(nameOf).join(", ")}${stale.length > 4 ? ", …" : ""}) ` +
      `no longer write${stale.length === 1 ? "s" : ""}, for at least ${seconds(age)}.`);
}

function figure(name, value, kind) {
  return make("div", {}, make("dt", {}, name), make("dd", { class: kind }, value));
}

function figuresOf(job, numbers) {
  const processes = list(job.processes).length, share = numbers.stock ? ` (${Math.round((100 * numbers.needed) / numbers.stock)}%)` : "";
  const figures = [figure("receive buffers (stock)", bytes(numbers.stock)), figure("needed at once", bytes(numbers.needed) + share)];
  if (numbers.asked) {
    const over = list(job.processes).every(isOver);
    figures.push(figure(over ? "saved, measured" : "saved now, measured", bytes(numbers.saved), numbers.saved > 0 ? "good" : ""),
      figure(over ? "pooling was on in" : "pooling is on in", `${count(numbers.sharing)} of ${count(processes)}`, numbers.sharing ? "good" : "mark"),
      figure("violations", numbers.violated ? count(numbers.violated) : "none", numbers.violated ? "bad" : "good"),
      figure("prevented", numbers.prevented ? count(numbers.prevented) : "none"));
  } else {
    figures.push(figure("pooling would save", bytes(numbers.wouldSave)), figure("pooling", "off (observed only)"));
    if (numbers.wouldPrevent) figures.push(figure("pooling would prevent", plural(numbers.wouldPrevent, "conflict")));
  }
  return make("dl", { class: "figures" }, ...figures);
}

function notesOf(job) {
  const notes = list(job.notes).map((note) => make("li", {}, note.processes > 1 ? `${note.text} (${count(note.processes)} processes)` : note.text));
  const reasons = list(job.processes).flatMap((report) => [report.enforcement?.refused, ...devicesOf(report).flatMap((device) => [device.refused,
    enforces(report) && !device.active && device.idle?.reason !== "freed" ? device.idle : null])]);
  const seen = new Map();
  for (const reason of reasons) if (reason?.text) seen.set(`${reason.text} (${reason.reason})`, (seen.get(`${reason.text} (${reason.reason})`) ?? 0) + 1);
  for (const [text, times] of seen) notes.unshift(make("li", {}, `Not shared: ${text}${times > 1 ? `, ${count(times)} times` : ""}`));
  return notes.length ? make("ul", { class: "notes" }, ...notes) : null;
}

// ---- the table of channels

const headsOf = (rows) => [["process", "text"], ["direction", "text"], ["stage"], ["peer"], ["N"], ["D"], ["K"], ["buffer"], ["stock"], ["needed"],
  ["would save"], [heldName(rows)], ["decision", "text"]];

function channelRow({ report, channel, stock, needed, held }) {
  const steady = !(channel.depth_max > channel.buffers); // else what was counted as a step was none, and there is no depth
  return make("tr", {}, make("th", { scope: "row", class: "text" }, `${nameOf(report)} (${whereOf(report)})`), cell(channel.direction ?? "?", "text"),
    cell(count(channel.stage_ordinal)), cell(count(channel.peer)), cell(count(channel.buffers)),
    cell(steady ? channel.depth_min !== channel.depth_max ? `${count(channel.depth_min)}–${count(channel.depth_max)}` : count(channel.depth) : "–"),
    cell(steady ? count(channel.slots) : "–"), cell(bytes(channel.buffer_bytes)), cell(bytes(stock)), cell(bytes(needed)),
    cell(bytes(channel.would_save_bytes)), cell(bytes(held)), cell(channel.decision?.reason ?? "?", "text"));
}

function tableView(rows) {
  const meanings = new Map();
  for (const { channel } of rows) if (channel.decision?.reason) meanings.set(channel.decision.reason, channel.decision.text ?? "");
  return make("details", {}, make("summary", {}, "All numbers"),
    table("Channels: N buffers in a step, D in flight at once, K slots that a pool has", headsOf(rows), rows.slice(0, TABLE_ROWS).map(channelRow)),
    rows.length > TABLE_ROWS ? make("p", {}, `The first ${count(TABLE_ROWS)} of ${count(rows.length)} channels; recvpool report shows all.`) : null,
    make("dl", { class: "meanings" }, ...[...meanings].flatMap(([word, text]) => [make("dt", {}, word), make("dd", {}, text)])));
}

/** A job with everything but its timeline. `now`: seconds since 1970, or null where the document does not age. */
export function jobView(job, index, now, room) {
  const numbers = numbersOf(job), rows = rowsOf(job), state = jobState(job, now), processes = list(job.processes);
  const begun = Math.min(...processes.map((report) => report.process?.start_unix_seconds ?? Infinity));
  const when = Number.isFinite(begun) ? `, since ${new Date(begun * 1000).toLocaleString()}` : "";
  const title = `job-${index}-title`;
  return make("section", { "aria-labelledby": title },
    make("h3", { id: title }, `Job ${job.number ?? index + 1}: ${plural(processes.length, "process", "processes")}${when} `,
      make("span", { class: `state ${["stale", "ended"].includes(state) ? "mark" : state === "running" ? "good" : ""}` }, state === "ended" ? ENDED : state)),
    job.title ? make("p", { class: "title" }, job.title) : null,
    make("p", { class: numbers.violated ? "conclusion bad" : "conclusion" }, job.conclusion ?? ""),
    job.next_step ? make("p", { class: "next" }, job.next_step) : null, staleText(job, now),
    figuresOf(job, numbers),
    rows.length ? columnsView(rows, room) : make("p", { class: "empty" }, "No receives of this job were seen yet."),
    notesOf(job), rows.length ? tableView(rows) : null);
}

// ---- unsafe reuse

function side(what) {
  if (!what) return "";
  const parts = [what.call, what.function, typeof what.microbatch === "number" ? `microbatch ${what.microbatch}` : null,
    typeof what.step === "number" ? `step ${what.step}` : null, `stream ${what.stream ?? "?"}`, `buffer ${what.buffer ?? "?"} at ${what.address ?? "?"}`];
  return parts.filter(Boolean).join(", ");
}

function outcome(report, conflict) {
  if (enforces(report)) return conflict.prevented ? "prevented" : "VIOLATION";
  return conflict.prevented ? "would be prevented" : "would be a violation";
}

export function violationsView(jobs) {
  const found = jobs.flatMap((job, i) => list(job.processes).flatMap((report) => devicesOf(report).flatMap((device) =>
    list(device.conflicts).map((conflict) => ({ name: nameIn(jobs, i, report), report, device, conflict })))));
  if (!found.length) return make("p", { class: "empty" }, "None was seen.");
  found.sort((a, b) => (a.conflict.prevented ? 1 : 0) - (b.conflict.prevented ? 1 : 0));
  const rows = found.slice(0, CONFLICT_ROWS).map(({ name, report, device, conflict }) => make("tr", {},
    make("th", { scope: "row", class: "text" }, name), cell(outcome(report, conflict), `text ${conflict.prevented ? "" : "bad"}`),
    cell(conflict.kind ?? "?", "text"), cell(count(device.device)), cell(count(conflict.slot)),
    cell(side(conflict.earlier), "text wide"), cell(side(conflict.later), "text wide")));
  return make("div", {}, table("The first conflicts of each process, violations before what was prevented",
    [["process", "text"], ["outcome", "text"], ["kind", "text"], ["device"], ["slot"], ["earlier use", "text"], ["what came to it", "text"]], rows),
  found.length > rows.length ? make("p", {}, `and ${count(found.length - rows.length)} more.`) : null);
}

export function skippedView(skipped) {
  return table("Skipped files", [["file", "text"], ["reason", "text"]],
    skipped.map((entry) => make("tr", {}, make("th", { scope: "row", class: "text wide" }, entry.name ?? entry.path ?? ""), cell(entry.reason ?? "", "text"))));
}
