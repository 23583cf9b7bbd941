"""The files of `recvpool report`: page, trace and plan say what its JSON says."""

import copy
import glob
import json
import os
import random
import re
import subprocess
import unittest

import browser
import support
import trace_check
from support import RECVPOOL, TRAINER, run, simulated


class ReportFilesCase(support.TestCase):
    def setUp(self):
        super().setUp()
        os.makedirs(self.reports_dir)

    def train(self, *options, run_options=(), steps="6"):
        self.assert_success(run([RECVPOOL, "run", "--report-dir", self.reports_dir, *run_options, "--", TRAINER, "--stages", "2",
                                 "--microbatches", "6", "--message-bytes", "2MiB", "--steps", steps, *options], env=simulated()))

    def report(self, *arguments):
        return run([RECVPOOL, "report", *arguments])

    def write(self, option, name, *arguments):
        """What `--option` writes, and what `--json` says at once."""
        path = os.path.join(self.folder, name)
        result = self.report("--json", f"--{option}", path, *arguments, self.reports_dir)
        self.assert_success(result)
        with open(path) as file:
            return file.read(), json.loads(result.stdout)


class PageFileTest(ReportFilesCase):
    def overview_of(self, page):
        (text,) = re.findall(r'<script type="application/json" id="overview">(.*?)</script>', page, re.S)
        self.assertNotRegex(text, "[<>&]")
        return json.loads(text)

    def page(self):
        page, said = self.write("html", "page.html")
        overview = self.overview_of(page)
        self.assertEqual([f"{list(e.absolute_path)}: {e.message}"
                          for e in support.validator("overview.schema.json").iter_errors(overview)], [])
        return page, overview, said

    def test_holds_the_numbers_of_the_document(self):
        for styles in (("prealloc", "gpipe", "just_in_time"), ("enforced", "shadow", "violated", "refused", "empty")):
            for rank, style in enumerate(styles):
                self.sample(style, rank)
            page, overview, said = self.page()
            self.assertEqual(overview["totals"], said["totals"])
            for job, job_said in zip(overview["jobs"], said["jobs"], strict=True):
                for key in ("totals", "conclusion", "next_step"):
                    self.assertEqual(job[key], job_said[key])
                for process, report in zip(job["processes"], job_said["processes"], strict=True):
                    self.assertEqual(process["totals"].items() & report["totals"].items(), process["totals"].items())
                    for channel, channel_said in zip(process["channels"], report["channels"], strict=True):
                        for key in ("buffers", "depth", "slots", "held_bytes", "needed_bytes", "would_save_bytes"):
                            self.assertEqual(channel[key], channel_said[key])
                        self.assertEqual([life["microbatch"] for life in channel["lifetimes"]],
                                         [life["microbatch"] for life in channel_said["lifetimes"]])

    def test_asks_nobody_and_runs_nothing_else(self):
        self.sample("prealloc", 0)
        page, _, _ = self.page()
        self.assertIn("Content-Security-Policy", page)
        self.assertIn("default-src 'none'; script-src 'sha256-", page)
        self.assertEqual(re.findall(r"""(?:src|href)=["'](?!#|data:,)""", page), [])
        self.assertEqual(page.count("<script"), 2)
        self.assertNotRegex(page, r"@[A-Z_]+@")

    def test_hostile_texts_stay_text(self):
        self.sample("violated", 0)
        evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u2028<!--"

        def spoil(part):
            if isinstance(part, dict):
                return {key: spoil(value) for key, value in part.items()}
            if isinstance(part, list):
                return [spoil(value) for value in part]
            return evil if isinstance(part, str) and not part.startswith(("recvpool.", "1.")) else part

        self.change_reports(lambda report: report.update(spoil(copy.deepcopy(report))))
        page, said = self.write("html", "page.html")
        self.assertEqual(page.count("<script"), 2)
        self.assertNotIn("<img", page)
        self.assertEqual(self.overview_of(page)["jobs"][0]["processes"][0]["process"]["host"], evil)

    def test_lifetimes_are_bounded(self):
        self.sample("prealloc", *range(4))
        self.change_reports(lambda report: [channel.update(lifetimes=channel["lifetimes"] * 400) for channel in report["channels"]])
        page, overview, _ = self.page()
        shown = [any("lifetimes" in channel for channel in process["channels"])
                 for job in overview["jobs"] for process in job["processes"]]
        self.assertEqual(sum(shown), overview["processes_with_lifetimes"])
        self.assertIn(sum(shown), (1, 2, 3))


