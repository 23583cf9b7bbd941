"""`recvpool report` on many files, on hostile ones, and on files that change while they are read."""

import json
import os
import pty
import random
import re
import socket
import subprocess
import threading
import time

import support
from support import PROGRAMS, RECVPOOL, clean_environment, run

MIB = 1 << 20


class MergeCase(support.TestCase):
    def setUp(self):
        super().setUp()
        os.makedirs(self.reports_dir)
        self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), self.folder, "0", "prealloc"]))
        with open(os.path.join(self.folder, "node_one-1000-900.json")) as file:
            self.text = file.read()
        self.model = json.loads(self.text)

    def path(self, name):
        return os.path.join(self.reports_dir, name)

    def put(self, name, **process):
        """A report of another process; `communicators` are ids."""
        report = json.loads(self.text)
        ids = process.pop("communicators", None)
        report.update(process.pop("report", {}))
        report["process"].update(process)
        if ids is not None:
            report["communicators"] = [dict(report["communicators"][0], communicator_id=id) for id in ids]
        with open(self.path(name), "w") as file:
            file.write(json.dumps(report))

    def report(self, *arguments):
        return run([RECVPOOL, "report", *arguments])

    def document(self, *arguments):
        result = self.report("--json", *arguments, self.reports_dir)
        self.assert_success(result)
        return json.loads(result.stdout)


class RunTest(MergeCase):
    """What has no communicator belongs to the job that the same run started."""

    def job_by_rank(self, *rows):
        """Jobs as sets of what rows are called; a row is (called, run, rank, communicators, start, last written or None)."""
        for name in os.listdir(self.reports_dir):
            os.unlink(self.path(name))
        for pid, (called, run, rank, ids, start, written) in enumerate(rows, 1):
            report = {"state": "finished" if written else "running", "written_unix_seconds": written or start,
                      "configuration": dict(self.model["configuration"], run=run)}
            self.put(f"{pid}.json", report=report, pid=pid, rank=rank, command=called, communicators=ids, start_unix_seconds=start)
        return sorted("".join(sorted(report["process"]["command"] for report in job["processes"])) for job in self.document()["jobs"])

    def test_a_rank_that_was_killed_early(self):
        rows = [("a", "r1", 0, ["0xa"], 10, None), ("b", "r1", 1, [], 10.5, None), ("c", "r1", 2, ["0xa"], 10.2, None),
                ("d", "r1", 3, [], 9, None), ("e", "r2", 1, [], 10.5, None), ("f", None, 1, [], 10.5, None)]
        for seed in range(3):
            random.Random(seed).shuffle(rows)
            self.assertEqual(self.job_by_rank(*rows), ["abcd", "e", "f"])

    def test_all_were_killed_early(self):
        self.assertEqual(self.job_by_rank(("a", "r1", 0, [], 10, None), ("b", "r1", 1, [], 11, None), ("c", "r2", 0, [], 10, None),
                                          ("d", None, 0, [], 10, None), ("e", None, 1, [], 10, None)), ["ab", "c", "de"])

    def test_one_run_on_two_machines(self):
        """Each has a word of its own for it."""
        self.assertEqual(self.job_by_rank(("a", "r1", 0, ["0xa"], 10, None), ("b", "r2", 1, ["0xa"], 10, None),
                                          ("c", "r2", 2, [], 10, None), ("d", "r1", 3, [], 10, None)), ["abcd"])

    def test_jobs_one_after_the_other_in_one_run(self):
        self.assertEqual(self.job_by_rank(("a", "r1", 0, ["0xa"], 10, 20), ("b", "r1", 1, [], 10, None), ("c", "r1", 0, ["0xb"], 30, 40),
                                          ("d", "r1", 1, ["0xb"], 30, 40)), ["ab", "cd"])
        self.assertEqual(self.job_by_rank(("a", "r1", None, ["0xa"], 10, 20), ("b", "r1", None, ["0xb"], 30, 40),
                                          ("c", "r1", None, [], 11, 19), ("d", "r1", None, [], 31, 35), ("e", "r1", None, [], 22, 25)),
                         ["ac", "bd", "e"])

    def test_ranks_that_were_started_anew(self):
        self.assertEqual(self.job_by_rank(("a", "r1", 0, ["0xa"], 10, None), ("b", "r1", 0, [], 12, None), ("c", "r1", 0, [], 14, None)),
                         ["a", "bc"])


