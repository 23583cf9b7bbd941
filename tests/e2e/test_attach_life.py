"""Processes that come and go while they are observed, several observers, and that nothing is left behind."""

import json
import os
import shutil
import signal
import subprocess
import time

import support
from attach_support import (MOCK, PROGRAM, AttachCase, Program, functions_of, links_and_maps, reports_of, wait_until)
from support import RECVPOOL

RECV = ("ncclRecv", 0x7F1000000000, 100, 7, 1, 0xC0FFEE, 0)
TEXT = " ".join(map(str, RECV))


def kinds(report):
    return report["events"]["by_kind"]


class LifeTest(AttachCase):
    def mock_program(self):
        program = self.program()
        program.open(MOCK)
        return program

    def test_exit(self):
        program = self.mock_program()
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        program.close()
        report = self.only_report(observer.finish(), program.pid)  # it ends by itself
        self.assertEqual((report["state"], kinds(report)["recv"]), ("finished", 1))

    def test_killed(self):
        program = self.mock_program()
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        program.process.kill()
        report = self.only_report(observer.finish(), program.pid)
        self.assertEqual((report["state"], kinds(report)["recv"]), ("finished", 1))

    def test_running_on(self):
        program = self.mock_program()
        observer = self.observer("--pid", str(program.pid), "--duration", "300ms")
        program.call(*RECV)
        report = self.only_report(observer.finish(), program.pid)
        self.assertEqual(report["state"], "running")
        program.call(*RECV)  # it does

    def test_fork(self):
        program = self.mock_program()
        observer = self.observer("--pid", str(program.pid))
        program.do("call " + TEXT)
        for _ in range(3):
            self.assertEqual(program.do("fork repeat 7 " + TEXT).split()[0][:1].isdigit(), True)
        document = observer.stop()
        self.check_document(document)
        reports = reports_of(document)
        self.assertEqual(len(reports), 4)
        own = reports.pop(program.pid)
        self.assertEqual((own["state"], kinds(own)["recv"]), ("running", 1))
        self.assertEqual([(r["state"], kinds(r)["recv"]) for r in reports.values()], [("finished", 7)] * 3)

    def test_grandchildren(self):
        program = self.mock_program()
        observer = self.observer("--pid", str(program.pid))
        program.do("fork fork fork call " + TEXT)
        self.assertEqual([kinds(r)["recv"] for r in reports_of(observer.stop()).values()], [1])

    def test_exec(self):
        """The program that a process becomes is another one, with a report of its own."""
        program = self.mock_program()
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        self.assertEqual(program.do("exec"), "ready")
        program.open(MOCK)
        for _ in range(4):
            program.call(*RECV)
        document = observer.stop()
        found = [r for job in document["jobs"] for r in job["processes"]]
        self.assertEqual(sorted((r["process"]["pid"], r["state"], kinds(r)["recv"]) for r in found),
                         [(program.pid, "finished", 1), (program.pid, "running", 4)])

    def test_other_processes_are_not_counted(self):
        program, other = self.mock_program(), self.mock_program()
        observer = self.observer("--pid", str(program.pid))
        program.do("threads 2 50 " + TEXT)
        other.do("threads 2 50 " + TEXT)
        document = observer.stop()
        report = self.only_report(document, program.pid)
        self.assertEqual((kinds(report)["recv"], functions_of(document)["ncclRecv"]["calls"]), (100, 100))

    def test_two_observers_at_once(self):
        program = self.mock_program()
        first = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        second = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        self.assertEqual(kinds(self.only_report(first.stop(), program.pid))["recv"], 2)
        program.call(*RECV)
        self.assertEqual(kinds(self.only_report(second.stop(), program.pid))["recv"], 2)

    def test_by_name(self):
        """Also processes that start later; and no others."""
        path = os.path.join(self.folder, "rp_odd name")
        shutil.copy(PROGRAM, path)
        first, other = self.program(path), self.mock_program()
        first.open(MOCK)
        observer = self.observer("--comm", "rp_odd name")
        first.call(*RECV)
        second = self.program(path)
        second.open(MOCK)
        second.call(*RECV)
        second.call(*RECV)
        other.call(*RECV)
        reports = reports_of(observer.stop())
        self.assertEqual({pid: kinds(r)["recv"] for pid, r in reports.items()}, {first.pid: 1, second.pid: 2})

    def test_all(self):
        running = self.mock_program()
        observer = self.observer("--all")
        later = self.program()
        later.open(MOCK)
        running.call(*RECV)
        later.do("repeat 3 " + TEXT)
        later.do("fork repeat 137 " + TEXT)  # a number that no other process has
        reports = reports_of(observer.stop())
        self.assertEqual((kinds(reports[running.pid])["recv"], kinds(reports[later.pid])["recv"]), (1, 3))
        forked = [r for r in reports.values() if kinds(r)["recv"] == 137]
        self.assertEqual([[text for text in r["warnings"] if "ran before" in text] for r in forked], [[]])

    def test_by_cgroup(self):
        with open("/proc/mounts") as file:
            mounts = [line.split() for line in file]
        roots = [fields[1] for fields in mounts if fields[2] == "cgroup2"]
        if not roots:
            self.skipTest("there is no cgroup2 hierarchy")
        group = os.path.join(roots[0], f"recvpool-test-{os.getpid()}")
        below = os.path.join(group, "below")
        os.makedirs(below)
        self.addCleanup(os.rmdir, group)
        self.addCleanup(os.rmdir, below)
        inside, deeper, outside = (self.mock_program() for _ in range(3))
        for program, folder in ((inside, group), (deeper, below)):
            with open(os.path.join(folder, "cgroup.procs"), "w") as file:
                file.write(str(program.pid))
        observer = self.observer("--cgroup", group)
        for program in (inside, deeper, outside):
            program.call(*RECV)
        for program in (inside, deeper, outside):
            program.call(*RECV)
        reports = reports_of(observer.stop())
        for program in (inside, deeper):
            self.assertGreaterEqual(kinds(reports[program.pid])["recv"], 1)
        self.assertNotIn(outside.pid, reports)
        for program in (inside, deeper):
            program.close()

    def test_fifty_processes(self):
        programs = [self.mock_program() for _ in range(50)]
        observer = self.observer("--pid", ",".join(str(program.pid) for program in programs))
        for number, program in enumerate(programs):
            program.do(f"repeat {number + 1} " + TEXT)
        document = observer.stop()
        self.check_document(document)
        self.assertEqual({pid: kinds(r)["recv"] for pid, r in reports_of(document).items()},
                         {program.pid: number + 1 for number, program in enumerate(programs)})

    def test_process_ids_that_are_used_again(self):
        last = "/proc/sys/kernel/ns_last_pid"
        if not os.path.exists(last):
            self.skipTest("the kernel has no " + last)
        holder = self.mock_program()
        observer = self.observer("--all")
        seen = []
        for attempt in range(20):
            program = Program()
            program.open(MOCK)
            program.do(f"repeat {len(seen) + 1} " + TEXT)
            program.close()
            if not seen or program.pid == seen[0]:
                seen.append(program.pid)
            if len(seen) == 3:
                break
            with open(last, "w") as file:
                file.write(str(seen[0] - 1))
        else:
            self.skipTest("other processes took the id each time")
        document = observer.stop()
        reports = [r for job in document["jobs"] for r in job["processes"] if r["process"]["pid"] == seen[0]]
        self.assertEqual(sorted(kinds(r)["recv"] for r in reports), [1, 2, 3])
        holder.close()

    def test_short_lived_processes_leave_nothing(self):
        """Hundreds of processes that do nothing of interest are not kept."""
        shell = subprocess.Popen(["sh", "-c", "read line; for i in $(seq 300); do /bin/true; done; sleep 0.3"],
                                 stdin=subprocess.PIPE)
        observer = self.observer("--pid", str(shell.pid))
        shell.communicate(b"go\n", timeout=support.TIMEOUT_SECONDS)
        document = observer.finish()
        self.assertEqual(list(reports_of(document)), [shell.pid])
        self.assertEqual(document["observer"]["processes_forgotten"], 0)


