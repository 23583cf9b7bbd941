"""`recvpool serve`: what it answers, to whom, and what it survives."""

import glob
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import support
from support import RECVPOOL, clean_environment, run
from test_schema import VERSIONS

# A look at the folder takes place every second.
LOOK_SECONDS = 3


class ServeTest(support.TestCase):
    def setUp(self):
        super().setUp()
        os.makedirs(self.reports_dir)

    def start(self, *arguments, listen="127.0.0.1:0", url="http://127.0.0.1:"):
        command = [RECVPOOL, "serve", "--listen", listen, "--report-dir", self.reports_dir, "--keep",
                   str(2**31 - 1), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=clean_environment())
        self.addCleanup(self.stop, process)
        line = process.stdout.readline()
        self.assertIn(f" at {url}", line, process.stderr.read() if not line else "")
        self.url = line.split(" at ")[1].strip()
        self.address = "127.0.0.1"
        self.port = int(self.url.rsplit(":", 1)[1].strip("/"))
        self.process = process

    def stop(self, process, check=lambda said: None):
        """`check` is given what it said on stderr."""
        if process.stdout.closed:
            return
        process.terminate()
        self.assertEqual(process.wait(support.TIMEOUT_SECONDS), 0)
        process.stdout.close()
        with process.stderr:
            check(process.stderr.read())

    def get(self, path, method="GET", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=support.TIMEOUT_SECONDS)
        try:
            connection.putrequest(method, path, skip_host=False)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def until(self, condition):
        """Asks until the server has looked again."""
        deadline = time.monotonic() + support.TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        self.fail("the server did not get there")

    def processes(self):
        document = json.loads(self.get("/api/v1/processes")[2])
        self.assert_valid(document, "processes.schema.json")
        self.assertEqual(document["schema_version"], VERSIONS["processes"][0])
        return document

    def written_twice(self, pid=7):
        """By the agent in a process, and by attach."""
        who = {"boot_id": "b", "start_ticks": 5, "pid_namespace": 1, "pid": pid}
        for folder in ("own", "second"):
            self.sample("plain", 0, folder=os.path.join(self.folder, folder))
            for path in glob.glob(os.path.join(self.folder, folder, "*.json")):
                with open(path) as file:
                    report = json.load(file)
                report["process"].update({**who, "command": "train" if folder == "own" else "attach"})
                if folder == "second":
                    report["process"]["start_monotonic_ns"] += 1
                    report["evidence"] = [{"name": "uprobes", "active": True, "reason": None}]
                with open(path, "w") as file:
                    json.dump(report, file)
        return [os.path.join(self.folder, folder, name) for folder in ("own", "second")
                for name in os.listdir(os.path.join(self.folder, folder))]

    def test_a_process_with_two_reports_counts_once(self):
        own, second = self.written_twice()
        shutil.copy(second, os.path.join(self.reports_dir, "second.json"))
        self.start()
        self.assertEqual(len(self.until(lambda: self.processes()["processes"])), 1)  # the only one that there is
        shutil.copy(own, os.path.join(self.reports_dir, "own.json"))
        document = self.until(lambda: self.processes()["skipped"] and self.processes())
        self.assertEqual([entry["name"] for entry in document["skipped"]], ["second.json"])
        self.assertIn("the agent's own report of the process counts", document["skipped"][0]["reason"])
        self.assertEqual((len(document["processes"]), document["skipped_count"]), (1, 0))  # nothing is wrong with it
        self.assertEqual(document["processes"][0]["command"], "train")
        metrics = self.get("/metrics")[2]
        self.assertRegex(metrics, r"(?m)^recvpool_reports_skipped 0$")
        os.utime(os.path.join(self.reports_dir, "second.json"))  # written anew, as each few seconds
        self.sample("plain", 3)  # seen by a look after that
        self.until(lambda: len(self.processes()["processes"]) > 1)
        self.assertNotIn("attach", [row["command"] for row in self.processes()["processes"]])
        os.unlink(os.path.join(self.reports_dir, "own.json"))
        self.until(lambda: not self.processes()["skipped"])
        self.assertIn("attach", [row["command"] for row in self.processes()["processes"]])

    def overview(self):
        document = json.loads(self.get("/api/v1/job")[2])
        self.assert_valid(document, "overview.schema.json")
        return document

    def assert_valid(self, document, schema):
        self.assertEqual([f"{list(e.absolute_path)}: {e.message}" for e in support.validator(schema).iter_errors(document)], [])

    # ---- answers

    def test_api(self):
        self.sample("prealloc", "0", "1", "2")
        self.start()
        self.until(lambda: len(self.processes()["processes"]) == 3)
        rows = self.processes()["processes"]
        self.assertEqual(sorted(row["rank"] for row in rows), [0, 1, 2])
        written = {report["process"]["rank"]: report for report in self.read_reports()}
        for row in rows:
            status, headers, text = self.get(f"/api/v1/processes/{row['id']}")
            self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
            self.assertEqual(json.loads(text), written[row["rank"]])
        job = self.overview()
        said = json.loads(run([RECVPOOL, "report", "--json", self.reports_dir]).stdout)
        self.assertEqual(job["totals"], said["totals"])
        self.assertEqual([j["conclusion"] for j in job["jobs"]], [j["conclusion"] for j in said["jobs"]])

    def test_processes_are_in_order(self):
        places = [("b", 0, 9), ("a", 10, 5), ("a", 2, 7), ("a", None, 3), ("a", 2, 6), ("a", "x", 1), ("b", 0, 8), ("a", 0, 12)]
        self.sample("prealloc", *map(str, range(len(places))))

        def change(report):
            report["process"].update(zip(("host", "rank", "pid"), places[report["process"]["rank"]], strict=True))
        self.change_reports(change)
        self.start()
        self.until(lambda: len(self.processes()["processes"]) == len(places))
        self.assertEqual([(row["host"], row["rank"], row["pid"]) for row in self.processes()["processes"]],
                         [("a", 0, 12), ("a", 2, 6), ("a", 2, 7), ("a", 10, 5), ("a", "x", 1), ("a", None, 3), ("b", 0, 8), ("b", 0, 9)])

    def test_every_style_of_report_is_shown(self):
        styles = ("prealloc", "gpipe", "just_in_time", "empty", "enforced", "freed", "violated", "shadow", "refused")
        for rank, style in enumerate(styles):
            self.sample(style, str(rank))
        self.start()
        self.until(lambda: len(self.processes()["processes"]) == len(styles))
        shown = [report for job in self.overview()["jobs"] for report in job["processes"]]
        written = {report["process"]["pid"]: report for report in self.read_reports()}
        self.assertEqual(len(shown), len(styles))
        for report in shown:
            whole = written[report["process"]["pid"]]
            self.assertEqual(report["totals"], whole["totals"])
            for channel, as_written in zip(report["channels"], whole["channels"], strict=True):
                self.assertNotIn("lifetimes", channel)
                self.assertEqual({k: v for k, v in channel.items() if k != "pipeline_rank"},
                                 {k: as_written[k] for k in channel if k != "pipeline_rank"})
            devices = (whole["enforcement"] or {}).get("devices", [])
            for device, as_written in zip((report["enforcement"] or {}).get("devices", []), devices, strict=True):
                self.assertEqual(device["violated"], as_written["conflicts"]["violated"])
                self.assertEqual(device["conflicts"], sorted(
                    ({k: {s: v[s] for s in v if s != "sequence"} if isinstance(v, dict) else v for k, v in kept.items()}
                     for kept in as_written["conflicts"]["kept"]), key=lambda kept: kept["prevented"]))

    def test_members_of_another_kind_are_null(self):
        self.sample("violated", "0")
        (path,) = [os.path.join(self.reports_dir, name) for name in os.listdir(self.reports_dir)]
        with open(path) as file:
            good = json.load(file)
        places = []

        def walk(value, place):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
                places.append(place + [key])
                walk(inner, place + [key])
        walk({k: v for k, v in good.items() if not k.startswith("schema")}, [])
        chance = random.Random(7)
        for number in range(60):
            report = json.loads(json.dumps(good))
            for place in chance.sample(places, 12):
                at = report
                try:
                    for key in place[:-1]:
                        at = at[key]
                    at[place[-1]] = chance.choice([None, True, -1, 1.5, "x" * 300, [], {}, [1], {"a": "b"}, 2**62])
                except (TypeError, KeyError, IndexError):
                    pass  # a change before has taken the place away
            with open(os.path.join(self.reports_dir, f"bad-{number}.json"), "w") as file:
                json.dump(report, file)
        self.start()
        self.until(lambda: len(self.processes()["processes"]) + len(self.processes()["skipped"]) == 61)
        self.overview()
        self.metrics()

    def test_follows_the_folder(self):
        self.start()
        self.assertEqual(self.processes()["processes"], [])
        self.sample("prealloc", "0")
        first = self.until(lambda: self.processes()["processes"])[0]
        self.sample("gpipe", "1")
        self.until(lambda: len(self.processes()["processes"]) == 2)
        for name in os.listdir(self.reports_dir):
            os.unlink(os.path.join(self.reports_dir, name))
        self.until(lambda: not self.processes()["processes"])
        self.assertEqual(self.get(f"/api/v1/processes/{first['id']}")[0], 404)

    def test_what_is_gone_is_not_running(self):
        """Where it can be told: a process of this machine, with its last report whole."""
        self.sample("prealloc", "0", "1", "2", "3")
        there = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        gone, own = support.incarnation_of_ended(), support.incarnation(there.pid)

        def change(report):
            rank = report["process"]["rank"]
            report.update(state="finished" if rank == 3 else "running", written_unix_seconds=time.time())
            report["process"].update((gone, own, {}, gone)[rank], start_monotonic_ns=rank + 1)
        self.change_reports(change)
        self.start()

        def states():
            return {row["rank"]: row["state"] for row in self.processes()["processes"]}
        self.until(lambda: states() == {0: "ended", 1: "running", 2: "running", 3: "finished"})
        (job,) = self.overview()["jobs"]
        self.assertEqual({report["process"]["rank"]: report["state"] for report in job["processes"]}, states())
        (note,) = [note for note in job["notes"] if note["text"].startswith("ended without a final report")]
        self.assertRegex(note["text"], r", as by a signal: rank 0 \(.*:\d+\); the last one is from after 4 steps, at 20.*Z; what it did later is not known\Z")
        self.assertEqual(note["processes"], 1)
        infos = [labels for name, labels in self.metrics()[0] if name == "recvpool_process_info"]
        self.assertEqual(sorted(re.search('rank="(.)".*state="([a-z]+)"', labels).groups() for labels in infos),
                         [("0", "ended"), ("1", "running"), ("2", "running"), ("3", "finished")])
        there.communicate()
        self.until(lambda: states()[1] == "ended")
        with open(os.path.join(self.reports_dir, [name for name in os.listdir(self.reports_dir) if "-1001-" in name][0]), "r+") as file:
            report = json.load(file)
            report["state"] = "finished"  # somebody was slow to write it
            file.seek(0)
            json.dump(report, file)
            file.truncate()
        self.until(lambda: states()[1] == "finished")

    def test_ended_processes_leave(self):
        self.sample("prealloc", "0")
        self.start("--keep", "0")
        time.sleep(LOOK_SECONDS)
        self.assertEqual(self.processes()["processes"], [])

    def test_folder_that_is_not_there(self):
        """It is said at once, and everywhere until it is there: the service may have been started before the job."""
        os.rmdir(self.reports_dir)
        self.start()
        self.assertEqual(self.get("/healthz")[0], 503)
        self.assertIn("there is no such folder", self.get("/healthz")[2])
        job = self.overview()
        self.assertEqual((job["report_dir"], job["report_dir_problem"]), (self.reports_dir, "there is no such folder"))
        os.makedirs(self.reports_dir)
        self.until(lambda: self.get("/healthz")[0] == 200)
        self.assertIsNone(self.overview()["report_dir_problem"])
        self.stop(self.process, self.assert_not_there)

    def assert_not_there(self, said):
        self.assert_one_line(said)
        self.assertIn(f"'{self.reports_dir}': there is no such folder", said)

    def test_folder_that_is_there_is_not_talked_about(self):
        self.start()
        self.stop(self.process, lambda said: self.assertEqual(said, ""))

    @unittest.skipIf(os.geteuid() == 0, "root can read everything")
    def test_folder_that_cannot_be_read(self):
        os.chmod(self.reports_dir, 0)
        self.addCleanup(os.chmod, self.reports_dir, 0o700)
        self.start()
        self.assertEqual(self.overview()["report_dir_problem"], "Permission denied")
        self.stop(self.process, lambda said: self.assertIn("Permission denied", said))

    def test_what_never_becomes_a_folder_is_refused(self):
        path = os.path.join(self.reports_dir, "file")
        with open(path, "w"):
            pass
        for dir in (path, path + "/below", "/dev/null"):
            result = run([RECVPOOL, "serve", "--listen", "127.0.0.1:0", "--report-dir", dir], timeout=60)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assert_one_line(result.stderr)
            self.assertIn(f"--report-dir '{dir}': is no folder", result.stderr)

    def test_page_files_that_are_not_there(self):
        result = run([RECVPOOL, "serve", "--listen", "127.0.0.1:0", "--report-dir", self.reports_dir, "--web-dir", self.folder],
                     timeout=60)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assert_one_line(result.stderr)
        self.assertIn(f"--web-dir '{self.folder}' has no readable index.html", result.stderr)

    # ---- metrics

    SAMPLE = re.compile(r'^([a-z_]+)(\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)$')

    def metrics(self, headers=None):
        """{(name, labels): value}; every line must have the form, every family one head, no series twice."""
        status, answered, text = self.get("/metrics", headers=headers)
        self.assertEqual(status, 200)
        samples, heads, families = {}, {}, []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.assertNotIn(name, heads)
                heads[name] = kind
                families.append(name)
            elif not line.startswith("#"):
                match = self.SAMPLE.match(line)
                self.assertTrue(match, line)
                key = (match[1], match[3] or "")
                self.assertNotIn(key, samples)
                samples[key] = float(match[4])
                self.assertTrue(match[1].startswith(families[-1]), line)
        return samples, heads, answered["Content-Type"], text

    def test_metrics_are_what_the_reports_say(self):
        self.sample("prealloc", "0", "1")
        self.start()
        self.until(lambda: len(self.processes()["processes"]) == 2)
        samples, heads, kind, text = self.metrics()
        self.assertTrue(kind.startswith("text/plain; version=0.0.4"))
        self.assertEqual(heads["recvpool_steps_total"], "counter")
        for report in self.read_reports():
            who = f'host="{report["process"]["host"]}",pid="{report["process"]["pid"]}",rank="{report["process"]["rank"]}"'
            self.assertEqual(samples[("recvpool_held_bytes", who)], report["totals"]["held_bytes"])
            for i, channel in enumerate(report["channels"]):
                where = (f'{who},channel="{i}",device="{channel["device"]}",pp_stage="{channel["stage_ordinal"]}",'
                         f'direction="{channel["direction"]}"')
                self.assertEqual(samples[("recvpool_channel_depth", where)], channel["depth"])
                self.assertEqual(samples[("recvpool_channel_transfers_total", where)], channel["transfers"])
        self.assertNotRegex(text, "0x[0-9a-f]{6}")
        open_samples, open_heads, kind, text = self.metrics({"Accept": "application/openmetrics-text; version=1.0.0"})
        self.assertTrue(kind.startswith("application/openmetrics-text; version=1.0.0"))
        self.assertTrue(text.endswith("# EOF\n"))
        self.assertEqual(open_heads["recvpool_steps"], "counter")
        self.assertEqual({k for k in open_samples}, {k for k in samples})

    def test_hostile_names_are_escaped(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, os.listdir(self.reports_dir)[0])
        with open(path) as file:
            report = json.load(file)
        report["process"]["host"] = 'a"b\\c\nd</script>' + "\u00e9" * 200
        report["process"]["rank"] = "not a number"
        report["channels"][0]["direction"] = {"not": "text"}
        report["totals"]["held_bytes"] = "many"
        with open(path, "w") as file:
            json.dump(report, file)
        self.start()
        self.until(lambda: self.processes()["processes"])
        samples, _, _, _ = self.metrics()
        hosts = {labels.split('",pid=')[0] for name, labels in samples if name == "recvpool_process_info"}
        self.assertEqual(len(hosts), 1)
        host = hosts.pop()
        self.assertTrue(host.startswith('host="a\\"b\\\\c?d</script>\u00e9'), host)
        self.assertLess(len(host), 200)

    def test_nothing_in_a_report_makes_series_without_end(self):
        self.sample("violated", "0")
        path = os.path.join(self.reports_dir, os.listdir(self.reports_dir)[0])
        with open(path) as file:
            report = json.load(file)
        device = report["enforcement"]["devices"][0]
        device["conflicts"]["violated"] = {f"kind_{i}": i for i in range(10000)} | {"stale_access": 3}
        few = dict(device, classes=[], conflicts={})
        device["classes"] = [dict(device["classes"][0], **{"class": i % 100}) for i in range(400)]
        report["enforcement"]["devices"] = [device] * 3 + [dict(few, device=None), dict(few, device="x")] + \
            [dict(few, device=i) for i in range(1000)]
        report["channels"] *= 500
        report["devices"] = [{"ordinal": i % 100, "total_bytes": 1} for i in range(1000)]
        with open(path, "w") as file:
            json.dump(report, file)
        self.start()
        self.until(lambda: self.processes()["processes"])
        samples, _, _, _ = self.metrics()
        self.assertLess(len(samples), 64 * (2 * 64 + 40))
        self.assertGreater(samples[("recvpool_series_dropped", "")], 2000)
        self.assertEqual({v for (n, labels), v in samples.items() if n == "recvpool_pool_violations_total" and "stale" in labels}, {3.0})

    def test_metrics_name_the_job(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, os.listdir(self.reports_dir)[0])
        with open(path) as file:
            report = json.load(file)
        report["communicators"] = [{"communicator_id": "0x5", "ranks": 2}, {"communicator_id": "0xb", "ranks": 8},
                                   {"communicator_id": None, "ranks": 64}, {"communicator_id": "0xa", "ranks": 8}]
        with open(path, "w") as file:
            json.dump(report, file)
        self.start()
        self.until(lambda: self.processes()["processes"])
        samples, _, _, _ = self.metrics()
        (info,) = [labels for name, labels in samples if name == "recvpool_process_info"]
        self.assertIn('training_job="a"', info)

    def test_one_pid_used_twice_is_one_series(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, os.listdir(self.reports_dir)[0])
        with open(path) as file:
            report = json.load(file)
        report["written_unix_seconds"] += 1
        report["totals"]["held_bytes"] = 77
        with open(os.path.join(self.reports_dir, "later.json"), "w") as file:
            json.dump(report, file)
        self.start()
        self.until(lambda: len(self.processes()["processes"]) == 2)
        samples, _, _, _ = self.metrics()
        self.assertEqual([v for (n, _), v in samples.items() if n == "recvpool_held_bytes"], [77.0])

    # ---- what is skipped

    def test_skipped_files(self):
        self.sample("prealloc", "0")
        good = os.path.join(self.reports_dir, os.listdir(self.reports_dir)[0])
        with open(good, "rb") as file:
            whole = file.read()

        def put(name, data):
            with open(os.path.join(self.reports_dir, name), "wb") as file:
                file.write(data)

        put("torn.json", whole[:1000])
        put("empty.json", b"")
        put("deep.json", b"[" * 100000)
        put("utf8.json", b'{"schema": "\xff"}')
        put("nan.json", whole.replace(b'"slack_slots": 2', b'"slack_slots": NaN'))
        put("other.json", b'{"schema": "something"}')
        put("version.json", whole.replace(b'"schema_version": "1.', b'"schema_version": "2.'))
        put("array.json", b"[]")
        put("not-json.txt", b"hello")
        put(".hidden.json", b"{")
        put("markup<img src=x>\n.json", b"{}")
        os.symlink("/etc/passwd", os.path.join(self.reports_dir, "link.json"))
        os.symlink(good, os.path.join(self.reports_dir, "link-to-good.json"))
        os.mkfifo(os.path.join(self.reports_dir, "pipe.json"))
        os.mkdir(os.path.join(self.reports_dir, "folder.json"))
        with open(os.path.join(self.reports_dir, "huge.json"), "wb") as file:
            file.truncate(1 << 30)
        self.start()
        self.until(lambda: self.processes()["processes"])
        document = self.processes()
        self.assertEqual(len(document["processes"]), 1)
        reasons = {row["name"]: row["reason"] for row in document["skipped"]}
        expected = {"torn.json": "not whole JSON: line ", "empty.json": "empty", "deep.json": "not whole JSON: line 1: maximum ",
                    "utf8.json": "not whole JSON: line 1: ", "nan.json": "not whole JSON: line ",
                    "other.json": "not a recvpool report", "version.json": "a report of another version; ",
                    "array.json": "not a recvpool report", "markup<img src=x>\n.json": "not a recvpool report",
                    "link.json": "a symbolic link", "link-to-good.json": "a symbolic link", "pipe.json": "not a regular file",
                    "folder.json": "not a regular file", "huge.json": "too large: 1024 MiB, and a report has at most 64"}
        self.assertEqual(set(reasons), set(expected))
        for name, begin in expected.items():
            self.assertTrue(reasons[name].startswith(begin), (name, reasons[name]))
        self.assertEqual(document["skipped_count"], len(expected))

    def test_what_is_of_no_use_is_read_once(self):
        """As long as it does not change; and what is mended is seen."""
        self.sample("prealloc", "0")
        (good,) = os.listdir(self.reports_dir)
        with open(os.path.join(self.reports_dir, good)) as file:
            report = json.load(file)
        broken, old = (os.path.join(self.reports_dir, name) for name in ("broken.json", "old.json"))
        report["process"]["pid"] = 4711
        for path, text in ((broken, "{"), (old, json.dumps({**report, "written_unix_seconds": 5}))):
            with open(path, "w") as file:
                file.write(text)
        self.start("--keep", "1000000000")
        self.until(lambda: self.processes()["skipped"])

        def looks():
            before = self.processes()["processes"] and self.read_bytes()
            looked = json.loads(self.get("/healthz")[2])["last_look_unix_seconds"]
            self.until(lambda: json.loads(self.get("/healthz")[2])["last_look_unix_seconds"] > looked + 1.5)
            return self.read_bytes() - before
        self.assertLess(looks(), os.path.getsize(old))
        with open(broken, "w") as file:
            json.dump(report, file)
        self.until(lambda: {row["pid"] for row in self.processes()["processes"]} == {1000, 4711})
        self.assertEqual(self.processes()["skipped"], [])

    def test_more_than_there_is_room_for(self):
        """They are counted, not read again and again; and they come in when others leave."""
        self.sample("prealloc", "0")
        (good,) = os.listdir(self.reports_dir)
        with open(os.path.join(self.reports_dir, good)) as file:
            report = json.load(file)
        for channel in report["channels"]:
            del channel["lifetimes"][1:]

        def put(pid):
            report["process"]["pid"] = pid
            with open(os.path.join(self.reports_dir, f"n{pid}.json"), "w") as file:
                json.dump(report, file)
        os.unlink(os.path.join(self.reports_dir, good))
        for pid in range(1, 4096 + 101):
            put(pid)
        self.start()

        def document():  # not held against the schema, which takes long for so many
            return json.loads(self.get("/api/v1/processes")[2])

        def counts():
            found = document()
            return len(found["processes"]), found["dropped_count"]
        self.until(lambda: counts() == (4096, 100))

        def look():
            looked = json.loads(self.get("/healthz")[2])["last_look_unix_seconds"]
            self.until(lambda: json.loads(self.get("/healthz")[2])["last_look_unix_seconds"] > looked)
        look()
        before = self.read_bytes()
        look()
        self.assertLess(self.read_bytes() - before, 100 * 2000)
        shown = {row["pid"] for row in document()["processes"]}
        for pid in sorted(shown)[:60]:
            os.unlink(os.path.join(self.reports_dir, f"n{pid}.json"))
        self.until(lambda: counts() == (4096, 40))
        self.assertEqual(len({row["pid"] for row in document()["processes"]} - shown), 60)
        kept = max(pid for pid in shown if os.path.exists(os.path.join(self.reports_dir, f"n{pid}.json")))
        report["totals"]["held_bytes"] = 12345
        put(kept)
        self.until(lambda: {row["pid"]: row["totals"]["held_bytes"] for row in document()["processes"]}[kept] == 12345)

    def read_bytes(self):
        """What the server has read from files so far."""
        with open(f"/proc/{self.process.pid}/io") as file:
            return int(re.search(r"rchar: (\d+)", file.read())[1])

    # ---- who may ask what

    def test_only_reading(self):
        self.start()
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
            self.assertEqual(self.get("/metrics", method)[0], 405, method)
        status, headers, text = self.get("/metrics", "HEAD")
        self.assertEqual((status, text), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 100)

    def test_no_path_reaches_the_file_system(self):
        self.sample("prealloc", "0")
        self.start()
        for path in ("/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/v1/processes/../../../etc/passwd",
                     "/api/v1/processes/", "/api/v1/processes/-1", "/api/v1/processes/1e0", "/api/v1/processes/%201",
                     "/api/v1/processes/99999999999999999999999", "/index.html", "/app.js/", "//app.js"):
            status, _, text = self.get(path)
            self.assertEqual(status, 404, path)
            self.assertNotIn("root:", text)

    def test_page_asks_nobody_else(self):
        self.start()
        status, headers, text = self.get("/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotRegex(text, r"https?://")

    def status_for(self, *hosts, version="1.1", path="/"):
        """The status and the whole answer to a request with these Host headers."""
        request = f"GET {path} HTTP/{version}\r\n" + "".join(f"Host: {host}\r\n" for host in hosts) + "Connection: close\r\n\r\n"
        with socket.create_connection((self.address, self.port), timeout=20) as connection:
            connection.sendall(request.encode())
            with connection.makefile("rb") as answer:
                text = answer.read().decode()
        return int(text.split(" ")[1]), text

    def test_only_own_names_are_answered(self):
        """A site whose name leads to this machine cannot have a browser read what is served here."""
        self.sample("prealloc", "0")
        self.start()
        self.until(lambda: self.processes()["processes"])
        for host in (f"127.0.0.1:{self.port}", "127.0.0.1", "localhost", "LocalHost.:80", "127.9.8.7:1", "[::1]:9750", "[::1]",
                     "[::ffff:127.0.0.1]"):
            self.assertEqual(self.status_for(host)[0], 200, host)
        foreign = ("evil.example", f"evil.example:{self.port}", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost",
                   "192.0.2.1", "0.0.0.0", "[::2]", "[::]", "::1", "127.0.0.1:9750:1", "127.0.0.1@evil.example", "[::1", "x" * 5000, "[]",
                   ":80", "localhost:x", "localhost/")
        for host in foreign:
            for path in ("/", "/metrics", "/api/v1/job", "/api/v1/processes/1", "/nothing"):
                status, text = self.status_for(host, path=path)
                self.assertEqual(status, 421, (host, path, text))
                body = text.split("\r\n\r\n", 1)[1]
                self.assertIn("--host-name", json.loads(body)["error"])
                self.assertNotIn("\n", body)
                self.assertNotIn("evil", text)
        self.assertEqual(self.status_for("localhost", "evil.example")[0], 421)
        self.assertEqual(self.status_for("evil.example", "localhost")[0], 421)
        self.assertEqual(self.status_for(version="1.0")[0], 200)  # no browser: those say whom they ask
        self.assertEqual(self.status_for("evil.example", version="1.0")[0], 421)

    def test_names_that_are_given(self):
        self.start("--host-name", "node7.example.org", "--host-name", "10.1.2.3", "--host-name", "[fe80::7]")
        for host in ("node7.example.org", "Node7.Example.org.:9750", "10.1.2.3:80", "[fe80::7]:1", "[fe80:0::7]", "localhost"):
            self.assertEqual(self.status_for(host)[0], 200, host)
        for host in ("node7", "x.node7.example.org", "10.1.2.4", "[fe80::8]"):
            self.assertEqual(self.status_for(host)[0], 421, host)

    def test_any_address_where_it_listens_at_all(self):
        """Nobody can make an address lead elsewhere, and a container does not know the one that it is reached by."""
        for listen, url in (("0.0.0.0:0", "http://0.0.0.0:"), ("[::]:0", "http://[::]:")):
            if listen[0] == "[" and not os.path.exists("/proc/net/if_inet6"):
                continue  # a machine without IPv6
            self.start("--allow-remote", "--host-name", "given", listen=listen, url=url)
            self.address = "::1" if listen[0] == "[" else "127.0.0.1"
            for host in ("192.0.2.1:9750", "[2001:db8::1]:9750", "localhost", "given"):
                self.assertEqual(self.status_for(host)[0], 200, (listen, host))
            for host in ("evil.example", socket.gethostname() + ".evil.example"):
                self.assertEqual(self.status_for(host)[0], 421, (listen, host))

    def test_the_name_it_listens_at(self):
        self.start(listen="localhost:0")
        self.assertEqual(self.status_for("localhost")[0], 200)
        self.assertEqual(self.status_for("evil.example")[0], 421)
        self.start(listen="127.5.6.7:0", url="http://127.5.6.7:")
        self.address = "127.5.6.7"
        self.assertEqual(self.status_for("127.5.6.7")[0], 200)

    def test_remote_needs_to_be_meant(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            result = run([RECVPOOL, "serve", "--listen", address])
            self.assertEqual(result.returncode, 2)
            self.assert_one_line(result.stderr)
            self.assertIn("--allow-remote", result.stderr)

    def test_bad_options(self):
        for arguments, word in ((["--listen", "nonsense"], "ADDRESS:PORT"), (["--listen", "127.0.0.1:99999"], "ADDRESS:PORT"),
                                (["--listen", "::1:80"], "ADDRESS:PORT"), (["--listen", "127.0.0.1:"], "ADDRESS:PORT"),
                                (["--keep", "-1"], "whole seconds"), (["--keep", "1h"], "whole seconds"),
                                (["--host-name", ""], "without port"), (["--host-name", "a:80"], "without port"),
                                (["--host-name", "http://a"], "without port"), (["--host-name", "a b"], "without port"),
                                (["--host-name", "x" * 300], "without port"), (["--host-name", "[::1]:80"], "without port"),
                                (["--host-name", "*.a"], "without port"), (["--host-name", "a"] * 65, "64 at most"),
                                (["folder"], "--report-dir"), (["--nonsense"], "--nonsense")):
            result = run([RECVPOOL, "serve", *arguments])
            self.assertEqual(result.returncode, 2, arguments)
            self.assert_one_line(result.stderr)
            self.assertIn(word, result.stderr)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            result = run([RECVPOOL, "serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
            self.assertEqual(result.returncode, 1)
            self.assert_one_line(result.stderr)

    def test_one_address_has_one_server(self):
        """The second one says so, and takes no request of the first one."""
        self.sample("prealloc", "0")
        self.start()
        self.until(lambda: self.processes()["processes"])
        for address in (f"127.0.0.1:{self.port}", f"0.0.0.0:{self.port}"):
            result = run([RECVPOOL, "serve", "--allow-remote", "--listen", address, "--report-dir", self.folder], timeout=60)
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assert_one_line(result.stderr)
            self.assertIn(f"cannot listen at {address}: Address already in use; end what listens there", result.stderr)
            self.assertIn("--listen", result.stderr)
        self.assertEqual([len(self.processes()["processes"]) for _ in range(20)], [1] * 20)

    def test_an_address_is_free_once_its_server_has_ended(self):
        """Also with connections that it left behind."""
        self.start()
        client = socket.create_connection(("127.0.0.1", self.port))
        self.addCleanup(client.close)
        self.assertEqual(self.get("/healthz")[0], 200)
        self.stop(self.process)
        self.start(listen=f"127.0.0.1:{self.port}")

    def test_addresses_of_no_use(self):
        result = run([RECVPOOL, "serve", "--allow-remote", "--listen", "192.0.2.1:0"], timeout=60)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("cannot listen at 192.0.2.1:0: Cannot assign requested address; name an address of this machine", result.stderr)

    # ---- what it survives

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])

    def test_rude_clients(self):
        self.sample("prealloc", "0")
        self.start()
        self.until(lambda: self.processes()["processes"])
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(1000)]
        try:
            self.assertEqual(self.get("/healthz")[0], 200)
            slow = socket.create_connection(("127.0.0.1", self.port))
            slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            self.assertEqual(self.get("/healthz")[0], 200)
            slow.close()
            flood = socket.create_connection(("127.0.0.1", self.port))
            try:
                flood.sendall(b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 100) for i in range(20000)))
            except OSError:
                pass
            flood.close()
            self.assertEqual(self.get("/healthz")[0], 200)
        finally:
            for connection in idle:
                connection.close()
        before = self.memory_kib()
        for _ in range(3):
            for _ in range(300):
                self.get("/metrics")
                self.get("/api/v1/job")
        if not os.environ.get("E2E_SANITIZE"):
            self.assertLess(self.memory_kib(), before + 8192)

    def test_broken_requests(self):
        self.start()
        chance = random.Random(1)
        for _ in range(300):
            data = bytes(chance.choice(b"GETHP/1.0 \r\n:%\x00\xffabc") for _ in range(chance.randrange(1, 400)))
            with socket.create_connection(("127.0.0.1", self.port)) as connection:
                try:
                    connection.sendall(chance.choice((b"", b"GET / HTTP/1.1\r\n", b"GET ")) + data + b"\r\n\r\n")
                except OSError:
                    pass
        self.assertEqual(self.get("/healthz")[0], 200)

    def test_ends_on_interrupt(self):
        self.start()
        self.process.send_signal(signal.SIGINT)
        self.assertEqual(self.process.wait(support.TIMEOUT_SECONDS), 0)
