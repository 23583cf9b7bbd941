"""Metrics, rules and dashboards against a real Prometheus that scrapes `recvpool serve` over live jobs."""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import support
from support import PROGRAMS, RECVPOOL, SOURCE, TRAINER, clean_environment, run, simulated

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
# Often enough for a short test, seldom enough for a busy machine.
SCRAPE, RATE_WINDOW, RATE_WINDOW_SECONDS = "4s", "20s", 20
RULES = os.path.join(SOURCE, "dashboards", "prometheus")
DASHBOARDS = sorted(glob.glob(os.path.join(SOURCE, "dashboards", "grafana", "*.json")))


def load(path):
    with open(path) as file:
        return json.load(file)


def read(name):
    with open(os.path.join(RULES, name)) as file:
        return file.read()


def panels_of(dashboard):
    """Every panel, those in rows too."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


class DashboardFilesTest(support.TestCase):
    """What Grafana wants of a file that it imports or is provisioned with."""

    def test_form(self):
        self.assertEqual(len(DASHBOARDS), 2)
        uids = set()
        for path in DASHBOARDS:
            dashboard = load(path)
            with self.subTest(path):
                self.assertNotIn("__inputs", dashboard)
                self.assertIsNone(dashboard["id"])
                self.assertRegex(dashboard["uid"], "^recvpool-[a-z]+$")
                uids.add(dashboard["uid"])
                self.assertEqual(dashboard["templating"]["list"][0]["type"], "datasource")
                self.assertEqual(len({panel["id"] for panel in panels_of(dashboard)}), len(list(panels_of(dashboard))))
                self.assert_no_overlap(dashboard)
                for panel in panels_of(dashboard):
                    if panel["type"] != "row":
                        self.check_panel(panel)
                links = set(re.findall(r"/d/([a-z-]+)", json.dumps(dashboard)))
                self.assertTrue(links and links <= {"recvpool-fleet", "recvpool-job"}, links)
        self.assertEqual(len(uids), 2)

    def check_panel(self, panel):
        self.assertTrue(panel["description"], panel["title"])
        self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])
        for part in (panel, *panel["targets"]):
            self.assertEqual(part["datasource"], {"type": "prometheus", "uid": "${datasource}"})
        self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]))

    def assert_no_overlap(self, dashboard):
        taken = {}
        for panel in panels_of(dashboard):
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    self.assertIsNone(taken.get((x, y)), (panel["title"], taken.get((x, y))))
                    taken[x, y] = panel["title"]


@unittest.skipUnless(PROMETHEUS and PROMTOOL, "there is no Prometheus on this machine (Debian: prometheus)")
class PrometheusFilesTest(support.TestCase):
    def test_configurations_and_rules(self):
        for arguments in (["check", "config", "prometheus.yml"], ["check", "config", self.without_kubernetes()],
                          ["check", "rules", "recvpool.rules.yml"], ["test", "rules", "recvpool.rules.test.yml"]):
            result = run([PROMTOOL, *arguments], cwd=RULES)
            self.assert_success(result)
            self.assertNotIn("FAILED", result.stdout + result.stderr)

    def without_kubernetes(self):
        """Debian's Prometheus is built without that discovery; everything else of the file is checked."""
        text, count = re.subn(r"    kubernetes_sd_configs:\n(?:      .*\n)+", "    static_configs: [{targets: ['x:1']}]\n",
                              read("kubernetes.yml"))
        self.assertEqual(count, 1)
        path = os.path.join(self.folder, "kubernetes.yml")
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_every_rule_is_tested(self):
        rules, tests = re.findall(r"- (?:record|alert): (\S+)", read("recvpool.rules.yml")), read("recvpool.rules.test.yml")
        alerts = [name for name in rules if name.startswith("Recvpool")]
        self.assertGreater(len(alerts), 8)
        for name in alerts:
            self.assertIn(f"alertname: {name}\n", tests)
        for name in rules:  # those of processes are what those of jobs are made of
            if name.startswith("recvpool:job:") and name != "recvpool:job:device_bytes":
                self.assertIn(f"expr: {name}\n", tests)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(PROMETHEUS and PROMTOOL, "there is no Prometheus on this machine (Debian: prometheus)")
