"""The page of `recvpool serve` in a real Chromium: nothing breaks, nothing is asked of others, everybody can read it.

Pictures of every scene are kept in page-pictures/ of the build folder."""

import copy
import glob
import json
import os
import subprocess
import time
import unittest

import browser
import support
from support import BUILD, RECVPOOL, TRAINER, clean_environment, run, simulated

PICTURES = os.path.join(BUILD, "page-pictures")
with open(os.path.join(os.path.dirname(__file__), "page_audit.js")) as script:
    AUDIT = script.read()
IS_DRAWN = "document.querySelector('#status').textContent.includes('as of')"


@unittest.skipUnless(browser.find(), "there is no Chromium on this machine (Debian: chromium)")
class PageTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        os.makedirs(PICTURES, exist_ok=True)
        cls.page = browser.Browser()
        cls.addClassCleanup(cls.page.close)

    def setUp(self):
        super().setUp()
        os.makedirs(self.reports_dir)

    # ---- what there is to see

    def train(self, *options, run_options=(), steps="100000"):
        """Starts a job that goes on until the test ends, or for so many steps."""
        log = open(os.path.join(self.folder, "train.log"), "w")
        self.addCleanup(log.close)
        job = subprocess.Popen([RECVPOOL, "run", "--report-dir", self.reports_dir, "--interval", "0.5", *run_options, "--",
                                TRAINER, "--stages", "4", "--message-bytes", "2MiB", "--steps", steps, *options],
                               env=simulated(), stdout=log, stderr=log)
        self.addCleanup(lambda: (job.terminate(), job.wait(60)))
        if steps == "100000":
            self.wait_for(lambda: len(self.reports_with_steps()) == 4)
        else:
            job.wait(support.TIMEOUT_SECONDS)

    def reports_with_steps(self):
        return [report for report in self.read_reports() if report["totals"]["steps_complete"] > 4]

    def wait_for(self, condition, seconds=support.TIMEOUT_SECONDS):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, "it never came to that")
            time.sleep(0.2)

    def serve(self):
        process = subprocess.Popen([RECVPOOL, "serve", "--listen", "127.0.0.1:0", "--report-dir", self.reports_dir,
                                    "--keep", str(2**31 - 1)], stdout=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(lambda: (process.terminate(), process.wait(20), process.stdout.close()))
        return process.stdout.readline().split(" at ")[1].strip()

    def open(self, **window):
        """The page with what is in the folder."""
        self.url = self.serve()
        self.addCleanup(self.page.open, "about:blank")
        self.page.window(**window)
        self.page.open(self.url)
        self.page.until(IS_DRAWN)

    # ---- what must hold everywhere

    def check(self, name):
        """Wide and narrow, light and dark: the audit finds nothing; pictures are kept."""
        for width, dark in ((1280, False), (1280, True), (375, False), (375, True)):
            self.page.window(width, 900, dark)
            time.sleep(0.5)  # what waits until the window stands still
            self.page.until(IS_DRAWN)
            with self.subTest(scene=name, width=width, dark=dark):
                self.assertEqual(self.page.evaluate(AUDIT), [])
            self.page.picture(os.path.join(PICTURES, f"{name}-{width}-{'dark' if dark else 'light'}.png"))
        self.assert_quiet()

    def assert_quiet(self):
        self.assertEqual(self.page.complaints, [])
        self.assertEqual([url for url in self.page.requests if not url.startswith((self.url, "data:"))], [])

    def text(self, selector="main"):
        return self.page.evaluate(f"document.querySelector({selector!r}).innerText")

    # ---- scenes

    def test_nothing_there_yet(self):
        self.open()
        self.assertIn(f"No process has written a report to {self.reports_dir} yet", self.text())
        self.check("empty")
        self.sample("prealloc", 0)  # and it notices by itself
        self.page.until("document.querySelector('#jobs svg') !== null")

    def test_folder_that_is_not_there(self):
        folder, self.reports_dir = self.reports_dir, os.path.join(self.folder, "later")
        self.open()
        self.assertIn(f"The report folder {self.reports_dir} cannot be read: there is no such folder", self.text())
        self.assert_quiet()
        os.rename(folder, self.reports_dir)
        self.page.until("document.querySelector('main').innerText.includes('No process has written a report to')")

    def test_observed_live(self):
        self.train("--microbatches", "16")
        self.open()
        self.page.until("document.querySelectorAll('#timeline .life-frame').length > 16")
        self.assertIn("Pooling would save 150.0 MiB of the 192.0 MiB".lower(), self.text("#jobs").lower())
        self.assertIn("running", self.text("#jobs h3"))
        self.assertEqual(self.page.evaluate("document.querySelectorAll('#jobs svg[role=group] g[role=img]').length"), 6)
        self.assertIn("3 of 16 buffers in use at once", self.text("#timeline"))
        self.page.until("document.querySelector('#history-section').hidden === false")
        self.page.evaluate("document.querySelector('#jobs details').open = true")
        time.sleep(3)
        self.assertTrue(self.page.evaluate("document.querySelector('#jobs details').open"), "closed by a refresh")
        self.check("live")

    def test_enforced_live(self):
        self.train("--microbatches", "16", run_options=("--mode", "enforce"))
        self.wait_for(lambda: all(d["active"] for r in self.read_reports() for d in r["enforcement"]["devices"]))
        self.open()
        self.page.until("document.querySelector('#timeline').innerText.includes('slots that share memory')")
        self.assertIn("4 of 4", self.text("#jobs"))
        self.check("enforced")
        self.assert_bars_in_slots("bindings")

    def test_enforced_and_finished(self):
        """The buffers are freed, and the picture is still of the slots that they had."""
        self.train("--microbatches", "16", run_options=("--mode", "enforce"), steps="8")
        self.open()
        self.page.until("document.querySelector('#timeline').innerText.includes('slots that share memory')")
        self.assert_bars_in_slots("last_bindings")
        self.assertNotIn("place", self.text("#timeline"))

    def assert_bars_in_slots(self, where):
        """Every bar is in the slot that the report names."""
        self.page.evaluate("(() => { const s = document.querySelector('#process'); s.selectedIndex = 1;"
                           " s.dispatchEvent(new Event('change', { bubbles: true })); })()")
        self.page.until("document.querySelector('#timeline').innerText.includes('from rank 0')")
        (report,) = [r for r in self.read_reports() if r["process"]["rank"] == 1]
        slots = {b["address"]: b["slot"] for c in report["enforcement"]["devices"][0]["classes"] for b in c[where]}
        labels = self.page.evaluate("[...document.querySelectorAll('#timeline .life-frame')].map((e) => e.getAttribute('aria-label'))")
        for channel in report["channels"]:
            for life in channel["lifetimes"]:
                wanted = f"Microbatch {life['microbatch']}, {channel['direction']}, slot {slots[life['address']]}:"
                self.assertTrue(any(label.startswith(wanted) for label in labels), wanted)

    def test_violations(self):
        self.train("--microbatches", "8", "--mistake", "late-read", run_options=("--mode", "enforce"), steps="6")
        self.change_reports(lambda report: report.update(state="finished"))  # the rank that saw nothing wrong was killed
        self.open()
        self.assertIn("VIOLATION", self.text("#violations"))
        self.assertIn("stale_access", self.text("#violations"))
        self.assertIn("finished", self.text("#jobs h3"))
        self.check("violations")

    def test_two_jobs(self):
        """Each has a rank 0: what is said of one names its job."""
        for number, style in ((1, "violated"), (2, "violated")):
            self.sample(style, 0)
            (made,) = glob.glob(os.path.join(self.reports_dir, "node*.json"))
            with open(made) as file:
                report = json.load(file)
            os.unlink(made)
            report["process"].update(command=f"/bin/train --number {number}", start_unix_seconds=1700000000 + number, pid=number)
            report["communicators"][0]["communicator_id"] = f"0x{number}"
            with open(os.path.join(self.reports_dir, f"job{number}.json"), "w") as file:
                json.dump(report, file)
        self.open()
        self.assertIn("train --number 1 on node/one, enforced", self.text("#jobs"))
        for number in (1, 2):
            self.assertIn(f"job {number}, rank 0", self.text("#violations"))
            self.assertIn(f"job {number}, rank 0", self.page.evaluate("document.querySelector('#process').innerText"))
        self.assert_quiet()

    def test_stages_in_chunks(self):
        self.train("--microbatches", "16", "--schedule", "interleaved_1f1b")
        self.open()
        self.page.until("document.querySelectorAll('#timeline .life-frame').length > 40")
        self.check("interleaved")

    def test_stale_and_skipped(self):
        self.sample("prealloc", 0, 1, 2)
        self.change_reports(lambda report: report.update(state="running", written_unix_seconds=time.time() - 400))
        with open(os.path.join(self.reports_dir, "<img src=x onerror=alert(1)>.json"), "w") as file:
            file.write("[]")
        self.open()
        self.assertIn("No process has written for 7 min", self.text("#jobs"))
        self.assertIn("<img src=x onerror=alert(1)>.json", self.text("#skipped"))
        self.check("stale")

    def test_killed(self):
        self.sample("prealloc", 0, 1)
        gone = support.incarnation_of_ended()

        def kill(report):
            report.update(state="running", written_unix_seconds=time.time())
            report["process"].update(gone, start_monotonic_ns=report["process"]["rank"] + 1)
        self.change_reports(kill)
        self.open()
        self.page.until("document.querySelector('#jobs h3').innerText.includes('ended without a final report')")
        self.assertIn("what it did later is not known (2 processes)", self.text("#jobs"))
        self.check("killed")

    def test_hostile_texts_stay_text(self):
        markup = '<img src="http://127.0.0.1:1/x" onerror="document.title=1"></script><script>document.title=2</script>\u202e'
        self.sample("violated", 0)

        def spoil(part):
            for key, value in part.items() if isinstance(part, dict) else enumerate(part):
                if isinstance(value, str) and key not in ("schema", "schema_version", "mode", "communicator", "direction"):
                    part[key] = markup
                elif isinstance(value, (dict, list)):
                    spoil(value)
        self.change_reports(spoil)
        self.open()
        self.page.until("document.querySelector('#timeline svg') !== null")
        self.assertEqual(self.page.evaluate("document.title"), "recvpool")
        self.assertEqual(self.page.evaluate("document.querySelectorAll('img').length"), 0)
        self.assertIn("<img src=", self.text("#violations"))
        self.assert_quiet()

    def test_broken_members_do_not_break_it(self):
        self.sample("violated", 0, 1)
        changes = [("channels", [None, 3, "x", {"lifetimes": {"a": 1}}, {"lifetimes": [None, 3]}]), ("enforcement", 7), ("process", {}),
                   ("totals", {}), ("communicators", "x"), ("warnings", [1, None]), ("evidence", {"a": []})]
        paths = sorted(glob.glob(os.path.join(self.reports_dir, "*.json")))
        with open(paths[0]) as file:
            good = json.load(file)
        for i, (key, value) in enumerate(changes):
            report = copy.deepcopy(good)
            report[key] = value
            report["process"] = report["process"] and dict(report["process"], pid=5000 + i)
            with open(os.path.join(self.reports_dir, f"broken-{i}.json"), "w") as file:
                json.dump(report, file)
        self.open()
        self.page.until(f"document.querySelector('#status').textContent.includes('{len(changes) + 2} processes')")
        for value in self.page.evaluate("[...document.querySelectorAll('#process option')].map((option) => option.value)"):
            self.page.evaluate(f"document.querySelector('#process').value = {value!r};"
                               "document.querySelector('#process').dispatchEvent(new Event('change'))")
            time.sleep(0.3)
        self.assertNotIn("does not answer", self.text("header"))
        self.assert_quiet()

    def test_512_ranks(self):
        self.sample("violated", 0)
        (path,) = glob.glob(os.path.join(self.reports_dir, "*.json"))
        with open(path) as file:
            text = file.read()
        os.unlink(path)
        for rank in range(512):
            report = json.loads(text)
            replica = f"0x{0x1000 + rank % 64:x}"
            report["process"].update(rank=rank, pid=1000 + rank, world_size=512, host=f"node{rank // 8:03d}")
            report["communicators"][0].update(communicator_id=replica, rank=rank // 64, ranks=8)
            report["communicators"].append({"communicator": "0xdd", "communicator_id": "0x9999", "rank": rank, "ranks": 512})
            for channel in report["channels"]:
                channel["communicator_id"] = replica
            with open(os.path.join(self.reports_dir, f"node-{rank}-1.json"), "w") as file:
                json.dump(report, file)
        self.open()
        self.page.until("document.querySelector('#status').textContent.includes('1 job, 512 processes')")
        self.page.until("document.querySelectorAll('#jobs svg[role=group] g[role=img]').length === 16")  # 8 stages, 2 directions
        self.assertIn("largest of 64 processes", self.page.evaluate("document.querySelector('#jobs g[role=img]').getAttribute('aria-label')"))
        self.check("512-ranks")

    # ---- by keyboard

    def focused(self):
        return self.page.evaluate("[document.activeElement.tagName, document.activeElement.id, document.activeElement.getAttribute('aria-label')]")

    def test_keyboard(self):
        self.sample("prealloc", 0, 1)
        self.open()
        self.page.until("document.querySelector('#timeline svg') !== null")
        self.page.key("Tab")
        self.page.key("Enter")  # the way around the header
        self.assertEqual(self.focused()[1], "main")
        seen = []
        for _ in range(12):
            self.page.key("Tab")
            seen.append(self.focused())
            if seen[-1][0] == "rect":
                break
        self.assertIn("SUMMARY", [tag for tag, _, _ in seen])
        self.assertIn("process", [identity for _, identity, _ in seen])
        self.assertEqual(seen[-1][0], "rect", seen)
        self.page.key("ArrowRight")
        second = self.focused()[2]
        self.assertTrue(second.startswith("Microbatch "), second)
        self.assertNotEqual(second, seen[-1][2])
        self.assertEqual(self.text("#timeline-detail"), second)
        self.page.key("Home")
        self.assertEqual(self.focused()[2], seen[-1][2])
        self.page.key("Tab")
        self.assertNotEqual(self.focused()[0], "rect", "the bars are one stop of the Tab key")
        self.page.evaluate("document.querySelector('#pause').focus()")
        self.page.key(" ")
        self.assertEqual(self.page.evaluate("document.querySelector('#pause').getAttribute('aria-pressed')"), "true")

    def network(self, offline):
        self.page.send("Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1)

    def test_server_that_ends_is_noticed(self):
        self.sample("prealloc", 0)
        self.open()
        self.page.until("document.querySelector('#timeline svg') !== null")
        self.network(offline=True)
        self.addCleanup(self.network, offline=False)
        self.page.until("document.querySelector('#status').textContent.includes('does not answer')")
        self.assertIn("Pooling would save".lower(), self.text("#jobs").lower())  # what is known stays

    def test_without_the_chart_library(self):
        self.sample("prealloc", 0)
        self.page.send("Network.setBlockedURLs", urls=["*/chart.js"])
        self.addCleanup(self.page.send, "Network.setBlockedURLs", urls=[])
        self.open()
        self.page.until("document.querySelector('#timeline svg') !== null")
        self.assertTrue(self.page.evaluate("document.querySelector('#history-section').hidden"))
