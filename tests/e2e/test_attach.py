"""Observing the trainer from outside gives what the agent inside says, over all its schedules; at the same time."""

import contextlib
import glob
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time

import support
import trace_check
from attach_support import AttachCase, functions_of, reports_of, wait_until
from support import RECVPOOL, SOURCE, TRAINER

HOLDER = """
import mmap, sys
held = []
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
print("ready", flush=True)
sys.stdin.read()
"""
LIBRARIES = ("libcuda.so.1", "libcudart.so.13", "libnccl.so.2")
VARIANTS = [
    ["--schedule", "gpipe", "--stages", "4", "--microbatches", "6"],
    ["--schedule", "1f1b", "--stages", "4", "--microbatches", "8"],
    ["--schedule", "interleaved_1f1b", "--stages", "4", "--microbatches", "8"],
    ["--schedule", "looped_bfs", "--stages", "3", "--microbatches", "6"],
    ["--schedule", "1f1b", "--stages", "3", "--microbatches", "8", "--allocation", "just_in_time"],
    ["--schedule", "gpipe", "--stages", "3", "--microbatches", "4", "--allocation", "just_in_time"],
    ["--schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--recompute", "--backward-thread"],
    ["--schedule", "1f1b", "--stages", "2", "--microbatches", "8", "--driver-api", "--own-stream", "--probe"],
    ["--schedule", "1f1b", "--stages", "2", "--microbatches", "4", "--message-bytes", "1MiB"],
]
# Here stages are told by the weights that kernels name, and what is guessed of parameters is not good enough for that.
WITHOUT_STAGES = ["--schedule", "interleaved_1f1b", "--stages", "2", "--microbatches", "4", "--allocation",
                  "just_in_time"]
# What both must say of a channel.
NUMBERS = ("communicator", "communicator_id", "peer", "direction", "stage_ordinal", "buffer_bytes", "buffers", "depth",
           "depth_min", "depth_max", "slots", "transfers", "transferred_bytes", "steps_complete", "allocation_style",
           "held_bytes", "needed_bytes", "would_save_bytes", "unreachable_bytes", "estimate")
SEEN_BY_BOTH = ("alloc", "free", "recv", "send", "group_start", "group_end", "comm_init", "comm_destroy")


def key(channel):
    return channel["direction"], channel["peer"] if channel["peer"] is not None else -1, channel["stage_ordinal"]


def posts(report):
    """Addresses of the receives of the last complete steps, in the order of posting."""
    lifetimes = [lifetime for channel in report["channels"] for lifetime in channel["lifetimes"]]
    return [lifetime["address"] for lifetime in sorted(lifetimes, key=lambda entry: entry["posted_sequence"])]


def families(report):
    """Receives in a step, and in all, by peer and size."""
    sums = {}
    for channel in report["channels"]:
        family = sums.setdefault((channel["peer"], channel["buffer_bytes"]), [0, 0])
        family[0] += channel["buffers"]
        family[1] += channel["transfers"]
    return sums


class TrainerCase(AttachCase):
    def hold_libraries(self):
        """A process that has mapped the libraries, so that they are probed before the first call of a job."""
        paths = [os.path.join(support.SIMLIB, name) for name in LIBRARIES]
        return self.program(command=[sys.executable, "-c", HOLDER, *paths])

    def both(self, options, *arguments, steps=4, slack="2"):
        """Reports of the agent and of the observer over one run, by process id, and the observer's document."""
        holder = self.hold_libraries()
        command = [RECVPOOL, "run", "--report-dir", self.reports_dir, "--min-bytes", "1", "--slack", slack, "--", TRAINER,
                   "--steps", str(steps), *options]
        job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *command], env=support.simulated(),
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        observer = self.observer("--pid", f"{job.pid},{holder.pid}", "--slack", slack, *arguments)
        _, errors = job.communicate("go\n", timeout=support.TIMEOUT_SECONDS)
        self.assertEqual((job.returncode, errors), (0, ""))
        document = observer.stop()
        self.check_document(document)
        inside = {report["process"]["pid"]: report for report in self.read_reports()}
        outside = reports_of(document)
        self.assertEqual(set(outside), set(inside))
        for report in outside.values():
            self.assertEqual((report["state"], report["warnings"]), ("finished", []))
            self.assertEqual([entry["name"] for entry in report["evidence"]], ["uprobes"])
        self.assertEqual(set(document["observer"]["dropped_by_cpu"]), {0})
        return inside, outside, document

    def check_calls(self, inside, outside):
        """What needs no access evidence: counts, ranks, communicators."""
        for pid, report in outside.items():
            theirs = inside[pid]
            for kind in SEEN_BY_BOTH:
                self.assertEqual(report["events"]["by_kind"][kind], theirs["events"]["by_kind"][kind], kind)
            for name in ("rank", "world_size", "local_rank", "rank_source", "command", "host"):
                self.assertEqual(report["process"][name], theirs["process"][name], name)
            self.assertEqual(report["communicators"], theirs["communicators"])

    def check_transfers(self, inside, outside):
        """Sizes and peers of the receives of a step, and the order of posting."""
        for pid, report in outside.items():
            theirs = inside[pid]
            self.assertEqual(families(report), families(theirs))
            self.assertEqual(posts(report), posts(theirs))