@unittest.skipUnless(browser.find(), "there is no Chromium on this machine (Debian: chromium)")
class PageInBrowserTest(ReportFilesCase):
    def test_is_drawn_from_the_file_alone(self):
        self.sample("violated", 0)
        self.sample("prealloc", *range(1, 512))
        _, said = self.write("html", "page.html")
        page = browser.Browser()
        self.addCleanup(page.close)
        page.open("file://" + os.path.join(self.folder, "page.html"))
        page.until("document.querySelector('#status').textContent.includes('512 processes')")
        text = page.evaluate("document.querySelector('main').innerText")
        for job in said["jobs"]:
            self.assertIn(job["next_step"], text)
            self.assertIn(job["conclusion"][1:], text)
        self.assertGreater(page.evaluate("document.querySelectorAll('#timeline .life-frame').length"), 0)
        self.assertGreater(page.evaluate("document.querySelectorAll('#violations tbody tr').length"), 0)
        self.assertEqual(page.complaints, [])
        self.assertEqual([url for url in page.requests if not url.startswith(("file:", "data:"))], [])
        self.assertEqual(sum(url.startswith("file:") for url in page.requests), 1)


    def test_a_job_that_ended_tells_what_it_saved(self):
        freed = {"reason": "freed", "text": "The buffers that shared memory have been freed."}
        self.sample("enforced", 0, 1)
        for path in glob.glob(os.path.join(self.reports_dir, "*.json")):
            with open(path) as file:
                report = json.load(file)
            report["state"] = "finished"
            del report["enforcement"]["devices"][1:]
            (device,) = report["enforcement"]["devices"]
            for account in (device, *device["classes"]):
                account.update(physical_bytes=0, one_to_one_bytes=0, saved_bytes=0)
            for owner in device["classes"]:
                owner.update(stage=None, peer=None)
            device.update(active=False, buffers=0, idle=freed)
            with open(path, "w") as file:
                json.dump(report, file)
        self.write("html", "page.html")
        page = browser.Browser()
        self.addCleanup(page.close)
        page.window(1200, 900)
        page.open("file://" + os.path.join(self.folder, "page.html"))
        text = " ".join(page.evaluate("document.querySelector('#jobs').textContent").split())
        self.assertIn("sharing saved 12.0 MiB of the 32.0 MiB", text)
        self.assertIn("saved, measured12 MiB", text)
        self.assertIn("receive buffers (stock)32 MiB", text)
        self.assertIn("pooling was on in2 of 2", text)
        self.assertIn("gradient: stock 8 MiB, needed 2 MiB, held at most 4 MiB", text)
        for words in ("freed", "Not shared", "held now"):
            self.assertNotIn(words, text)


