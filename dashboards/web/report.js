// The page of `recvpool report --html`: the same views as the live page, of the overview that lies in the file.
import { list, plural } from "./elements.js";
import { chosenProcess, onResize, showOverview, showTimeline, summaryOf } from "./page.js";

const at = (id) => document.getElementById(id);
const overview = JSON.parse(at("overview").textContent);

function drawTimeline() {
  const report = chosenProcess(overview);
  if (!report) return;
  showTimeline(report, at("process").value);
  if (list(report.channels).some((channel) => !channel.lifetimes))
    at("timeline-detail").textContent = `The microbatches of this process were left out, to keep the file small: it holds ` +
      `those of ${plural(overview.processes_with_lifetimes, "process", "processes")}. recvpool report shows any one from its own file.`;
}

function draw() {
  showOverview(overview, "file", null);
  drawTimeline();
}

at("process").addEventListener("change", drawTimeline);
onResize(draw);
draw();
at("status").textContent = summaryOf(overview);