# How many parameters a kernel has is guessed from what lies on the stack, where a sanitizer leaves more than others do.
SANITIZED = bool(os.environ.get("E2E_SANITIZE"))


class EqualityTest(TrainerCase):
    def check_variant(self, options):
        if SANITIZED:
            inside, outside, _ = self.both(options)
            self.check_calls(inside, outside)
            return
        inside, outside, _ = self.both(options, "--launches")
        self.check_calls(inside, outside)
        self.check_transfers(inside, outside)
        for pid, report in outside.items():
            mine, theirs = ({key(c): c for c in r["channels"]} for r in (report, inside[pid]))
            self.assertEqual(sorted(mine), sorted(theirs))
            for name, channel in mine.items():
                self.assertEqual({n: channel[n] for n in NUMBERS}, {n: theirs[name][n] for n in NUMBERS}, name)
                self.assertEqual(channel["decision"], theirs[name]["decision"], name)
                kinds, expected = ([l["last_access_kind"] for l in c["lifetimes"]] for c in (channel, theirs[name]))
                self.assertEqual(kinds, expected)

    def test_order_of_posting_is_compared(self):
        """The comparison can fail."""
        report = {"channels": [{"lifetimes": [{"address": "0x1", "posted_sequence": 5},
                                              {"address": "0x2", "posted_sequence": 4}]}]}
        self.assertEqual(posts(report), ["0x2", "0x1"])


class EstimateTest(TrainerCase):
    """Without launches: release is known from answering sends."""

    def estimates(self, options, **more):
        inside, outside, _ = self.both(options, **more)
        self.check_transfers(inside, outside)
        for pid, report in outside.items():
            for channel in report["channels"]:
                theirs = {key(c): c for c in inside[pid]["channels"]}[key(channel)]
                yield report, channel, theirs

    def check_depths(self, options, **more):
        """Every channel is an estimate, and right, but for the first stage's, which sends no answer."""
        for report, channel, theirs in self.estimates(options, **more):
            self.assertTrue(channel["estimate"])
            self.assertEqual(channel["buffers"], theirs["buffers"])
            if channel["direction"] == "gradient" and report["process"]["rank"] == 0:
                self.assertEqual(channel["decision"]["reason"], "no_access_evidence")
                continue
            self.assertEqual((channel["depth_min"], channel["depth_max"], channel["decision"]),
                             (theirs["depth_min"], theirs["depth_max"], theirs["decision"]))
            self.assertEqual({l["release_evidence"] for l in channel["lifetimes"]}, {"answering_send"})

    def test_1f1b(self):
        self.check_depths(["--schedule", "1f1b", "--stages", "4", "--microbatches", "12"])

    def test_gpipe(self):
        self.check_depths(["--schedule", "gpipe", "--stages", "3", "--microbatches", "5"])

    def test_other_schedules_have_the_same_transfers(self):
        for options in (VARIANTS[2], VARIANTS[3], VARIANTS[5], WITHOUT_STAGES):
            with self.subTest(options):
                inside, outside, _ = self.both(options)
                for pid, report in outside.items():
                    self.assertEqual(report["events"]["by_kind"]["recv"], inside[pid]["events"]["by_kind"]["recv"])
                    self.assertEqual(posts(report)[-1:], posts(inside[pid])[-1:])
                self.reports_dir += "x"