class TraceCheckTest(support.TestCase):
    """The rules that traces are held against notice what breaks them."""

    def test_rules(self):
        def of(*events):
            head = [dict(ph="M", pid=1, tid=0, name="process_name", args={"name": "p"}),
                    dict(ph="M", pid=1, tid=5, name="thread_name", args={"name": "t"})]
            return {"traceEvents": head + [dict({"pid": 1, "tid": 5, "name": "n"}, **event) for event in events]}

        def x(ts, dur, **more):
            return dict(ph="X", ts=ts, dur=dur, **more)

        def b(ph, ts, id=1, **more):
            return dict(ph=ph, ts=ts, id=id, cat="c", tid=0, **more)
        good = (of(), of(x(0, 5), x(1, 4), x(5, 0), x(5, 2)), of(b("b", 0), b("b", 0), b("n", 1), b("e", 2), b("e", 2)),
                of(dict(ph="B", ts=0), x(1, 2), dict(ph="E", ts=3)), of(b("s", 0), b("t", 1), b("f", 2)),
                of(dict(ph="C", ts=0, args={"a": 1}), dict(ph="C", ts=1, args={"a": 0})), of(dict(ph="i", ts=0, s="g")))
        for document in good:
            trace_check.check(document)
        bad = {
            "no overlap on a track": [of(x(0, 5), x(3, 4)), of(x(0, 5), x(1, 1), x(3, 4)), of(x(0, 5), x(0, 6))],
            "the end of the last begun": [of(b("b", 0), b("e", 1, name="m")), of(dict(ph="E", ts=0)), of(dict(ph="B", ts=0), dict(ph="E", ts=1, name="m")),
                                          of(b("b", 0), b("e", 1, pid=0))],
            "an end for every begin": [of(b("b", 0)), of(dict(ph="B", ts=0))],
            "an end that has a begin": [of(b("e", 0)), of(b("b", 0), b("e", 1, id=2))],
            "an id that is used once": [of(b("b", 0), b("e", 1), b("b", 2), b("e", 3))],
            "an instant inside of a slice": [of(b("n", 0))],
            "events of a process in order of time": [of(x(3, 1), x(2, 1)), of(x(3, 1), dict(ph="i", ts=1, s="p"))],
            "a track with a name": [of(x(0, 1, tid=6))],
            "a slice on a thread": [of(x(0, 1, tid=0))],
            "a process with a name": [of(dict(ph="i", ts=0, s="p", pid=2, tid=0))],
            "a thread of one process": [of(dict(ph="M", pid=2, tid=5, name="thread_name", args={"name": "t"}))],
            "a thread that no reader takes for the main one": [of(dict(ph="M", tid=1, name="thread_name", args={"name": "t"}), x(0, 1))],
            "metadata that is said once": [of(dict(ph="M", name="thread_name", args={"name": "u"}))],
            "metadata that is known": [of(dict(ph="M", name="thread", args={"name": "u"}))],
            "its name": [of(dict(ph="M", pid=2, name="process_name", args={"name": 1})), of(dict(ph="M", pid=2, name="process_name", args={}))],
            "a flow that starts once": [of(b("s", 0), b("s", 1))],
            "a flow that has started": [of(b("f", 0)), of(b("s", 0), b("f", 1), b("t", 2))],
            "an end for every flow": [of(b("s", 0))],
            "a counter that keeps its series": [of(dict(ph="C", ts=0, args={"a": 1}), dict(ph="C", ts=1, args={"b": 1}))],
            "counts": [of(dict(ph="C", ts=0, args={})), of(dict(ph="C", ts=0, args={"a": -1})), of(dict(ph="C", ts=0, args={"a": "1"}))],
            "a scope": [of(dict(ph="i", ts=0, s="x")), of(dict(ph="i", ts=0, s=""))],
            "the member": [of(dict(ph="X", ts=0)), of(dict(ph="X", dur=0)), of(dict(ph="b", ts=0, cat="c")), of(dict(ph="b", ts=0, id=1)), of(dict(ph="i", ts=0))],
            "a kind that is known": [of(dict(ph="P", ts=0)), of(dict(ph="", ts=0)), {"traceEvents": [1]}],
            "a time": [of(x(-1, 0)), of(x("0", 0)), of(x(0.0001, 0)), of(x(True, 0))],
            "no slice that runs backwards": [of(x(0, -1)), of(b("b", 1), b("e", 0))],
            "a name": [of(x(0, 1, name="")), of(x(0, 1, name=3))],
            "numbers of process and thread": [of(x(0, 1, tid="5")), of(x(0, 1, pid=-1)), of(x(0, 1, pid=1.5))],
            "an id": [of(b("b", 0, id=1.5))],
            "a unit": [dict(of(), displayTimeUnit="us")],
            "a list of events": [{}, [], {"traceEvents": {}}],
        }
        for rule, documents in bad.items():
            for document in documents:
                with self.subTest(rule), self.assertRaises(trace_check.Broken) as noticed:
                    trace_check.check(document)
                self.assertIn(rule if rule != "no slice that runs backwards" else "", str(noticed.exception))
        for text in ('{"traceEvents": [NaN]}', '{"traceEvents": [], "traceEvents": []}', '{"traceEvents": [', ''):
            with self.assertRaises(trace_check.Broken):
                trace_check.loads(text)


