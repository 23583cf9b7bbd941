"""The program comes first: whatever it does and whatever goes wrong, its output and status are those of a run without the
agent, there is at most one line of warning, and the last report is whole."""

import glob
import os
import shlex
import signal
import subprocess
import time
import unittest

import support
from support import AGENT, PROGRAMS, RECVPOOL, TRAINER

PROGRAM = os.path.join(PROGRAMS, "host_program")


class RobustnessTest(support.TestCase):
    def attached(self, command, **extra):
        extra = {"RECVPOOL_REPORT_DIR": self.reports_dir, "RECVPOOL_MIN_BYTES": "1", **extra}
        return support.run(command, env=support.simulated(CUDA_INJECTION64_PATH=AGENT, **extra))

    def lines_of(self, result):
        """Lines on stderr, without what the leak checker of a sanitizer build says about threads of a forked child."""
        return [line for line in result.stderr.splitlines() if "was not suspended. False leaks are possible" not in line]

    def check_same(self, command, warnings=0, **extra):
        """Runs without and with the agent; returns the warning lines of the latter, at most `warnings` per process."""
        alone = support.run(command, env=support.simulated())
        attached = self.attached(command, **extra)
        self.assertEqual((attached.returncode, attached.stdout), (alone.returncode, alone.stdout),
                         alone.stderr + attached.stderr)
        lines = self.lines_of(attached)
        own = [line for line in lines if line.startswith("recvpool")]
        self.assertEqual([line for line in lines if line not in own], self.lines_of(alone))
        self.assertLessEqual(len(own), warnings, own)
        return own

    def check_mode(self, mode, status=0, reports=1, **extra):
        self.assertEqual(support.run([PROGRAM, mode], env=support.simulated()).returncode, status)
        self.check_same([PROGRAM, mode], **extra)
        found = self.read_reports()
        self.assertEqual(len(found), reports)
        return found

    # Programs

    def test_without_cuda(self):
        self.check_mode("no_cuda", reports=0)

    def test_command_that_is_no_cuda_program(self):
        result = support.run([RECVPOOL, "run", "--", "/bin/ls", "/"], env=support.simulated())
        self.assertEqual((result.returncode, result.stdout), (0, support.run(["/bin/ls", "/"]).stdout))
        self.assertEqual(result.stderr, "")

    def test_without_nccl(self):
        report, = self.check_mode("no_nccl", status=4)
        self.assertEqual((report["state"], report["channels"]), ("finished", []))
        self.assertIsNone(report["versions"]["nccl"]["version"])
        self.assertGreater(report["events"]["by_kind"]["alloc"], 0)

    def test_fork_after_cuda(self):
        report, = self.check_mode("fork")
        self.assertEqual(report["state"], "finished")
        self.assertEqual(report["events"]["by_kind"]["alloc"], 2)

    def test_fork_before_cuda(self):
        found = self.check_mode("fork_first", reports=2)
        self.assertEqual(len({report["process"]["pid"] for report in found}), 2)

    def test_exec(self):
        self.check_same([PROGRAM, "exec"])
        states = [report["state"] for report in self.read_reports()]
        self.assertIn("finished", states)

    def test_eight_threads(self):
        report, = self.check_mode("threads")
        self.assertEqual(report["events"]["by_kind"]["alloc"], 8)
        self.assertEqual(report["events"]["by_kind"]["free"], 8)

    @unittest.skipIf(os.environ.get("E2E_SANITIZE") == "thread", "ThreadSanitizer cannot join the main thread")
    def test_thread_outlives_main(self):
        report, = self.check_mode("thread_outlives_main")
        self.assertEqual(report["events"]["by_kind"]["alloc"], 2)

    def test_nccl_that_comes_late(self):
        report, = self.check_mode("late_module")
        self.assertEqual(report["events"]["by_kind"]["recv"], 16)
        self.assertEqual(report["events"]["by_kind"]["send"], 16)
        self.assertEqual(sum(channel["transfers"] for channel in report["channels"]), 16)
        self.assertIsNotNone(report["versions"]["nccl"]["version"])

    def test_nccl_found_by_dlsym(self):
        self.check_same([os.path.join(PROGRAMS, "late_dlsym")], warnings=1)
        report, = self.read_reports()
        sources = {entry["name"]: entry for entry in report["evidence"]}
        # only NCCL itself tells of these receives, and it does so after their launch
        self.assertTrue(sources["nccl_profiler"]["active"])
        self.assertIn("12 transfers were seen by the plugin alone", sources["nccl_profiler"]["reason"])
        self.assertEqual(report["events"]["by_kind"]["recv"], 6)

    def test_quick_exit_and_abort(self):
        # no exit hook runs here: a report is what the last interval wrote, if there was one
        self.check_same([PROGRAM, "quick_exit"])
        self.check_same([PROGRAM, "abort"])
        self.read_reports()

    def test_cupti_held_by_the_program(self):
        warnings = self.check_same([os.path.join(PROGRAMS, "cupti_holder")], warnings=1)
        self.assertEqual(len(warnings), 1)
        report, = self.read_reports()
        cupti, = (entry for entry in report["evidence"] if entry["name"] == "cupti")
        self.assertFalse(cupti["active"])
        self.assertTrue(cupti["reason"])
        self.assertGreater(report["events"]["by_source"]["interposer"], 0)

    # Deaths

    def start_training(self, *options):
        """A training run that would take hours, started under the agent in a process group of its own; returns it once
        every rank has reported."""
        process = subprocess.Popen([TRAINER, "--stages", "2", "--microbatches", "4", "--steps", "100000000", *options],
                                   env=support.simulated(CUDA_INJECTION64_PATH=AGENT, RECVPOOL_MIN_BYTES="1",
                                                         RECVPOOL_INTERVAL="0.05", RECVPOOL_REPORT_DIR=self.reports_dir),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(self.end_group, process)
        deadline = time.monotonic() + support.TIMEOUT_SECONDS
        while True:
            self.assertLess(time.monotonic(), deadline, "no report with complete steps appeared")
            reports = self.read_reports()
            if len(reports) == 2 and all(report["totals"]["steps_complete"] > 2 for report in reports):
                return process, [report["process"]["pid"] for report in reports]
            time.sleep(0.05)

    def end_group(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def kill_ranks(self, number):
        process, ranks = self.start_training()
        # all at once: a rank whose peer has gone first would end by itself
        os.killpg(process.pid, number)
        process.wait(support.TIMEOUT_SECONDS)
        deadline = time.monotonic() + support.TIMEOUT_SECONDS
        while any(os.path.exists(f"/proc/{pid}/exe") for pid in ranks):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        reports = self.read_reports()
        self.assertEqual(len(reports), 2)
        for report in reports:
            self.assertEqual(report["state"], "running")
            self.assertTrue(report["channels"])
        result = support.run([RECVPOOL, "report", self.reports_dir])
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        self.assertRegex(result.stdout, r"ended without a final report, as by a signal: rank 0 \(.*:\d+\), rank 1 \(.*:\d+\); the last "
                                        r"ones are from after \d+( to \d+)? steps?, at 20[^;]*Z; what they did later is not known "
                                        r"\(2 processes\)\n")

    def test_sigkill_leaves_the_last_report(self):
        self.kill_ranks(signal.SIGKILL)

    def test_sigterm_leaves_the_last_report(self):
        self.kill_ranks(signal.SIGTERM)

    # Report folders

    def in_mounted_folder(self, mount, after=""):
        """The program with a report folder on a file system of its own, in a mount namespace."""
        os.mkdir(self.reports_dir)
        folder = shlex.quote(self.reports_dir)
        script = f"mount -t tmpfs {mount} none {folder} && {{ {after or ':'}; }} && {shlex.quote(PROGRAM)} no_nccl; " \
                 f"status=$?; find {folder} -name '*.json*' | wc -l >&2; exit $status"
        return self.attached(["unshare", "--mount", "sh", "-c", script])

    def check_broken_folder(self, result):
        alone = support.run([PROGRAM, "no_nccl"], env=support.simulated())
        self.assertEqual((result.returncode, result.stdout), (alone.returncode, alone.stdout), result.stderr)
        warning, left = result.stderr.splitlines()
        self.assertTrue(warning.startswith("recvpool"), warning)
        self.assertEqual(left, "0")

    def need_mounts(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small file system needs root")
        if support.run(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {shlex.quote(self.folder)}"]).returncode:
            self.skipTest("this machine does not allow mounts")

    def test_read_only_folder(self):
        self.need_mounts()
        self.check_broken_folder(self.in_mounted_folder("-o ro"))

    def test_full_folder(self):
        self.need_mounts()
        fill = f"head -c 1M /dev/zero > {shlex.quote(self.reports_dir)}/fill 2>/dev/null; true"
        self.check_broken_folder(self.in_mounted_folder("-o size=16k", fill))

    def test_folder_that_cannot_be_made(self):
        with open(os.path.join(self.folder, "file"), "w"):
            pass
        warnings = self.check_same([PROGRAM, "no_nccl"], warnings=1,
                                   RECVPOOL_REPORT_DIR=os.path.join(self.folder, "file", "reports"))
        self.assertEqual(len(warnings), 1)

    # Configuration

    def test_nonsense_in_every_variable(self):
        nonsense = {name: "\x1bnonsense\n\udcff" for name in
                    ("RECVPOOL_MODE", "RECVPOOL_INTERVAL", "RECVPOOL_MIN_BYTES", "RECVPOOL_SLACK", "RECVPOOL_CUPTI",
                     "RECVPOOL_VERBOSE", "RECVPOOL_PLAN_RANK", "RECVPOOL_BUFFER_BYTES", "RECVPOOL_SLOTS",
                     "RECVPOOL_HEADROOM", "RECVPOOL_ON_VIOLATION", "RECVPOOL_STRICT", "RECVPOOL_RUN", "RECVPOOL_COLOUR")}
        warning, = self.check_same([PROGRAM, "no_nccl"], warnings=1, **nonsense)
        for name in nonsense:
            self.assertIn(name, warning)
        report, = self.read_reports()
        self.assertEqual(len([line for line in report["warnings"] if "RECVPOOL_SLACK" in line]), 1)
        self.assertEqual(report["configuration"], {
            "slack_slots": 2, "min_bytes": 65536, "slack_auto": False, "cupti": "always", "on_violation": "fallback",
            "strict": False, "plan": None, "plan_rank": None, "buffer_bytes": None, "slots": None, "run": None,
            "problem": None, "headroom_bytes": 0})

    def test_contradictions_are_observed(self):
        warning, = self.check_same([PROGRAM, "no_nccl"], warnings=1, RECVPOOL_MODE="enforce", RECVPOOL_PLAN="/plan.json",
                                   RECVPOOL_SLOTS="3")
        self.assertIn("RECVPOOL_PLAN and RECVPOOL_SLOTS exclude each other: the plan has the slots; the job is observed only",
                      warning)
        report, = self.read_reports()
        self.assertEqual(report["mode"], "observe")
        self.assertEqual(report["enforcement"]["refused"]["reason"], "contradiction")
        self.assertIn("RECVPOOL_PLAN and RECVPOOL_SLOTS", report["configuration"]["problem"])

    def test_a_plan_that_is_none(self):
        warning, = self.check_same([PROGRAM, "no_nccl"], warnings=1, RECVPOOL_MODE="enforce", RECVPOOL_PLAN="/no/plan.json")
        self.assertIn("/no/plan.json: cannot be read: No such file or directory", warning)
        report, = self.read_reports()
        self.assertEqual(report["enforcement"]["refused"], {
            "reason": "plan_unusable", "text": "/no/plan.json: cannot be read: No such file or directory"})

    def test_nonsense_report_dir(self):
        extra = {"RECVPOOL_REPORT_DIR": "", "XDG_RUNTIME_DIR": self.folder}
        warning, = self.check_same([PROGRAM, "no_nccl"], warnings=1, **extra)
        self.assertIn("RECVPOOL_REPORT_DIR", warning)
        self.assertEqual(len(self.read_reports(os.path.join(self.folder, "recvpool"))), 1)

    def test_failing_cuda_calls_come_through(self):
        alone = support.run([PROGRAM, "no_nccl"], env=support.simulated(RPSIM_FAIL="cuMemAlloc_v2:1"))
        attached = self.attached([PROGRAM, "no_nccl"], RPSIM_FAIL="cuMemAlloc_v2:1")
        self.assertIn("cudaMalloc: error 2", alone.stdout)
        self.assertEqual((attached.returncode, attached.stdout), (alone.returncode, alone.stdout))

    def test_no_temporary_files_are_left(self):
        self.check_mode("no_nccl", status=4)
        self.assertEqual(glob.glob(os.path.join(self.reports_dir, ".*")), [])