class RunningCase(TrainerCase):
    """With a job that is in the middle of its run."""

    def start_job(self, options):
        """A job that goes on for long, and the file that it says its steps in."""
        said = os.path.join(self.folder, "said")
        with open(said, "w") as out:
            return subprocess.Popen([TRAINER, "--steps", "100000", *options], env=support.simulated(), stdout=out,
                                    stderr=subprocess.DEVNULL), said

    def steps(self, said):
        with open(said) as file:
            return file.read().count("step ")

    def wait_for_steps(self, said, more):
        """Until the job has done `more` steps than now."""
        before = self.steps(said)
        wait_until(lambda: self.steps(said) >= before + more, "the job to train", support.TIMEOUT_SECONDS)


class MiddleTest(RunningCase):
    """Attaching in the middle of a run, to the launcher of the ranks."""

    def observe_middle(self, options, *arguments):
        inside, _, _ = self.both(options)
        by_rank = {report["process"]["rank"]: report for report in inside.values()}
        job, said = self.start_job(options)
        try:
            self.wait_for_steps(said, 20)
            observer = self.observer("--pid", str(job.pid), *arguments)
            self.wait_for_steps(said, 20)
            document = observer.stop()
        finally:
            job.terminate()
            job.wait(timeout=support.TIMEOUT_SECONDS)
        self.check_document(document)
        reports = reports_of(document)
        self.assertEqual(len(reports), len(by_rank))
        for report in reports.values():
            self.assertEqual(report["state"], "running")
            self.assertTrue(any("ran before it was observed" in text for text in report["warnings"]))
            yield report, by_rank[report["process"]["rank"]]

    def check(self, options, *arguments, skip=()):
        for report, theirs in self.observe_middle(options, *arguments):
            mine, its = ({key(c): c for c in r["channels"]} for r in (report, theirs))
            self.assertEqual(sorted(mine), sorted(its))
            for name, channel in mine.items():
                self.assertGreater(channel["steps_complete"], 3)
                self.assertEqual((channel["buffers"], channel["buffer_bytes"]),
                                 (its[name]["buffers"], its[name]["buffer_bytes"]))
                if (report["process"]["rank"], name[0]) not in skip:
                    self.assertEqual(channel["depth"], its[name]["depth"], (report["process"]["rank"], name))

    def test_1f1b(self):
        self.check(["--stages", "4", "--microbatches", "8", "--message-bytes", "64KiB"], skip=[(0, "gradient")])

    def test_1f1b_with_launches(self):
        self.check(["--stages", "3", "--microbatches", "8", "--message-bytes", "64KiB"], "--launches")

    def test_gpipe(self):
        self.check(["--schedule", "gpipe", "--stages", "3", "--microbatches", "6"], skip=[(0, "gradient")])