class TraceTest(ReportFilesCase):
    def trace(self, *arguments):
        text, said = self.write("trace", "trace.json", *arguments)
        document = trace_check.loads(text)
        return document, trace_check.check(document), said

    def reports(self, said):
        return [report for job in said["jobs"] for report in job["processes"]]

    def assert_lifetimes_are_those_of(self, slices, said):
        """Each lifetime of the reports is one asynchronous slice, with its phases inside."""
        expected = sorted((life["address"], life["microbatch"], life["step"], channel["direction"],
                           max(life["released_monotonic_ns"] or 0, life["last_access_monotonic_ns"] or 0, life["posted_monotonic_ns"])
                           - life["posted_monotonic_ns"])
                          for report in self.reports(said) for channel in report["channels"] for life in channel["lifetimes"])
        found = []
        for entries in slices.values():
            outer, *phases = entries
            arguments = outer["event"]["args"]
            found.append((arguments["address"], arguments["microbatch"], arguments["step"], arguments["direction"],
                          round(1000 * (outer["end"] - outer["begin"]))))
            self.assertEqual([phase["event"]["name"] for phase in phases], ["waiting", "in use", "kept"][:len(phases)])
            self.assertTrue(all(phase["depth"] == 1 for phase in phases))
            self.assertEqual(phases[0]["begin"], outer["begin"])
            self.assertEqual(phases[-1]["end"], outer["end"])
        self.assertEqual(sorted(found), expected)

    def depths(self, document):
        """Most in flight, by process and channel."""
        most = {}
        for event in document["traceEvents"]:
            if event["ph"] == "C" and event["name"].startswith("in flight: "):
                key = event["pid"], event["name"]
                most[key] = max(most.get(key, 0), event["args"]["buffers"])
        return sorted(most.values())

    def test_samples(self):
        for style in ("prealloc", "gpipe", "just_in_time", "enforced", "violated", "shadow"):
            with self.subTest(style):
                self.sample(style, 0)
                document, slices, said = self.trace()
                self.assert_lifetimes_are_those_of(slices, said)

    def test_live(self):
        if not support.has_trainer():
            self.skipTest("the trainer was not built")
        self.train()
        document, slices, said = self.trace()
        self.assert_lifetimes_are_those_of(slices, said)
        self.assertEqual(len(slices), 12)
        self.assertEqual(self.depths(document), sorted(channel["depth"] for report in self.reports(said) for channel in report["channels"]))
        events = document["traceEvents"]
        self.assertEqual(sum(event.get("cat") == "transfer" for event in events), 12)
        self.assertEqual(len({event["tid"] for event in events if event.get("cat") == "buffer"}), 12)
        self.assertEqual(len({event["tid"] for event in events if event.get("cat") == "slot"}),
                         sum(channel["depth"] for report in self.reports(said) for channel in report["channels"]))
        counters = [event for event in events if event["ph"] == "C" and event["name"] == "bytes in use"]
        self.assertEqual({value % (1 << 20) for event in counters for value in event["args"].values()}, {0})
        self.assertEqual(set(counters[-1]["args"].values()), {0})
        self.assertEqual(min(event["ts"] for event in events if event["ph"] != "M"), 0)
        names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual({re.sub(r" \(.*", "", name) for name in names}, {"rank 0", "rank 1"})

    def test_enforced_live(self):
        if not support.has_trainer():
            self.skipTest("the trainer was not built")
        self.train(run_options=("--mode", "enforce"))
        document, slices, said = self.trace()
        self.assert_lifetimes_are_those_of(slices, said)
        # the job has ended and freed its buffers: of each it is still known which slot it had
        on_slots = self.assert_on_slots(document, said)
        self.assertEqual(len(on_slots), sum(len(c["lifetimes"]) for r in self.reports(said) for c in r["channels"]))
        for report in self.reports(said):
            (device,) = report["enforcement"]["devices"]
            self.assertEqual((report["state"], device["active"], device["last_bindings_dropped"]), ("finished", False, 0))
            for owner in device["classes"]:
                self.assertEqual(owner["bindings"], [])
                self.assertEqual({binding["slot"] for binding in owner["last_bindings"]}, set(range(owner["slots"])))

    def assert_on_slots(self, document, said):
        """Lifetimes whose slot is known are on its track, and nothing else is; returns their events."""
        bound = {}
        for report in self.reports(said):
            for device in report["enforcement"]["devices"]:
                for owner in device["classes"]:
                    for binding in owner["last_bindings"] + owner["bindings"]:
                        bound[report["process"]["rank"], device["device"], binding["address"]] = f"class {owner['class']}, slot {binding['slot']}"
        names = {event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
        on_slots = [event for event in document["traceEvents"] if event.get("cat") == "slot" and names[event["tid"]].startswith("class")]
        expected = [bound[key] for report in self.reports(said) for channel in report["channels"] for life in channel["lifetimes"]
                    if (key := (report["process"]["rank"], channel["device"], life["address"])) in bound]
        self.assertTrue(expected)
        self.assertEqual(sorted(names[event["tid"]] for event in on_slots), sorted(expected))
        return on_slots

    def test_slots_that_are_shared(self):
        for style in ("enforced", "freed"):
            self.sample(style, 0)
            document, slices, said = self.trace()
            self.assert_on_slots(document, said)

    def test_a_slot_that_a_buffer_has_comes_before_one_it_had(self):
        self.sample("enforced", 0)

        def had(report):
            owner = report["enforcement"]["devices"][0]["classes"][0]
            owner["last_bindings"] = [{"address": binding["address"], "slot": 7} for binding in owner["bindings"]]
        self.change_reports(had)
        document, slices, said = self.trace()
        self.assert_on_slots(document, said)
        self.assertNotIn("slot 7", json.dumps(document))

    def test_violations_are_instants(self):
        self.sample("violated", 0)
        document, _, said = self.trace()
        (report,) = self.reports(said)
        kept = [conflict for device in report["enforcement"]["devices"] for conflict in device["conflicts"]["kept"]]
        instants = [event for event in document["traceEvents"] if event.get("cat") in ("violation", "prevented")]
        self.assertEqual(sorted(event["name"] for event in instants),
                         sorted(("prevented: " if conflict["prevented"] else "VIOLATION: ") + conflict["kind"] for conflict in kept))
        for event in instants:
            self.assertEqual((event["ph"], event["s"]), ("i", "p"))
            self.assertIn("call", event["args"]["later"])

    def test_a_violation_is_placed_by_its_sequence(self):
        self.sample("violated", 0)
        moments = []

        def number(report):
            lives = [life for channel in report["channels"] for life in channel["lifetimes"]]
            for i, life in enumerate(lives):
                for k, moment in enumerate(("posted", "first_access", "last_access", "released")):
                    life[f"{moment}_monotonic_ns"], life[f"{moment}_sequence"] = 1000 + 1000 * (4 * i + k), 10 + 10 * (4 * i + k)
            moments.append(len(lives))
            for device in report["enforcement"]["devices"]:
                for conflict in device["conflicts"]["kept"]:
                    conflict["later"]["sequence"] = 35
        self.change_reports(number)
        document, _, _ = self.trace()
        times = {event["ts"] for event in document["traceEvents"] if event.get("cat") == "violation"}
        self.assertEqual(times, {2.0})  # sequence 30, two microseconds after the first

    def test_clocks_of_hosts_are_aligned(self):
        self.sample("prealloc", 0, 1, 2)
        starts = {0: ("one", 1000.0, 5_000_000_000), 1: ("one", 1000.5, 5_500_000_100), 2: ("two", 1002.0, 70_000_000_000)}

        def move(report):
            host, unix, monotonic = starts[report["process"]["rank"]]
            report["process"].update(host=host, start_unix_seconds=unix, start_monotonic_ns=monotonic)
            for channel in report["channels"]:
                for i, life in enumerate(channel["lifetimes"]):
                    for moment in ("posted", "first_access", "last_access", "released"):
                        life[f"{moment}_monotonic_ns"] = monotonic + 1000 * i + 1
        self.change_reports(move)
        document, slices, _ = self.trace()
        first = {}
        for event in document["traceEvents"]:
            if event.get("cat") == "transfer":
                first[event["pid"]] = min(first.get(event["pid"], event["ts"]), event["ts"])
        self.assertEqual(first[1], 0)
        self.assertEqual(first[2], 500_000.1)  # to the nanosecond: one clock
        self.assertEqual(round(first[3]), 2_000_000)
        self.assertEqual(document["otherData"]["zero_unix_seconds"], 1000.000000001)

    def test_what_overlaps_on_a_slot_gets_a_track_below(self):
        self.sample("enforced", 0)

        def overlap(report):
            for channel in report["channels"]:
                for life in channel["lifetimes"]:
                    life.update(posted_monotonic_ns=1000, first_access_monotonic_ns=2000, last_access_monotonic_ns=3000,
                                released_monotonic_ns=4000)
        self.change_reports(overlap)
        document, slices, said = self.trace()
        self.assert_lifetimes_are_those_of(slices, said)

    def test_size_is_capped_with_a_marker(self):
        self.sample("prealloc", *range(6))
        whole, slices, said = self.trace()
        of_one = len(slices) // 6
        self.assertEqual(whole["otherData"]["lifetimes_left_out"], 0)
        self.assertFalse([event for event in whole["traceEvents"] if event.get("cat") == "cut"])
        for most, each in ((6 * of_one - 1, of_one - 1), (12, 2), (17, 2), (5, 0), (0, 0)):
            document, slices, _ = self.trace("--trace-lifetimes", str(most))
            self.assert_latest(document, said, each)
            self.assertEqual(len(slices), 6 * each)
            self.assert_cut(document, 6 * (of_one - each), 6)

    def assert_latest(self, document, said, most):
        """Each process has its latest receives."""
        shown = [(event["pid"], event["ts"]) for event in document["traceEvents"] if event.get("cat") == "transfer"]
        for number, report in enumerate(self.reports(said), 1):
            posts = sorted(life["posted_monotonic_ns"] for channel in report["channels"] for life in channel["lifetimes"])
            zero = document["otherData"]["zero_unix_seconds"] - report["process"]["start_unix_seconds"]
            expected = [post / 1e3 - zero * 1e6 for post in posts[max(len(posts) - most, 0):]]
            found = sorted(ts for pid, ts in shown if pid == number)
            self.assertEqual(len(found), len(expected))
            self.assertEqual([round(ts - found[0], 3) for ts in found], [round(ts - expected[0], 3) for ts in expected])

    def assert_cut(self, document, lifetimes, processes):
        (marker,) = [event for event in document["traceEvents"] if event.get("cat") == "cut"]
        self.assertEqual(marker["name"], f"CUT: the oldest lifetimes, {lifetimes} in {processes} processes, are left out, also of the "
                                         "counters (recvpool report --trace-lifetimes)")
        self.assertEqual((document["otherData"]["lifetimes_left_out"], document["otherData"]["processes_cut"]), (lifetimes, processes))

    def test_only_those_with_many_are_cut(self):
        """And what was unsafe is shown all the same."""
        self.sample("violated", *range(4))
        keep = (8, 1, 0, 6)

        def cut(report):
            left = keep[report["process"]["rank"]]
            for channel in report["channels"]:
                channel["lifetimes"] = channel["lifetimes"][:left]
                left -= len(channel["lifetimes"])
        self.change_reports(cut)
        for most, shown in ((15, (8, 1, 0, 6)), (14, (7, 1, 0, 6)), (13, (6, 1, 0, 6)), (9, (4, 1, 0, 4)), (8, (3, 1, 0, 3)), (1, (0, 0, 0, 0))):
            document, slices, said = self.trace("--trace-lifetimes", str(most))
            counts = [sum(event.get("cat") == "transfer" and event["pid"] == pid for event in document["traceEvents"]) for pid in range(1, 5)]
            self.assertEqual(tuple(counts), shown, most)
            self.assertEqual(len([e for e in document["traceEvents"] if e.get("cat") == "violation"]), 4)
            if most < 15:
                self.assert_cut(document, 15 - sum(shown), sum(a < b for a, b in zip(shown, keep)))

    def test_hostile_reports(self):
        self.sample("violated", 0)
        (path,) = glob.glob(os.path.join(self.reports_dir, "*.json"))
        with open(path) as file:
            report = json.load(file)

        def poisoned(value, number):
            if isinstance(value, dict):
                return {key: poisoned(child, number) for key, child in value.items()}
            if isinstance(value, list):
                return [poisoned(child, number) for child in value]
            return "\x1b]0;evil\x07\u00e9" * 30 if isinstance(value, str) else number if isinstance(value, (int, float)) else value

        for number in (2**63 - 1, -2**63, 0, 1, "text", None, 1e308, -1e308):
            spoiled = poisoned(report, number)
            spoiled.update(schema=report["schema"], schema_version=report["schema_version"])
            spoiled["enforcement"]["mode"] = "enforce"
            with open(path, "w") as file:
                json.dump(spoiled, file)
            with self.subTest(number=number):
                self.trace()
                self.write("html", "page.html")
                self.assertIn(self.report("--plan", os.path.join(self.folder, "plan"), path).returncode, (0, 1))
        for part in ({"channels": [1, None, {}, {"lifetimes": [1, {}, None, {"posted_monotonic_ns": 5}]}]}, {"enforcement": 7},
                     {"enforcement": {"mode": "enforce", "devices": [1, {"active": True, "classes": [3, {"bindings": [4, {}]}],
                                                                         "conflicts": {"kept": [1, {}, None]}}]}}):
            with open(path, "w") as file:
                json.dump({**report, **part}, file)
            with self.subTest(part=part):
                self.trace()


class PlanFileTest(ReportFilesCase):
    def test_is_the_plan_of_recvpool_plan(self):
        if not support.has_trainer():
            self.skipTest("the trainer was not built")
        self.train()
        text, _ = self.write("plan", "plan.json")
        self.assertEqual([e.message for e in support.validator("plan.schema.json").iter_errors(json.loads(text))], [])
        other = os.path.join(self.folder, "other.json")
        self.assert_success(run([RECVPOOL, "plan", "--from-report", self.reports_dir, "--output", other]))
        with open(other) as file:
            self.assertEqual(json.loads(text), json.load(file))
        reports = os.path.join(self.folder, "enforced")
        result = run([RECVPOOL, "run", "--mode", "enforce", "--plan", os.path.join(self.folder, "plan.json"), "--report-dir", reports,
                      "--", TRAINER, "--stages", "2", "--microbatches", "6", "--message-bytes", "2MiB", "--steps", "3"], env=simulated())
        self.assert_success(result)
        self.assertIn("Nothing to do: memory is shared", self.report(reports).stdout)

    def test_no_plan_of_what_is_not_decided(self):
        """Nothing is written, and what was there before stays."""
        if not support.has_trainer():
            self.skipTest("the trainer was not built")
        path = os.path.join(self.folder, "plan.json")
        with open(path, "w") as file:
            file.write("before")
        self.train(steps="1")
        self.assertIn("too_few_steps", self.report(self.reports_dir).stdout)
        for command in (["report", "--plan", path, self.reports_dir], ["plan", "--from-report", self.reports_dir, "--output", path],
                        ["plan", "--from-report", self.reports_dir]):
            result = run([RECVPOOL, *command])
            self.assertEqual(result.returncode, 1)
            self.assert_one_line(result.stderr)
            self.assertIn("2 of 2 channels were seen for fewer than two whole steps (too_few_steps)", result.stderr)
            self.assertNotIn("Plan written", result.stdout)
            with open(path) as file:
                self.assertEqual(file.read(), "before")
            self.assertEqual(sorted(os.listdir(self.folder)), ["plan.json", "reports"])
        compared = run([RECVPOOL, "plan", "--compare", "--schedule", "1f1b", "--stages", "2", "--microbatches", "6", self.reports_dir])
        self.assert_success(compared)

    def test_one_channel_that_is_not_decided_is_enough(self):
        self.sample("prealloc", 0)
        path = os.path.join(self.folder, "plan.json")

        def undecided(report):
            report["channels"][1]["decision"]["reason"] = "too_few_steps"
        self.change_reports(undecided)
        result = self.report("--plan", path, self.reports_dir)
        self.assertEqual(result.returncode, 1)
        self.assertIn("1 of 2 channels were seen for fewer than two whole steps", result.stderr)
        self.assertFalse(os.path.exists(path))

    def test_no_plan_of_nothing(self):
        self.sample("empty", 0)
        path = os.path.join(self.folder, "plan.json")
        result = self.report("--plan", path, self.reports_dir)
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr)
        self.assertIn("no receives were seen, since the agent did nothing: no CUPTI", result.stderr)
        self.assertFalse(os.path.exists(path))
        self.assertIn("rank  process", result.stdout)  # what there is is shown all the same