class NothingLeftTest(AttachCase):
    def setUp(self):
        super().setUp()
        if links_and_maps() is None:
            self.skipTest("bpftool is needed to count")

    def baseline(self):
        """The kernel frees what the tests before have left in its own time."""
        counts, since = links_and_maps(), time.monotonic()
        while time.monotonic() - since < 2:
            time.sleep(0.1)
            if links_and_maps() != counts:
                counts, since = links_and_maps(), time.monotonic()
        return counts

    def settled(self, expected):
        wait_until(lambda: all(map(int.__le__, links_and_maps(), expected)), f"{expected}, there are {links_and_maps()}")

    def test_a_hundred_times(self):
        program = self.program()
        program.open(MOCK)
        before, own = self.baseline(), len(os.listdir(f"/proc/{program.pid}/fd"))
        for round_ in range(100):
            observer = self.observer("--pid", str(program.pid))
            program.call(*RECV)
            self.assertEqual(kinds(self.only_report(observer.stop(), program.pid))["recv"], 1)
        self.settled(before)
        self.assertEqual(len(os.listdir(f"/proc/{program.pid}/fd")), own)
        program.call(*RECV)

    def test_every_way_to_end(self):
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_DFL))  # also under nohup
        program = self.program()
        program.open(MOCK)
        with open(MOCK, "rb") as file:
            code = file.read()
        before = self.baseline()
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            observer = self.observer("--pid", str(program.pid))
            self.assertNotEqual(links_and_maps(), before)
            program.call(*RECV)
            observer.process.send_signal(ending)
            out, _ = observer.process.communicate(timeout=support.TIMEOUT_SECONDS)
            self.assertEqual(observer.process.returncode, 0 if ending != signal.SIGKILL else -signal.SIGKILL)
            if ending != signal.SIGKILL:
                self.assertEqual(kinds(reports_of(json.loads(out))[program.pid])["recv"], 1)
            self.settled(before)
            program.call(*RECV)
        with open(MOCK, "rb") as file:
            self.assertEqual(file.read(), code)

    def test_probes_are_taken_out_of_memory(self):
        """The code of the observed process is what it was: no breakpoint is left in it."""
        program = self.program()
        program.open(MOCK)

        def text():
            with open(f"/proc/{program.pid}/maps") as maps:
                line = next(line for line in maps if "libattach_mock.so" in line and " r-xp " in line)
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            with open(f"/proc/{program.pid}/mem", "rb") as memory:
                memory.seek(begin)
                return memory.read(end - begin)
        before = text()
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        self.assertNotEqual(text(), before)
        observer.stop()
        self.assertEqual(text(), before)

    def test_nothing_is_pinned(self):
        if not os.path.ismount("/sys/fs/bpf"):
            self.skipTest("there is no bpf file system")
        before = sorted(os.walk("/sys/fs/bpf"))
        program = self.program()
        program.open(MOCK)
        observer = self.observer("--pid", str(program.pid))
        self.assertEqual(sorted(os.walk("/sys/fs/bpf")), before)
        observer.stop()


