// The live page: asks the server, keeps what was seen since the page was opened, and shows it.
import { bytes, list } from "./elements.js";
import { STALE_SECONDS, numbersOf } from "./job.js";
import { chosenProcess, onResize, showOverview, showTimeline, summaryOf } from "./page.js";

const REFRESH_MS = 2000, HISTORY = 900, ANSWER_MS = 10000;
const at = (id) => document.getElementById(id);
const history = [];
let paused = false, overview = null, charts = null, whole = null;

async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS) });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

function say(text, kind = "") {
  const status = at("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = kind;
}

// ---- history

function remember() {
  const sum = { time: overview.now_unix_seconds, stock: 0, needed: 0, saved: 0, depth: 0 };
  for (const job of list(overview.jobs)) {
    const numbers = numbersOf(job);
    for (const key of ["stock", "needed", "saved"]) sum[key] += numbers[key];
    sum.depth = Math.max(sum.depth, numbers.depth);
  }
  history.push(sum);
  if (history.length > HISTORY) history.shift();
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function line(label, name) {
  return { label, data: [], borderColor: colour(name), backgroundColor: colour(name), borderWidth: 2, pointRadius: 0, stepped: true };
}

function makeChart(id, datasets, format, step) {
  const ticks = { color: colour("--ink"), maxTicksLimit: 6, maxRotation: 0 }, grid = { color: colour("--line") };
  return new window.Chart(at(id), { type: "line", data: { labels: [], datasets },
    options: { animation: false, maintainAspectRatio: false, interaction: { mode: "index", intersect: false },
      plugins: { legend: { labels: { color: colour("--ink"), boxWidth: 12 } },
        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${format(item.parsed.y)}` } } },
      scales: { x: { ticks, grid }, y: { beginAtZero: true, ticks: { ...ticks, ...step, callback: format }, grid } } } });
}

const elapsed = (time) => `${Math.floor(time / 60)}:${String(Math.floor(time % 60)).padStart(2, "0")}`;

function makeCharts() {
  for (const chart of Object.values(charts ?? {})) chart.destroy();
  charts = { bytes: makeChart("bytes-chart", [line("stock", "--stock"), line("needed", "--needed"), line("saved", "--held")], bytes, {}),
    depth: makeChart("depth-chart", [line("in flight", "--held")], String, { precision: 0 }) };
}

function drawHistory() {
  const drawn = Boolean(window.Chart) && history.length > 1 && list(overview?.jobs).length > 0; // its library may not be installed
  at("history-section").hidden = !drawn;
  if (!drawn) return;
  if (!charts) makeCharts(); // not before there is room for them
  const labels = history.map((entry) => elapsed(entry.time - history[0].time));
  const most = Math.max(1, ...history.map((entry) => Math.max(entry.stock, entry.needed, entry.saved)));
  charts.bytes.options.scales.y.ticks.stepSize = 2 ** Math.ceil(Math.log2(most / 4)); // so that ticks are round
  const set = (chart, keys) => {
    chart.data.labels = labels;
    keys.forEach((key, i) => (chart.data.datasets[i].data = history.map((entry) => entry[key])));
    chart.update("none");
  };
  set(charts.bytes, ["stock", "needed", "saved"]);
  set(charts.depth, ["depth"]);
  const last = history.at(-1);
  at("bytes-chart").setAttribute("aria-label", `Over time; now stock ${bytes(last.stock)}, needed ${bytes(last.needed)}, saved ${bytes(last.saved)}`);
  at("depth-chart").setAttribute("aria-label", `Over time; now ${last.depth} messages in flight in the deepest channel`);
}

// ---- refreshing

/** The chosen process with its lifetimes, which the overview leaves out; asked for again only when it has changed. */
async function drawTimeline() {
  const report = overview && chosenProcess(overview);
  if (!report) return;
  const key = `${report.id}/${report.written_unix_seconds}`;
  if (whole?.key !== key) {
    const found = await ask(`/api/v1/processes/${report.id}`);
    // a step ends rarely; what was drawn stays as long as it shows the same one
    const step = `${report.id}/${list(found.channels).map((channel) => channel?.lifetimes?.[0]?.step)}/${list(report.enforcement?.devices).map((device) => device.active)}`;
    whole = { key, step, report: { ...report, channels: list(found.channels) } };
  }
  showTimeline(whole.report, whole.step);
}

function drawOverview() {
  const now = overview.now_unix_seconds, processes = list(overview.jobs).flatMap((job) => list(job.processes));
  const stale = processes.filter((report) => report.state === "running" && now - report.written_unix_seconds > STALE_SECONDS);
  const age = stale.length ? Math.floor(now / 30) : 0; // what says how old it is, is drawn again now and then
  showOverview(overview, `${processes.map((report) => `${report.id}:${report.written_unix_seconds}:${report.state}`)}/${stale.length}/${age}`, now);
}

async function refresh() {
  try {
    overview = await ask("/api/v1/job");
    remember();
    drawOverview();
    drawHistory();
    await drawTimeline();
    say(`${summaryOf(overview)}, as of ${new Date(overview.now_unix_seconds * 1000).toLocaleTimeString()}`);
  } catch (error) {
    say(`The server does not answer (${error.message}); what is shown may be old.`, "bad");
  }
}

async function loop() {
  if (!paused && !document.hidden) await refresh();
  setTimeout(loop, REFRESH_MS);
}

function redraw() {
  if (!overview) return;
  drawOverview();
  drawHistory();
  drawTimeline().catch(() => {});
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
});
at("process").addEventListener("change", () => drawTimeline().catch(() => {}));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (charts) makeCharts(); // in the other colours
  redraw();
});
onResize(redraw);
loop();