class MutantTest(ReportFilesCase):
    """Reports with parts exchanged at random: whatever is in them, what is written is whole and says the same everywhere."""

    VALUES = (None, True, 0, -1, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 0.5, -1e300, 1e300, "", "x", "0x10", "enforce", "activation",
              "\u2028</script>\x1b", [], {}, [None], [[]], [{}], {"": 1})

    def places(self, part, found):
        for key in part if isinstance(part, dict) else range(len(part)):
            found.append((part, key))
            if isinstance(part[key], (dict, list)):
                self.places(part[key], found)
        return found

    def mutate(self, report, generator):
        for _ in range(generator.choice((1, 2, 4, 8, 32))):
            part, key = generator.choice(self.places(report, []))
            kind = generator.randrange(4)
            if kind == 0 and isinstance(part, dict):
                del part[key]
            elif kind == 1 and isinstance(part, list):
                part.extend(copy.deepcopy(part[: generator.randrange(20)]))
            elif kind == 2:
                part[key] = copy.deepcopy(generator.choice(self.places(report, []))[0])
            else:
                part[key] = copy.deepcopy(generator.choice(self.VALUES))
        report.update(schema="recvpool.report", schema_version="1.1")
        for key, kind in (("process", dict), ("channels", list), ("totals", dict)):
            if not isinstance(report.get(key), kind):
                report[key] = kind()

    def test_mutants(self):
        generator = random.Random(int(os.environ.get("E2E_SEED", "1")))
        models = []
        for style in ("enforced", "violated", "shadow", "gpipe"):
            self.sample(style, 0)
            (path,) = glob.glob(os.path.join(self.reports_dir, "*.json"))
            with open(path) as file:
                models.append(json.load(file))
        paths = {kind: os.path.join(self.folder, kind) for kind in ("html", "trace", "plan")}
        options = [word for kind in ("html", "trace") for word in (f"--{kind}", paths[kind])]
        for number in range(int(os.environ.get("E2E_MUTANTS", "60"))):
            report = copy.deepcopy(generator.choice(models))
            self.mutate(report, generator)
            with open(path, "w") as file:
                json.dump(report, file)
            with self.subTest(number):
                result = self.report("--json", *options, self.reports_dir)
                self.assert_success(result)
                said = json.loads(result.stdout)
                self.assertEqual(said["jobs"][0]["processes"], [report])
                with open(paths["trace"]) as file:
                    trace_check.check(json.load(file))
                with open(paths["html"]) as file:
                    overview = json.loads(re.findall(r'id="overview">(.*?)</script>', file.read(), re.S)[0])
                self.assertEqual((overview["totals"], overview["jobs"][0]["conclusion"]), (said["totals"], said["jobs"][0]["conclusion"]))
                result = self.report("--plan", paths["plan"], self.reports_dir)
                self.assertIn(result.returncode, (0, 1), result.stderr)
                self.assertEqual([c for c in result.stdout if c < " " and c != "\n"], [])