class EndedTest(MergeCase):
    ENDED = "note: ended without a final report, as by a signal: "
    UNTIL = " from after 4 steps, at 2023-11-14 22:13:21Z; what "
    NOTE = r"(?m)^" + ENDED + r"(rank \d+ \()?node/one:-?\d+\)?; the last one is" + UNTIL + "it did later is not known$"

    def ended(self, **process):
        self.put("a.json", report={"state": "running"}, **process)
        (job,) = self.document()["jobs"]
        text = self.report(self.reports_dir).stdout
        self.assertEqual(re.search(self.NOTE, text) is not None, job["ended_processes"] > 0, text)
        self.assertEqual(job["processes"][0]["state"], "running")  # as it was written
        return job["ended_processes"]

    def test_what_is_told_of_a_process(self):
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        own = support.incarnation(process.pid)
        self.assertEqual(self.ended(**own), 0)
        self.assertEqual(self.ended(**dict(own, start_ticks=own["start_ticks"] - 1)), 1)  # the id has another process now
        for change in ({"start_ticks": None}, {"start_ticks": "x"}, {"start_ticks": 0}):
            self.assertEqual(self.ended(**dict(own, **change)), 0, change)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.assertEqual(self.ended(**own), 1)  # nobody has waited for it
        process.wait()
        self.assertEqual(self.ended(**own), 1)
        for change in ({"boot_id": "0" * 36}, {"boot_id": own["boot_id"] + "0"}, {"boot_id": ""}, {"boot_id": None}, {"boot_id": 1},
                       {"boot_id": "x" * 300}, {"pid_namespace": own["pid_namespace"] + 1}, {"pid_namespace": None}, {"pid": 0},
                       {"pid": -1}, {"pid": 2**40}, {"pid": None}):
            self.assertEqual(self.ended(**dict(own, **change)), 0, change)
        self.put("a.json", **own)  # it has finished
        self.assertEqual(self.document()["jobs"][0]["ended_processes"], 0)

    def test_how_far_the_numbers_go(self):
        gone = support.incarnation_of_ended()
        for steps, times, said in (((1, 1), (0, 0), "after 1 step, at 2023-11-14 22:13:20Z;"),
                                   ((7, 9), (0, 65), "after 7 to 9 steps, at 2023-11-14 22:13:20Z to 2023-11-14 22:14:25Z;"),
                                   ((0, 0), (-1e300, 1e300), "after 0 steps, at ?;")):
            for rank in range(2):
                written = times[rank] if abs(times[rank]) > 100 else 1700000000 + times[rank]
                self.put(f"{rank}.json", **gone, rank=rank, start_monotonic_ns=rank, report={
                    "state": "running", "written_unix_seconds": written, "totals": dict(self.model["totals"], steps_complete=steps[rank])})
            self.assertIn(f"the last ones are from {said}", self.report(self.reports_dir).stdout)

    def test_several_are_counted(self):
        gone = support.incarnation_of_ended()
        for rank in range(3):
            self.put(f"{rank}.json", report={"state": "running"}, rank=rank, start_monotonic_ns=rank, **gone)
        self.put("3.json", rank=3, start_monotonic_ns=3, **gone)
        where = f"(node/one:{gone['pid']})"
        text = self.report(self.reports_dir).stdout
        self.assertIn(f"{self.ENDED}rank 0 {where}, rank 1 {where}, rank 2 {where}; the last ones are{self.UNTIL}"
                      "they did later is not known (3 processes)\n", text)
        for rank in range(4, 11):
            self.put(f"{rank}.json", report={"state": "running"}, rank=rank, start_monotonic_ns=rank, **gone)
        self.assertIn(f"rank 8 {where} and 2 more; the last ones are", self.report(self.reports_dir).stdout)
        for rank in range(4, 11):
            os.unlink(os.path.join(self.reports_dir, f"{rank}.json"))
        self.assertEqual(self.document()["jobs"][0]["ended_processes"], 3)