class SeccompTest(AttachCase):
    def test_a_filtered_program_survives(self):
        program = self.program()
        program.open(MOCK)
        self.assertEqual(program.do("allow"), "ok")
        observer = self.observer("--pid", str(program.pid))
        program.do("repeat 100 cudaMalloc & 4096")
        program.do("repeat 100 " + TEXT)
        document = observer.stop()
        report = self.only_report(document, program.pid)
        self.assertEqual(kinds(report)["recv"], 100)
        if not any("only entries are probed" in text for text in report["warnings"]):  # kernels 6.11 to 6.13
            self.assertEqual(kinds(report)["alloc"], 100)


class UsageTest(support.TestCase):
    """Wrong usage is one line, with status 2, whoever asks."""

    def setUp(self):
        super().setUp()
        if not os.path.exists(os.path.join(support.BUILD, "bpf", "recvpool.skel.h")):
            self.skipTest("recvpool was built without attach")

    def test_wrong_options(self):
        for arguments, words in (
                ([], "say which processes"), (["--pid", "1", "--all"], "only one of"), (["--pid", "0"], "--pid must be"),
                (["--pid", "1,x"], "--pid must be"), (["--pid", ""], "--pid must be"),
                (["--pid", "99999999999"], "--pid must be"), (["--comm", ""], "--comm must be"),
                (["--comm", "a" * 16], "--comm must be"), (["--all", "--duration", "0"], "--duration must be"),
                (["--all", "--duration", "5x"], "--duration must be"), (["--all", "--duration", "nan"], "--duration must be"),
                (["--all", "--duration", "-1s"], "--duration must be"), (["--all", "--buffer", "1"], "--buffer must be"),
                (["--all", "--buffer", "2GiB"], "--buffer must be"), (["--all", "--links", "x"], "--links must be"),
                (["--all", "--min-bytes", "x"], "--min-bytes must be"), (["--all", "--slack", "-1"], "--slack must be"),
                (["--all", "--slack", "auto"], "--mode enforce --slack auto, not 'auto'"),
                (["--all", "x"], "argument too many"), (["--nonsense"], "no option"), (["--pid"], "needs a value")):
            with self.subTest(arguments):
                result = support.run([RECVPOOL, "attach", *arguments])
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assert_one_line(result.stderr)
                self.assertIn(words, result.stderr)

    def test_help(self):
        result = support.run([RECVPOOL, "attach", "--help"])
        self.assert_success(result)
        for option in ("--pid", "--comm", "--cgroup", "--all", "--duration", "--json", "--launches", "--report-dir"):
            self.assertIn(option, result.stdout)