class VersionTest(ReportFilesCase):
    def test_a_later_minor_version_is_read_and_valid(self):
        """What a newer recvpool of the same major version writes: more members, and the number."""
        self.sample("enforced", 0)

        def newer(report):
            report.update(schema_version="1.99", something_new={"of": ["any", "kind"]})
            report["channels"][0]["something_new"] = 1
        self.change_reports(newer)
        _, said = self.write("html", "page.html")
        (report,) = [report for job in said["jobs"] for report in job["processes"]]
        self.assertEqual(report["schema_version"], "1.99")
        self.assertEqual(report["something_new"], {"of": ["any", "kind"]})

    def test_the_schemas_take_a_later_minor_version(self):
        self.sample("enforced", 0)
        page, said = self.write("html", "page.html")
        overview = json.loads(re.findall(r'id="overview">(.*?)</script>', page, re.S)[0])
        plan, _ = self.write("plan", "plan.json")
        said["jobs"][0]["processes"][0]["schema_version"] = "1.99"
        for name, document in (("job", said), ("overview", overview), ("plan", json.loads(plan)),
                               ("report", said["jobs"][0]["processes"][0])):
            for version, valid in (("1.99", True), ("2.0", False)):
                document["schema_version"] = version
                errors = [e.message for e in support.validator(f"{name}.schema.json").iter_errors(document)]
                self.assertEqual(not errors, valid, (name, version, errors))
            document["schema_version"] = "1.99"


