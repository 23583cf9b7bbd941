// Asks the API, keeps what was seen since the page was opened, and puts the views in place.
import { bytes, jobNumbers, jobView, make, skippedView, timelineView, violationsView } from "./views.js";

const REFRESH_MS = 2000, HISTORY = 900;
const at = (id) => document.getElementById(id);
const history = [];
let paused = false, jobs = [], charts = null, shownLifetimes = "";

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

/** Replaces the content unless it is the same, so that focus and open details stay. */
function put(target, key, view) {
  if (target.dataset.key === key) return;
  const open = [...target.querySelectorAll("details")].map((details) => details.open);
  target.dataset.key = key;
  target.replaceChildren(...[].concat(view()));
  [...target.querySelectorAll("details")].forEach((details, i) => (details.open = open[i] ?? false));
}

function say(text, kind = "") {
  const status = at("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = kind;
}

// ---- history

function remember(document_) {
  const sum = { time: document_.now_unix_seconds, held: 0, needed: 0, physical: 0, saved: 0, depth: 0 };
  for (const job of jobs) {
    const numbers = jobNumbers(job);
    for (const key of ["held", "needed", "physical", "saved"]) sum[key] += numbers[key];
    sum.depth = Math.max(sum.depth, numbers.depth);
  }
  history.push(sum);
  if (history.length > HISTORY) history.shift();
}

function line(label, colour) {
  return { label, data: [], borderColor: colour, backgroundColor: colour, borderWidth: 2, pointRadius: 0, stepped: true };
}

function makeChart(id, datasets, format) {
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink"), rule = style.getPropertyValue("--line");
  return new window.Chart(at(id), { type: "line", data: { labels: [], datasets },
    options: { animation: false, maintainAspectRatio: false, interaction: { mode: "index", intersect: false },
      plugins: { legend: { labels: { color: ink } }, tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${format(item.parsed.y)}` } } },
      scales: { x: { ticks: { color: ink, maxTicksLimit: 6 }, grid: { color: rule } },
        y: { beginAtZero: true, ticks: { color: ink, callback: format, maxTicksLimit: 6 }, grid: { color: rule } } } } });
}

function makeCharts() {
  if (!window.Chart) {
    at("history-section").hidden = true; // its library is not installed
    return null;
  }
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  return { bytes: makeChart("bytes-chart", [line("stock", colour("--stock")), line("needed", colour("--needed")), line("saved", colour("--held"))], bytes),
    depth: makeChart("depth-chart", [line("depth", colour("--held"))], (value) => String(value)) };
}

function drawHistory() {
  if (!charts) return;
  const labels = history.map((entry) => new Date(entry.time * 1000).toLocaleTimeString());
  const set = (chart, keys) => {
    chart.data.labels = labels;
    keys.forEach((key, i) => (chart.data.datasets[i].data = history.map((entry) => entry[key])));
    chart.update("none");
  };
  set(charts.bytes, ["held", "needed", "saved"]);
  set(charts.depth, ["depth"]);
}

// ---- choosing a process and a channel

function choices(select, entries) {
  const key = JSON.stringify(entries), chosen = select.value;
  if (select.dataset.key === key) return;
  select.dataset.key = key;
  select.replaceChildren(...entries.map(([value, text]) => make("option", { value }, text)));
  if (entries.some(([value]) => value === chosen)) select.value = chosen;
}

const allReports = () => jobs.flatMap((job) => job.processes ?? []);

function offerProcesses() {
  choices(at("process"), allReports().map((report) => [String(report.id), typeof report.process?.rank === "number"
    ? `rank ${report.process.rank}, pid ${report.process.pid}` : `pid ${report.process?.pid}`]));
  const report = allReports().find((entry) => String(entry.id) === at("process").value);
  choices(at("channel"), (report?.channels ?? []).map((channel, i) => [String(i),
    `${channel.direction}, stage ${channel.stage_ordinal}, from ${channel.peer ?? "?"}`]));
  return report;
}

async function drawTimeline() {
  const report = offerProcesses(), target = at("timeline"), index = Number(at("channel").value || 0);
  const key = report ? `${report.id}/${index}/${report.totals?.steps_complete}` : "none";
  if (key === shownLifetimes) return;
  if (!report || !report.channels?.length) {
    put(target, key, () => make("p", { class: "empty" }, "No channel to show."));
    shownLifetimes = key;
    return;
  }
  const whole = await ask(`/api/v1/processes/${report.id}`);
  shownLifetimes = key;
  put(target, key, () => timelineView(whole.channels?.[index]?.lifetimes, (text) => (at("timeline-detail").textContent = text)));
}

// ---- refreshing

function drawJobs(document_) {
  const age = Math.max(0, ...allReports().map((report) => document_.now_unix_seconds - report.written_unix_seconds));
  const key = JSON.stringify(document_.jobs) + (age > 60);
  put(at("jobs"), key, () => jobs.length ? jobs.map((job, i) => jobView(job, i, document_.now_unix_seconds))
    : make("p", { class: "empty" }, "No process has written a report yet. Start a job with recvpool run."));
  put(at("violations"), key, () => violationsView(jobs));
  at("skipped-section").hidden = !document_.skipped?.length;
  put(at("skipped"), JSON.stringify(document_.skipped), () => skippedView(document_.skipped ?? []));
}

async function refresh() {
  try {
    const document_ = await ask("/api/v1/job");
    jobs = document_.jobs ?? [];
    remember(document_);
    drawJobs(document_);
    drawHistory();
    await drawTimeline();
    const processes = allReports().length;
    say(`${jobs.length} job${jobs.length === 1 ? "" : "s"}, ${processes} process${processes === 1 ? "" : "es"}, as of ${new Date(document_.now_unix_seconds * 1000).toLocaleTimeString()}`);
  } catch (error) {
    say(`The server does not answer (${error.message}); what is shown may be old.`, "bad");
  }
}

async function loop() {
  if (!paused && !document.hidden) await refresh();
  setTimeout(loop, REFRESH_MS);
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  at("pause").textContent = paused ? "Resume" : "Pause";
});
for (const id of ["process", "channel"]) at(id).addEventListener("change", () => drawTimeline().catch(() => {}));
charts = makeCharts();
loop();