class ManyTest(MergeCase):
    COUNT = 1000

    def ranks_by_job(self):
        return [[report["process"]["rank"] for report in job["processes"]] for job in self.document()["jobs"]]

    def test_jobs_are_those_of_a_straightforward_search(self):
        """Random communicators, against a search that walks from report to report."""
        generator = random.Random(5)
        for _ in range(12):
            count, ids = generator.randrange(1, 24), generator.randrange(1, 40)
            belongs = [sorted(generator.sample(range(ids), min(ids, generator.choice((0, 1, 1, 2, 3))))) for _ in range(count)]
            for name in os.listdir(self.reports_dir):
                os.unlink(self.path(name))
            starts = [generator.choice((10, 20, 30)) for _ in range(count)]
            for rank, own in enumerate(belongs):
                self.put(f"{generator.random()}.json", rank=rank, pid=rank + 1, start_unix_seconds=starts[rank],
                         communicators=[hex(id) for id in own])
            jobs, left = [], set(range(count))
            while left:
                reach, grown = set(), {min(left)}
                while grown:
                    reach |= grown
                    shared = {id for rank in reach for id in belongs[rank]}
                    grown = {rank for rank in left - reach if shared & set(belongs[rank])
                             or (not belongs[rank] and any(not belongs[other] for other in reach))}
                left -= reach
                jobs.append(sorted(reach))
            found = self.ranks_by_job()
            self.assertEqual(sorted(found), sorted(jobs))
            firsts = [min(starts[rank] for rank in job) for job in found]
            self.assertEqual(firsts, sorted(firsts))

    def test_one_long_chain(self):
        """Each report shares something with the next one only, and they come in the worst order."""
        for rank in range(self.COUNT):
            self.put(f"{rank:05}.json", rank=rank, pid=rank + 1, communicators=[hex(rank), hex(rank + 1)],
                     start_unix_seconds=self.COUNT - rank if rank % 2 else rank)
        self.assertEqual(self.ranks_by_job(), [list(range(self.COUNT))])

    def test_as_many_jobs_as_reports(self):
        for rank in range(self.COUNT):
            self.put(f"{rank:05}.json", rank=rank, pid=rank + 1, communicators=[hex(rank)])
        self.assertEqual(sorted(self.ranks_by_job()), [[rank] for rank in range(self.COUNT)])
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertIn(f"job {self.COUNT}: 1 process from ", result.stdout)

    def test_states_of_one_process(self):
        """All of one process but one: the latest state counts, wherever it comes."""
        for number in range(self.COUNT):
            written = 1700000000 + (number * 7919) % self.COUNT
            self.put(f"{number:05}.json", pid=1, report={"written_unix_seconds": written, "passive_reason": str(written)})
        self.put("other.json", pid=2, report={"passive_reason": "other"})
        (job,) = self.document()["jobs"]
        self.assertEqual(sorted(report["passive_reason"] for report in job["processes"]),
                         [str(1700000000 + self.COUNT - 1), "other"])

    def test_two_processes_of_one_rank_are_both_shown(self):
        self.put("a.json", rank=3, pid=1)
        self.put("b.json", rank=3, pid=2)
        self.assertEqual(self.ranks_by_job(), [[3, 3]])

    def peak_bytes(self, arguments):
        code = "import resource, subprocess, sys; s = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; " \
               "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(s)"
        result = run(["python3", "-c", code, RECVPOOL, "report", *arguments, self.reports_dir])
        self.assert_success(result)
        return int(result.stdout)

    def test_memory_is_a_digest_of_each(self):
        """A report more takes about a kilobyte, not what is in it."""
        if os.environ.get("E2E_SANITIZE"):
            self.skipTest("a sanitizer takes memory of its own")
        self.model["channels"][0]["lifetimes"] *= 16
        self.text = json.dumps(self.model)
        peaks, count = [], 300
        for part in range(2):
            for rank in range(part * count, (part + 1) * count):
                self.put(f"{rank:05}.json", rank=rank, pid=rank + 1)
            peaks.append(self.peak_bytes([]))
        self.assertLess((peaks[1] - peaks[0]) / count, 4096, peaks)