class MissingTest(AttachCase):
    def test_ends_when_nobody_reads(self):
        program = self.program()
        program.open(MOCK)
        process = subprocess.Popen([RECVPOOL, "attach", "--pid", str(program.pid), "--min-bytes", "1", "--interval", "50ms"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        process.stderr.readline()
        program.call(*RECV)
        self.assertTrue(process.stdout.readline())
        process.stdout.close()
        self.assertEqual(process.wait(timeout=support.TIMEOUT_SECONDS), 1)
        process.stderr.close()

    def test_no_such_process(self):
        child = subprocess.Popen(["true"])
        child.wait()
        result = support.run([RECVPOOL, "attach", "--pid", str(child.pid)])
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual(result.stderr, f"recvpool attach: there is no process {child.pid}\n")

    def test_nobody_by_that_name(self):
        for form in ([], ["--json"]):
            with self.subTest(form):
                result = support.run([RECVPOOL, "attach", *form, "--comm", "rp_nobody", "--duration", "100ms"])
                self.assertEqual(result.returncode, 1)
                first, said = result.stderr.splitlines()
                self.assertIn("observing 0 processes", first)
                self.assertRegex(said, "^recvpool attach: no process was called 'rp_nobody' in all that time .*ps -eo")
                if form:
                    self.check_document(json.loads(result.stdout))
                else:
                    self.assertEqual(result.stdout, "")

    def test_waiting_for_somebody(self):
        observer = self.observer("--comm", "rp_nobody")
        self.assertIn("waiting for a process called rp_nobody; Ctrl-C ends it", observer.process.stderr.readline())
        observer.process.send_signal(signal.SIGINT)
        _, errors = observer.process.communicate(timeout=support.TIMEOUT_SECONDS)
        self.assertEqual(observer.process.returncode, 1)
        self.assert_one_line(errors)
        self.assertIn("no process was called 'rp_nobody' in all that time", errors)

    def test_somebody_who_came_and_went(self):
        path = os.path.join(self.folder, "rp_came")
        shutil.copy(PROGRAM, path)
        observer = self.observer("--comm", "rp_came")
        self.program(path).close()
        self.assertEqual(observer.stop()["jobs"], [])

    def test_nobody_in_the_cgroup(self):
        with open("/proc/mounts") as file:
            roots = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
        if not roots:
            self.skipTest("there is no cgroup2 hierarchy")
        group = os.path.join(roots[0], f"recvpool-test-{os.getpid()}")
        os.makedirs(group)
        self.addCleanup(os.rmdir, group)
        result = support.run([RECVPOOL, "attach", "--cgroup", group, "--duration", "100ms"])
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(f"no process was in {group} in all that time\n", result.stderr)

    def test_a_kernel_thread(self):
        result = support.run([RECVPOOL, "attach", "--pid", "2"])
        self.assertEqual(result.returncode, 1)
        self.assertIn("belongs to the kernel", result.stderr)

    def test_no_such_cgroup(self):
        for path, words in (("/nonexistent", "cannot open cgroup"), (self.folder, "no cgroup2 folder")):
            result = support.run([RECVPOOL, "attach", "--cgroup", path])
            self.assertEqual(result.returncode, 1)
            self.assert_one_line(result.stderr)
            self.assertIn(words, result.stderr)

    def test_a_process_without_any_library(self):
        program = self.program()
        result = support.run([RECVPOOL, "attach", "--pid", str(program.pid), "--duration", "200ms"])
        self.assert_success(result)
        self.assertIn("no receives seen", result.stdout)
        self.assertIn("mapped no library with NCCL's functions", result.stdout)

    def test_output_that_cannot_be_written(self):
        program = self.program()
        program.open(MOCK)
        with open("/dev/full", "w") as full:
            result = subprocess.run([RECVPOOL, "attach", "--json", "--pid", str(program.pid), "--duration", "100ms"],
                                    stdout=full, stderr=subprocess.PIPE, text=True, timeout=support.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write to stdout", result.stderr)
        result = support.run([RECVPOOL, "attach", "--pid", str(program.pid), "--duration", "100ms", "--report-dir",
                              "/proc/nowhere"])
        self.assertEqual(result.returncode, 0)  # nothing was to be written: no transfer was seen