@unittest.skipUnless(support.has_trainer(), "the trainer was not built")
class LiveTest(support.TestCase):
    def train(self, *options, run_options=(), steps="1000000", live=True):
        log = open(os.path.join(self.folder, "train.log"), "a")
        self.addCleanup(log.close)
        # the jobs train all the time: they leave room for those who watch them
        job = subprocess.Popen([RECVPOOL, "run", "--report-dir", self.reports_dir, "--interval", "0.5", *run_options, "--",
                                TRAINER, "--stages", "2", "--microbatches", "8", "--message-bytes", "2MiB", "--steps", steps,
                                *options], env=simulated(), stdout=log, stderr=log, preexec_fn=lambda: os.nice(7))
        if live:
            self.addCleanup(lambda: (job.terminate(), job.wait(60)))
        else:
            job.wait(support.TIMEOUT_SECONDS)

    def leave_silent_process(self):
        self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), self.reports_dir, "7", "shadow"]))
        (path,) = glob.glob(os.path.join(self.reports_dir, "node_one-*.json"))
        report = load(path)
        report.update(state="running", written_unix_seconds=time.time() - 500)
        with open(path, "w") as file:
            json.dump(report, file)

    def serve(self):
        process = subprocess.Popen([RECVPOOL, "serve", "--listen", "127.0.0.1:0", "--report-dir", self.reports_dir, "--keep",
                                    str(2**31 - 1)], stdout=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(lambda: (process.terminate(), process.wait(20), process.stdout.close()))
        return process.stdout.readline().split(" at ")[1].strip()

    def start_prometheus(self):
        """The configuration as it is shipped, but for the address and for how often it asks."""
        configuration = read("prometheus.yml")
        self.assertIn("127.0.0.1:9750", configuration)
        configuration = configuration.replace("127.0.0.1:9750", urllib.parse.urlsplit(self.serve_url).netloc).replace("15s", SCRAPE)
        shutil.copy(os.path.join(RULES, "recvpool.rules.yml"), self.folder)
        path, port = os.path.join(self.folder, "prometheus.yml"), free_port()
        with open(path, "w") as file:
            file.write(configuration)
        self.url = f"http://127.0.0.1:{port}"
        log = open(os.path.join(self.folder, "prometheus.log"), "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        self.addCleanup(lambda: (process.send_signal(signal.SIGTERM), process.wait(60)))

    def until(self, condition, seconds=support.TIMEOUT_SECONDS):
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = condition()
            except OSError:
                found = None
            if found:
                return found
            self.assertLess(time.monotonic(), deadline, "it never came to that")
            time.sleep(0.5)

    def ask(self, what, **parameters):
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=support.TIMEOUT_SECONDS) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise  # not ready yet
            self.fail(f"{parameters}: {error.read().decode()}")
        self.assertEqual(document["status"], "success")
        return document["data"]["result"] if what.startswith("query") else document["data"]

    # ---- what is checked, over one set of jobs: one with a violation, one observed, one enforced, a process that fell silent

    def test_live(self):
        os.makedirs(self.reports_dir)
        self.train("--mistake", "late-read", run_options=("--mode", "enforce"), steps="6", live=False)
        self.leave_silent_process()
        self.train()
        self.train(run_options=("--mode", "enforce"))
        self.serve_url = self.serve()
        self.start_prometheus()
        for query in ("recvpool:job:enforced_ratio == 1", "recvpool:process:agent_cpu:rate5m > 0",
                      f"rate(recvpool_steps_total[{RATE_WINDOW}]) > 0", "recvpool:job:violations > 0"):
            self.until(lambda: self.ask("query", query=query))
        for part in (self.check_exposition, self.check_targets, self.check_panels, self.check_variables, self.check_rules,
                     self.check_numbers):
            with self.subTest(part.__name__):
                part()

    def check_exposition(self):
        path = os.path.join(self.folder, "metrics.txt")
        with urllib.request.urlopen(self.serve_url + "metrics", timeout=support.TIMEOUT_SECONDS) as answer, open(path, "wb") as file:
            file.write(answer.read())
        with open(path) as file:
            result = subprocess.run([PROMTOOL, "check", "metrics"], stdin=file, capture_output=True, text=True,
                                    timeout=support.TIMEOUT_SECONDS)
        self.assert_success(result)
        self.assertEqual(result.stderr, "")

    def check_targets(self):
        def is_up():
            (target,) = self.ask("targets")["activeTargets"]
            return (target["health"], target["lastError"]) == ("up", "")
        self.until(is_up)

    def fill_in(self, expression, dashboard):
        for name, value in (("$__rate_interval", RATE_WINDOW), ("$__range", "1m")):
            expression = expression.replace(name, value)
        for variable in dashboard["templating"]["list"]:
            expression = expression.replace("$" + variable["name"], ".*")
        self.assertNotIn("$", expression)
        return expression

    def evaluate(self, expression, instant):
        if instant:
            return self.ask("query", query=expression)
        now = time.time()
        return self.ask("query_range", query=expression, start=now - RATE_WINDOW_SECONDS, end=now, step=4)

    def check_panels(self):
        checked = 0
        for path in DASHBOARDS:
            dashboard = load(path)
            for panel in panels_of(dashboard):
                for target in panel.get("targets", []):
                    expression, checked = self.fill_in(target["expr"], dashboard), checked + 1
                    with self.subTest(panel=f"{dashboard['title']}: {panel['title']}", query=expression):
                        found = self.until(lambda: self.evaluate(expression, target["instant"]), 20)
                        values = [series["value"][1] if target["instant"] else series["values"][-1][1] for series in found]
                        self.assertNotIn("NaN", values)
                        for name in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                            self.assertTrue(all(name in series["metric"] for series in found), name)
        self.assertGreater(checked, 50)

    def check_variables(self):
        for path in DASHBOARDS:
            for variable in load(path)["templating"]["list"][1:]:
                match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
                query = re.sub(r"\$\w+", ".*", match[1])
                self.assertTrue(self.ask(f"label/{match[2]}/values", **{"match[]": query}), variable["name"])

    def check_rules(self):
        def all_evaluated():
            groups = self.ask("rules")["groups"]
            return all(rule["health"] != "unknown" for group in groups for rule in group["rules"]) and groups
        rules = {rule["name"]: rule for group in self.until(all_evaluated) for rule in group["rules"]}
        self.assertGreater(len(rules), 20)
        for name, rule in rules.items():
            self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), name)
            if rule["type"] == "recording":
                self.until(lambda: self.ask("query", query=name), 20)
        self.assertEqual(rules["RecvpoolViolation"]["state"], "firing")
        self.assertIn(rules["RecvpoolProcessSilent"]["state"], ("pending", "firing"))
        for name in ("RecvpoolEventsLost", "RecvpoolFolderUnreadable", "RecvpoolFilesSkipped"):
            self.assertEqual(rules[name]["state"], "inactive", name)

    def check_numbers(self):
        """Prometheus and recvpool report agree about the job that is only observed."""
        said = json.loads(run([RECVPOOL, "report", "--json", self.reports_dir]).stdout)
        observed = [job for job in said["jobs"] if all(report["mode"] == "observe" and report["process"]["rank"] != 7
                                                       for report in job["processes"])]
        self.assertEqual(len(observed), 1)
        name = observed[0]["processes"][0]["communicators"][0]["communicator_id"][2:]
        for metric, key in (("held", "held_bytes"), ("needed", "needed_bytes"), ("waste", "would_save_bytes")):
            (found,) = self.until(lambda: self.ask("query", query=f'recvpool:job:{metric}_bytes{{training_job="{name}"}}'))
            self.assertEqual(float(found["value"][1]), observed[0]["totals"][key], metric)