class ChangingTest(MergeCase):
    """More than what is kept in memory, so that the rest is read again when the document is written."""

    FILES = 74

    def test_what_is_read_again(self):
        text = "x" * MIB
        for rank in range(self.FILES):
            self.put(f"{rank:03}.json", rank=rank, pid=rank + 1, report={"padding": text})
        (job,) = self.document()["jobs"]
        self.assertEqual([report["process"]["rank"] for report in job["processes"]], list(range(self.FILES)))
        self.change_it_meanwhile()

    def change_it_meanwhile(self):
        """The document stands still as long as nobody reads it. Sums are those of the reports in it all the same."""
        process = subprocess.Popen([RECVPOOL, "report", "--json", self.reports_dir], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   bufsize=0, env=clean_environment())
        begun = process.stdout.read(1000)
        totals = dict(self.model["totals"], held_bytes=1)
        for rank in range(self.FILES):
            if rank % 4 == 0:
                os.unlink(self.path(f"{rank:03}.json"))
            elif rank % 4 == 1:
                self.put(f"{rank:03}.json", rank=rank, pid=rank + 1, report={"written_unix_seconds": 1800000000.5, "totals": totals})
            elif rank % 4 == 2:
                self.put(f"{rank:03}.json", rank=rank, pid=rank + 1001)
        rest, errors = process.communicate(timeout=support.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0)
        document = json.loads(begun + rest)
        (job,) = document["jobs"]
        for key in ("held_bytes", "needed_bytes", "would_save_bytes"):
            self.assertEqual(job["totals"][key], sum(report["totals"][key] for report in job["processes"]))
            self.assertEqual(document["totals"][key], job["totals"][key])
        reasons = sorted({entry["reason"] for entry in document["skipped"]})
        self.assertEqual(reasons, ["cannot be read: No such file or directory", "now the report of another process"])
        self.assertEqual(len(job["processes"]) + len(document["skipped"]), self.FILES)
        self.assertTrue(any(report["totals"]["held_bytes"] == 1 for report in job["processes"]))
        self.assertEqual(len(errors.splitlines()), len(document["skipped"]))

    def test_files_that_are_written_while_they_are_read(self):
        """Not as an agent writes them, but in place: whatever is seen of one, nothing else suffers."""
        self.put("good.json", pid=7)
        ends = threading.Event()

        def write():
            generator = random.Random(1)
            while not ends.is_set():
                path = self.path(f"moving-{generator.randrange(8)}.json")
                try:
                    with open(path, "w") as file:
                        file.write(self.text[: generator.randrange(len(self.text))])
                        file.flush()
                        file.write(self.text)
                    if generator.random() < 0.5:
                        os.unlink(path)
                except FileNotFoundError:
                    pass
                time.sleep(0)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(25):
                result = self.report(self.reports_dir)
                self.assert_success(result)
                self.assertIn("node/one:7", result.stdout)
                for line in result.stderr.splitlines():
                    self.assertRegex(line, r"skipping .*moving-\d\.json: (empty|not whole JSON|changed while it was read|"
                                           r"cannot be read: No such file)")
        finally:
            ends.set()
            writer.join()


