// The page around the views: what it shows of one overview, for the live page and for a report's file alike.
import { list, make, plural } from "./elements.js";
import { jobView, nameIn, skippedView, violationsView } from "./job.js";
import { timelineView } from "./timeline.js";

const at = (id) => document.getElementById(id);

/** Replaces the content unless it is the same, so that focus, open details and the reader's place stay. */
export function put(target, key, view) {
  if (target.dataset.key === key) return;
  const open = [...target.querySelectorAll("details")].map((details) => details.open);
  const scrolled = [...target.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box === document.activeElement]);
  target.dataset.key = key;
  target.replaceChildren(...[view()].flat());
  target.querySelectorAll("details").forEach((details, i) => (details.open = open[i] ?? false));
  target.querySelectorAll(".scroll").forEach((box, i) => {
    box.scrollLeft = scrolled[i]?.[0] ?? 0;
    if (scrolled[i]?.[1]) box.focus({ preventScroll: true });
  });
}

/** Pixels that a chart in `target` may take, in a section of its own or not. */
const roomIn = (target, nested) => Math.max((target.clientWidth || 320) - (nested ? 26 : 0), 280);

/** What there is to say where no process is shown. */
function emptyText(overview) {
  const where = overview.report_dir ? ` to ${overview.report_dir}` : "";
  if (overview.report_dir_problem)
    return `The report folder ${overview.report_dir} cannot be read: ${overview.report_dir_problem}. Is it spelled right? It is looked for again every second.`;
  return `No process has written a report${where} yet. Start a job with: recvpool run -- COMMAND`;
}

/** Everything but the timeline. `now` as for jobView; `key` changes whenever the overview does. */
export function showOverview(overview, key, now) {
  const jobs = list(overview.jobs), room = roomIn(at("jobs"), true);
  put(at("jobs"), `${key}/${room}/${overview.report_dir_problem}`, () => jobs.length ? jobs.map((job, i) => jobView(job, i, now, room))
    : make("p", { class: "empty" }, emptyText(overview)));
  put(at("violations"), key, () => violationsView(jobs));
  at("skipped-section").hidden = !list(overview.skipped).length;
  put(at("skipped"), JSON.stringify(overview.skipped), () => skippedView(list(overview.skipped)));
  at("timeline-section").hidden = !offerProcesses(overview);
  at("violations-section").hidden = !jobs.length;
}

/** Fills the list of processes, with the one that holds most chosen; returns their number. */
function offerProcesses(overview) {
  const jobs = list(overview.jobs), select = at("process"), entries = [];
  let most = -1, largest = null;
  jobs.forEach((job, i) => list(job.processes).forEach((report, k) => {
    if (!list(report.channels).length) return;
    entries.push([`${i}/${k}`, nameIn(jobs, i, report)]);
    if (report.totals?.held_bytes > most) [most, largest] = [report.totals.held_bytes, entries.at(-1)[0]];
  }));
  const key = JSON.stringify(entries), chosen = select.value;
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
    if (entries.some(([value]) => value === chosen)) select.value = chosen;
    else if (largest) select.value = largest;
  }
  return entries.length;
}

/** The process that the reader has chosen, or undefined. */
export function chosenProcess(overview) {
  const [job, process] = at("process").value.split("/").map(Number);
  return list(list(overview.jobs)[job]?.processes)[process];
}

export function showTimeline(report, key) {
  const target = at("timeline"), room = roomIn(target, false), detail = at("timeline-detail");
  put(target, `${key}/${room}`, () => {
    detail.textContent = "Point at a bar, or walk along the bars with the arrow keys.";
    return timelineView(report, room, (text) => (detail.textContent = text));
  });
}

/** "2 jobs, 8 processes" */
export function summaryOf(overview) {
  const jobs = list(overview.jobs);
  return `${plural(jobs.length, "job")}, ${plural(jobs.reduce((sum, job) => sum + list(job.processes).length, 0), "process", "processes")}`;
}

/** Calls `redraw` when the window's width has changed and stands still again. */
export function onResize(redraw) {
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (width === window.innerWidth) return;
      width = window.innerWidth;
      redraw();
    }, 150);
  });
}