class OutputTest(RunningCase):
    def lines_and_table(self, pid, said, lines, steps):
        """What is said of a job in a pipe, until after that many lines and steps of it."""
        path = os.path.join(self.folder, "said by attach")
        with open(path, "w") as out:
            observer = subprocess.Popen([RECVPOOL, "attach", "--pid", str(pid), "--interval", "100ms", "--min-bytes", "1"],
                                        stdout=out, stderr=subprocess.DEVNULL, env=support.clean_environment())
        try:
            with open(path) as file:
                wait_until(lambda: file.seek(0) == 0 and file.read().count(" sends") >= lines, "lines of the observer")
            self.wait_for_steps(said, steps)
        finally:
            observer.send_signal(signal.SIGINT)
            self.assertEqual(observer.wait(timeout=support.TIMEOUT_SECONDS), 0)
        with open(path) as file:
            return file.read()

    def test_lines_in_a_pipe_then_the_table(self):
        job, said = self.start_job(["--stages", "2", "--message-bytes", "64KiB"])
        try:
            self.wait_for_steps(said, 1)
            text = self.lines_and_table(job.pid, said, 8, 20)
        finally:
            job.terminate()
            job.wait(timeout=support.TIMEOUT_SECONDS)
        lines = re.findall(r"(?m)^ +\d+\.\d s  rank ([01])  process \d+  \d+ receives \([\d.]+ \w+\), \d+ sends", text)
        self.assertGreaterEqual(len(lines), 6)  # the table has such words too
        self.assertEqual(set(lines), {"0", "1"})
        self.assertIn("\n=> pooling would save about ", text)
        self.assertIn("release is known from answering sends only", text)
        self.assertNotIn("\x1b", text)

    def test_the_table_of_a_terminal(self):
        """One in place of the one before, and the last stays."""
        job, said = self.start_job(["--stages", "2", "--message-bytes", "64KiB"])
        own, its = pty.openpty()
        self.addCleanup(os.close, own)
        try:
            self.wait_for_steps(said, 1)
            observer = subprocess.Popen([RECVPOOL, "attach", "--pid", str(job.pid), "--interval", "100ms"], stdout=its,
                                        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=support.clean_environment())
            os.close(its)
            text, end = "", time.monotonic() + support.TIMEOUT_SECONDS
            while text.count("\x1b[H\x1b[2J") < 3 or "activation" not in text.split("\x1b[H\x1b[2J")[-2]:
                self.assertLess(time.monotonic(), end, text[-2000:])
                text += os.read(own, 65536).decode()
            observer.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # nobody is left who could write
                while more := os.read(own, 65536).decode():
                    text += more
            self.assertEqual(observer.wait(timeout=support.TIMEOUT_SECONDS), 0)
        finally:
            job.terminate()
            job.wait(timeout=support.TIMEOUT_SECONDS)
        tables = text.split("\x1b[H\x1b[2J")
        self.assertEqual(tables[0], "")
        for table in tables[1:]:
            self.assertRegex(table, r"^observing for \d+ s with \d+ probes; Ctrl-C ends it\r\n")
        rows = re.findall(r"(?m)^([01]) +\S+ +(activation|gradient) ", tables[-2])
        self.assertEqual(rows, [("0", "gradient"), ("1", "activation")])
        self.assertNotIn(" receives (", text)  # the lines of a pipe

    def test_trace(self):
        path = os.path.join(self.folder, "trace.json")
        holder = self.hold_libraries()
        job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", TRAINER, "--stages", "2", "--microbatches", "6",
                                "--steps", "3"], env=support.simulated(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               text=True)
        observer = self.observer("--pid", f"{job.pid},{holder.pid}", "--trace", path)
        self.assertFalse(os.path.exists(path))  # whole or not there
        job.communicate("go\n", timeout=support.TIMEOUT_SECONDS)
        reports = reports_of(observer.stop())
        with open(path) as file:
            found = trace_check.check(json.load(file))
        self.assertEqual(len(found), 2 * 6)
        self.assertEqual(len(found), sum(len(c["lifetimes"]) for r in reports.values() for c in r["channels"]))
        self.assertEqual(os.listdir(self.folder).count("trace.json"), 1)

    def test_that_files_were_written_is_said(self):
        """Also that nothing is in them; where stdout is a document, on stderr."""
        trace = os.path.join(self.folder, "trace.json")
        holder = self.hold_libraries()
        for arguments, steps, words in (
                ([], 3, (f"Trace written to {trace}", f"Reports written to {self.reports_dir}: 2")),
                (["--json"], 3, (f"Trace written to {trace}", f"Reports written to {self.reports_dir}: 2")),
                ([], 0, (f"Trace written to {trace}, without anything in it: no step was seen from its beginning to its end",
                         f"No report written to {self.reports_dir}: no process posted a receive or a send"))):
            with self.subTest(arguments=arguments, steps=steps):
                command = [TRAINER, "--stages", "2", "--steps", str(steps)] if steps else ["true"]
                job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *command], env=support.simulated(),
                                       stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
                observer = self.observer("--pid", f"{job.pid},{holder.pid}", "--trace", trace, "--report-dir",
                                         self.reports_dir, *arguments, report=False)
                job.communicate("go\n", timeout=support.TIMEOUT_SECONDS)
                out = observer.stop()
                said, other = (observer.errors, out) if arguments else (out, observer.errors)
                for text in words:
                    self.assertRegex(said, rf"(?m)(^|: ){re.escape(text)}\.?$")
                    self.assertNotIn(text, other)
                with open(trace) as file:
                    self.assertEqual(len(trace_check.check(json.load(file))) > 0, steps > 0)

    def test_trace_that_cannot_be_written(self):
        job = subprocess.Popen(["sleep", "100"])
        try:
            result = support.run([RECVPOOL, "attach", "--pid", str(job.pid), "--trace", "/nowhere/trace.json"])
        finally:
            job.terminate()
            job.wait(timeout=support.TIMEOUT_SECONDS)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assert_one_line(result.stderr)
        self.assertIn("cannot write /nowhere/trace.json: No such file or directory", result.stderr)

    def test_report_folder(self):
        holder = self.hold_libraries()
        job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", TRAINER, "--stages", "2", "--steps", "3"],
                               env=support.simulated(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        observer = self.observer("--pid", f"{job.pid},{holder.pid}", "--report-dir", self.reports_dir)
        job.communicate("go\n", timeout=support.TIMEOUT_SECONDS)
        document = observer.stop()
        files = {report["process"]["pid"]: report for report in self.read_reports()}
        self.assertEqual(set(files), set(reports_of(document)))
        self.assertEqual({report["state"] for report in files.values()}, {"finished"})
        shown = support.run([RECVPOOL, "report", self.reports_dir])
        self.assert_success(shown)
        self.assertIn("limited evidence from uprobes", shown.stdout)


class OneFolderTest(RunningCase):
    """The agent and attach write into one folder: each process counts once."""

    SECOND = "written by attach from outside: the agent's own report of the process counts"

    def test_each_process_counts_once(self):
        holder = self.hold_libraries()
        command = [RECVPOOL, "run", "--report-dir", self.reports_dir, "--min-bytes", "1", "--", TRAINER, "--stages", "2",
                   "--steps", "4"]
        job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *command], env=support.simulated(),
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        observer = self.observer("--pid", f"{job.pid},{holder.pid}", "--report-dir", self.reports_dir)
        job.communicate("go\n", timeout=support.TIMEOUT_SECONDS)
        observer.stop()
        files = self.read_reports()
        outside = [r for r in files if [e["name"] for e in r["evidence"]] == ["uprobes"]]
        self.assertEqual((len(files), len(outside)), (4, 2))
        shown = support.run([RECVPOOL, "report", "--json", self.reports_dir])
        self.assertEqual((shown.returncode, shown.stderr), (0, ""))
        document = json.loads(shown.stdout)
        self.check_document(document)
        counted, = document["jobs"]
        self.assertEqual([r["evidence"][0]["name"] for r in counted["processes"]], ["interposer"] * 2)
        self.assertEqual(counted["totals"]["held_bytes"], sum(r["totals"]["held_bytes"] for r in counted["processes"]))
        self.assertEqual([entry["reason"] for entry in document["skipped"]], [self.SECOND] * 2)
        text = support.run([RECVPOOL, "report", self.reports_dir]).stdout
        self.assertIn("note: attach has written a report of the process, too, which is left out: the agent's own counts "
                      "(2 processes)\n", text)

    def reports_of_one(self, **changes):
        """What an agent and attach say of one process, and how the folder is counted."""
        self.sample("plain", 0)
        self.sample("plain", 0, folder=os.path.join(self.folder, "second"))
        who = {"boot_id": "b", "start_ticks": 5, "pid_namespace": 1, "pid": 7, "rank": 0, "command": "train"}
        for folder, own in ((self.reports_dir, who), (os.path.join(self.folder, "second"), {**who, **changes})):
            for path in glob.glob(os.path.join(folder, "*.json")):
                with open(path) as file:
                    report = json.load(file)
                report["process"].update(own)
                if folder != self.reports_dir:
                    report["process"]["start_monotonic_ns"] += 1
                    report["evidence"] = [{"name": "uprobes", "active": True, "reason": None}]
                with open(path, "w") as file:
                    json.dump(report, file)
        document = json.loads(support.run([RECVPOOL, "report", "--json", self.reports_dir,
                                           os.path.join(self.folder, "second")]).stdout)
        shutil.rmtree(self.reports_dir)
        shutil.rmtree(os.path.join(self.folder, "second"))
        return sum(len(job["processes"]) for job in document["jobs"])

    def test_who_is_who(self):
        for changes, count in (({}, 1), ({"pid": 8}, 2), ({"start_ticks": 6}, 2), ({"boot_id": "c"}, 2),
                               ({"boot_id": None}, 2), ({"pid": 8, "pid_namespace": 2}, 1),
                               ({"pid": 8, "pid_namespace": 2, "rank": 1}, 2),
                               ({"pid": 8, "pid_namespace": 2, "rank": None}, 2),
                               ({"pid": 8, "pid_namespace": 2, "command": "other"}, 2)):
            with self.subTest(changes):
                self.assertEqual(self.reports_of_one(**changes), count)


def add_tests():
    for index, options in enumerate(VARIANTS):
        name = "_".join(word.strip("-") for word in options)
        setattr(EqualityTest, f"test_{index}_{name}", lambda self, options=options: self.check_variant(options))
    for path in sorted(glob.glob(os.path.join(SOURCE, "tests/torch/data/torch-2.11/*.lowered.csv"))):
        name = os.path.basename(path).split(".")[0].replace("-", "_")
        options = ["--schedule", path, "--stages", name.split("_p")[1].split("_")[0]]
        setattr(EqualityTest, f"test_{name}", lambda self, options=options: self.check_variant(options))


add_tests()