class HostileTest(MergeCase):
    """Files that are refused, each with the reason it is refused for."""

    def write(self, data):
        def make(path):
            with open(path, "wb") as file:
                file.write(data if isinstance(data, bytes) else data.encode())
        return make

    def changed(self, **members):
        return self.write(json.dumps({**self.model, **members}))

    def hole(self, size):
        def make(path):
            with open(path, "wb") as file:
                file.truncate(size)
        return make

    def socket(self, path):
        end = socket.socket(socket.AF_UNIX)
        end.bind(path)
        end.close()

    def cases(self):
        good, half = self.text.encode(), len(self.text) // 2
        number = good.replace(b'"slack_slots": 2', b'"slack_slots": %s')
        assert number != good
        return {
            "huge": (self.hole(1 << 30), "too large: 1024 MiB, and a report has at most 64"),
            "a-little-too-large": (self.hole((64 << 20) + 1), "too large: 64 MiB"),
            "zeros": (self.hole(1 << 20), "not whole JSON: line 1"),
            "empty": (self.write(""), "empty"),
            "blank": (self.write(" \n"), "not whole JSON: line 2"),
            "pipe": (os.mkfifo, "not a regular file"),
            "socket": (self.socket, "not a regular file"),
            "folder": (os.mkdir, "not a regular file"),
            "loop": (lambda path: os.symlink(os.path.basename(path), path), "a symbolic link"),
            "link-to-good": (lambda path: os.symlink("good.json", path), "a symbolic link"),
            "link-to-device": (lambda path: os.symlink("/dev/zero", path), "a symbolic link"),
            "link-to-nowhere": (lambda path: os.symlink("/nowhere", path), "a symbolic link"),
            "torn": (self.write(good[:half]), "not whole JSON: line "),
            "torn-by-a-byte": (self.write(good.rstrip()[:-1]), "not whole JSON: line "),
            "two": (self.write(good + good), "not whole JSON: line "),
            "deep": (self.write("[" * 1000000), "not whole JSON: line 1: maximum parsing depth"),
            "deep-inside": (self.write(good.replace(b'"warnings": [', b'"warnings": [' + b"[" * 5000 + b"]" * 5000 + b",")),
                            "not whole JSON: line "),
            "many-values": (self.write(b'{"schema": [' + b"0," * (3 << 20) + b"0]}"), "too many values: a report has at most"),
            "many-objects": (self.write(b"[" + b"{}," * (2 << 20) + b"{}]"), "too many values: a report has at most"),
            "nan": (self.write(number % b"NaN"), "not whole JSON: line "),
            "infinity": (self.write(number % b"-Infinity"), "not whole JSON: line "),
            "too-large-a-number": (self.write(number % b"1e999"), "not whole JSON: line "),
            "too-large-an-integer": (self.write(number % b"99999999999999999999"), "not whole JSON: line "),
            "octal": (self.write(number % b"012"), "not whole JSON: line "),
            "no-utf8": (self.write(good.replace(b'"host": "', b'"host": "\xff\xfe')), "not whole JSON: line "),
            "surrogate": (self.write(good.replace(b'"host": "', b'"host": "\\ud800')), "not whole JSON: line "),
            "nul": (self.write(good.replace(b'"host": "', b'"host": "\\u0000')), "not whole JSON: line "),
            "byte-order-mark": (self.write(b"\xef\xbb\xbf" + good), "not whole JSON: line 1"),
            "twice-a-member": (self.write(good.replace(b'"schema":', b'"schema": "x", "schema":')), "not whole JSON: line "),
            "compressed": (self.write(b"\x1f\x8b\x08\0\0\0\0\0"), "not whole JSON: line 1"),
            "list": (self.write("[]"), "not a recvpool report"),
            "text": (self.write('"recvpool.report"'), "not "),
            "foreign": (self.write('{"schema": "prometheus"}'), "not a recvpool report"),
            "schema-of-another-kind": (self.changed(schema=["recvpool.report"]), "not a recvpool report"),
            "newer": (self.changed(schema_version="2.0"), "a report of another version; this recvpool reads 1."),
            "version-of-another-kind": (self.changed(schema_version=1.1), "a report of another version"),
            "no-process": (self.changed(process=None), "a report with parts missing"),
            "process-of-another-kind": (self.changed(process=[]), "a report with parts missing"),
            "channels-of-another-kind": (self.changed(channels={}), "a report with parts missing"),
            "totals-of-another-kind": (self.changed(totals=7), "a report with parts missing"),
            "</script><img src=x onerror=alert(1)>\n\x1b[2J": (self.write("{}"), "not a recvpool report"),
            **({} if os.getuid() == 0 else {"locked": (lambda path: os.close(os.open(path, os.O_CREAT, 0)), "cannot be read: Permission denied")}),
        }

    def make(self, name, make):
        """A folder with one good report and this file."""
        for other in os.listdir(self.reports_dir):
            path = self.path(other)
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        self.put("good.json", pid=7)
        make(self.path(name.replace("/", "\N{FRACTION SLASH}") + ".json"))

    def test_each_is_named_in_a_line_and_nothing_else_suffers(self):
        for name, (make, reason) in self.cases().items():
            with self.subTest(name):
                self.make(name, make)
                result = self.report(self.reports_dir)
                self.assert_success(result)
                self.assert_one_line(result.stderr)
                self.assertIn(f".json: {reason}", result.stderr)
                self.assertEqual([c for c in result.stderr if c < " " and c != "\n"], [])
                self.assertEqual(result.stdout.count("node/one:7 "), 2)
                self.assertNotIn("\x1b", result.stdout)
                document = self.document()
                self.assertEqual(len(document["jobs"]), 1)
                (skipped,) = document["skipped"]
                self.assertTrue(skipped["reason"].startswith(reason), skipped)

    def test_named_by_the_user(self):
        """What was asked for and cannot be had is a failure; links are followed then."""
        for name, (make, reason) in self.cases().items():
            if name == "folder":
                continue
            with self.subTest(name):
                self.make(name, make)
                path = self.path(name.replace("/", "\N{FRACTION SLASH}") + ".json")
                result = self.report(path, self.path("good.json"))
                self.assertEqual(result.returncode, 0 if name == "link-to-good" else 1)
                self.assertEqual(result.stdout.count("node/one:7 "), 2)
                self.assertEqual(len(result.stderr.splitlines()), 0 if name == "link-to-good" else 1)

    def test_serve_refuses_the_same(self):
        self.make("none", lambda path: None)
        for name, (make, _) in self.cases().items():
            make(self.path(name.replace("/", "\N{FRACTION SLASH}") + ".json"))
        said = {os.path.basename(entry["path"]): entry["reason"] for entry in self.document()["skipped"]}
        self.assertEqual(len(said), len(self.cases()))
        server = subprocess.Popen([RECVPOOL, "serve", "--listen", "127.0.0.1:0", "--report-dir", self.reports_dir, "--keep", str(2**31 - 1)],
                                  stdout=subprocess.PIPE, text=True, env=clean_environment())
        self.addCleanup(lambda: (server.terminate(), server.wait(20), server.stdout.close()))
        url = server.stdout.readline().split(" at ")[1].strip()
        import urllib.request
        deadline = time.monotonic() + support.TIMEOUT_SECONDS
        while True:
            with urllib.request.urlopen(url + "api/v1/processes", timeout=support.TIMEOUT_SECONDS) as answer:
                document = json.load(answer)
            if document["skipped"] or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        self.assertEqual({entry["name"]: entry["reason"] for entry in document["skipped"]}, said)
        self.assertEqual(len(document["processes"]), 1)

    def test_a_name_that_is_not_utf8(self):
        self.put("good.json", pid=7)
        with open(os.path.join(self.reports_dir.encode(), b"\xff\xfe.json"), "w"):
            pass
        result = self.report("--json", self.reports_dir)
        self.assert_success(result)
        self.assertEqual(json.loads(result.stdout)["skipped"], [{"path": "(name is not UTF-8)", "reason": "empty"}])

    def test_exit_status(self):
        self.put("good.json", pid=7)
        for arguments, status in (([self.reports_dir], 0), ([self.path("good.json")], 0), ([self.path("none.json")], 1),
                                  ([self.path("none.json"), self.path("good.json")], 1), (["--json", self.path("good.json"), "/nowhere"], 1),
                                  (["--json", self.reports_dir], 0), (["--no-such"], 2)):
            with self.subTest(arguments):
                self.assertEqual(self.report(*arguments).returncode, status)