class WritingTest(ReportFilesCase):
    def test_all_at_once_and_the_table(self):
        self.sample("prealloc", 0, 1)
        paths = {kind: os.path.join(self.folder, kind) for kind in ("html", "trace", "plan")}
        result = self.report(*[word for kind, path in paths.items() for word in (f"--{kind}", path)], self.reports_dir)
        self.assert_success(result)
        plain = self.report(self.reports_dir).stdout
        self.assertTrue(result.stdout.startswith(plain))
        self.assertEqual(result.stdout[len(plain):],
                         "".join(f"{what} written to {paths[kind]}.\n" for kind, what in (("html", "Page"), ("trace", "Trace"), ("plan", "Plan"))))

    def test_nothing_is_half_written(self):
        self.sample("prealloc", 0)
        for kind in ("html", "trace", "plan"):
            with self.subTest(kind):
                result = self.report(f"--{kind}", os.path.join(self.folder, "no", "such"), self.reports_dir)
                self.assertEqual(result.returncode, 1)
                self.assert_one_line(result.stderr)
                self.assertIn("No such file or directory", result.stderr)
                result = self.report(f"--{kind}", "/dev/full", self.reports_dir)
                self.assertEqual(result.returncode, 1)
                self.assertIn("No space left on device", result.stderr)
                if kind == "plan":
                    continue
                target = os.path.join(self.folder, "kept")
                with open(target, "w") as file:
                    file.write("as it was")
                result = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", RECVPOOL, "report", f"--{kind}", target, self.reports_dir],
                                        capture_output=True, text=True, preexec_fn=ignore_file_size_signal)
                self.assertEqual(result.returncode, 1, result.stderr)
                with open(target) as file:
                    self.assertEqual(file.read(), "as it was")
                self.assertEqual([name for name in os.listdir(self.folder) if "tmp" in name], [])

    def test_a_link_stays_a_link(self):
        self.sample("prealloc", 0)
        os.symlink("target.html", os.path.join(self.folder, "link.html"))
        for _ in range(2):
            with open(os.path.join(self.folder, "target.html"), "w"):
                pass
            self.assert_success(self.report("--html", os.path.join(self.folder, "link.html"), self.reports_dir))
            self.assertTrue(os.path.islink(os.path.join(self.folder, "link.html")))
            self.assertGreater(os.path.getsize(os.path.join(self.folder, "target.html")), 1000)

    def test_wrong_options(self):
        for arguments in (["--trace-lifetimes", "many"], ["--trace-lifetimes", "-1"], ["--html"], ["--trace-lifetimes", "99999999999"]):
            result = self.report(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assert_one_line(result.stderr)


def ignore_file_size_signal():
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