class TerminalTest(MergeCase):
    """What a person at a terminal sees, and a pipe does not."""

    def on_terminal(self, *arguments, subcommand="report", **environment):
        """Output and exit status with stdout and stderr on one pseudo-terminal."""
        master, slave = pty.openpty()
        process = subprocess.Popen([RECVPOOL, subcommand, *arguments], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                                   env=clean_environment(**{"TERM": "xterm", "NO_COLOR": None, **environment}))
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # nobody has it open any more
                part = b""
            if not part:
                break
            seen += part
        os.close(master)
        return seen.decode(), process.wait(support.TIMEOUT_SECONDS)

    def test_colour(self):
        self.put("good.json", pid=7)
        bold = "\x1b[1m=> "
        for arguments, environment, wanted in (([], {}, True), (["--color=never"], {}, False), ([], {"NO_COLOR": "1"}, False),
                                               ([], {"NO_COLOR": ""}, True), ([], {"TERM": "dumb"}, False), (["--color=auto"], {}, True),
                                               (["--color"], {"NO_COLOR": "1"}, True), (["--color=always"], {"NO_COLOR": "1"}, True)):
            with self.subTest(arguments=arguments, environment=environment):
                seen, status = self.on_terminal(*arguments, self.reports_dir, **environment)
                self.assertEqual((bold in seen, status), (wanted, 0))
        self.assertNotIn("\x1b", self.report(self.reports_dir).stdout)
        self.assertIn(bold, self.report("--color=always", self.reports_dir).stdout)
        result = self.report("--color=sometimes", self.reports_dir)
        self.assertEqual(result.returncode, 2)
        self.assert_one_line(result.stderr)

    def test_violations_are_red(self):
        self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), self.reports_dir, "0", "violated"]))
        self.assertIn("\x1b[1;31m=> ", self.report("--color=always", self.reports_dir).stdout)

    def test_progress(self):
        for rank in range(400):
            self.put(f"{rank:03}.json", rank=rank, pid=rank + 1)
        seen, status = self.on_terminal(self.reports_dir)
        self.assertEqual(status, 0)
        self.assertIn("\r\x1b[K", seen)  # whatever was shown has been taken back
        self.assertLess(seen.index("\x1b[K"), seen.index("rank "))
        self.assertEqual(self.report(self.reports_dir).stderr, "")

    def test_progress_of_plan(self):
        """Only where it takes long."""
        if "  plan " not in run([RECVPOOL, "--help"]).stdout:
            self.skipTest("there is no recvpool plan")
        file = os.path.join(self.folder, "large.csv")
        with open(file, "w") as out:
            out.write("0F0,0B0" + " " * (5 << 20) + "\n")
        large = ["--schedule", "1f1b", "--stages", "64", "--microbatches", "4096", "--buffer-bytes", "1MiB"]
        for arguments, shown in ((large, "planning 524288 forward and backward passes"), (["--lowered", file], "planning a file of 5 MiB"),
                                 (["--schedule", "1f1b", "--stages", "64", "--microbatches", "4095"], None)):
            alone = run([RECVPOOL, "plan", *arguments])
            self.assertNotIn("planning", alone.stderr + alone.stdout)
            seen, status = self.on_terminal(*arguments, subcommand="plan")
            self.assertEqual(status, alone.returncode)
            if shown:
                self.assertTrue(seen.startswith("\r" + shown), seen[:200])
                _, rest = seen.split("\r\x1b[K", 1)
            self.assertEqual((rest if shown else seen).replace("\r\n", "\n"), alone.stderr + alone.stdout)
