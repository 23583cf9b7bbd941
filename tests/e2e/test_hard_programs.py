"""Programs that make life hard for what is attached to them: signals, allocators, forks, graphs, threads in storms. Their
output and status stay what they are without the agent, and no report claims more than it knows."""

import os
import subprocess
import unittest

import support
from support import AGENT, PROGRAMS, RECVPOOL

PROGRAM = os.path.join(PROGRAMS, "hard_program")
HOST_PROGRAM = os.path.join(PROGRAMS, "host_program")
SANITIZED = bool(os.environ.get("E2E_SANITIZE"))


class HardProgramsTest(support.TestCase):
    def attached(self, command, options=None, **extra):
        extra = {"RECVPOOL_REPORT_DIR": self.reports_dir, "RECVPOOL_MIN_BYTES": "1", "RECVPOOL_INTERVAL": "0.05", **extra}
        return support.run(command, env=support.simulated(CUDA_INJECTION64_PATH=AGENT, **extra), **(options or {}))

    def check_same(self, mode, status=0, **extra):
        alone = support.run([PROGRAM, mode], env=support.simulated())
        self.assertEqual(alone.returncode, status, alone.stdout + alone.stderr)
        attached = self.attached([PROGRAM, mode], **extra)
        self.assertEqual((attached.returncode, attached.stdout), (alone.returncode, alone.stdout), attached.stderr)
        return self.read_reports()

    def check_no_claim(self, reports, reason):
        for report in reports:
            self.assertEqual(report["totals"]["would_save_bytes"], 0)
            self.assertEqual({channel["decision"]["reason"] for channel in report["channels"]}, {reason})

    @unittest.skipIf(SANITIZED, "a sanitizer has an allocator of its own")
    def test_exit_in_a_signal_handler(self):
        self.check_same("exit_in_handler", status=7)

    @unittest.skipIf(SANITIZED, "a sanitizer has an allocator of its own")
    def test_allocator_that_calls_cuda(self):
        report, = self.check_same("cuda_in_allocator")
        self.assertEqual(report["state"], "finished")

    def test_graph_capture(self):
        report, = self.check_same("graph")
        self.assertGreater(report["events"]["by_kind"]["graph_launch"], 0)
        self.check_no_claim([report], "graph_captured")

    def check_nccl_thread(self, **extra):
        report, = self.check_same("nccl_thread", **extra)
        channel, = report["channels"]
        self.assertEqual((channel["buffers"], channel["depth"]), (8, 1))
        self.assertEqual({life["accesses"] for life in channel["lifetimes"]}, {1})

    def test_work_of_nccls_own_thread(self):
        self.check_nccl_thread()

    def test_work_of_nccls_own_thread_without_cupti(self):
        self.check_nccl_thread(RECVPOOL_CUPTI="off")

    def test_unloads_cost_no_memory(self):
        used = []
        for mode, launches in (("few_unloads", 100), ("many_unloads", 3000)):
            self.reports_dir = os.path.join(self.folder, mode)
            report, = self.check_same(mode)
            self.assertEqual(report["events"]["by_kind"]["kernel"], launches)
            used.append(report["agent_cost"]["agent_bytes"])
        self.assertEqual(used[0], used[1])

    def test_thread_storm(self):
        report, = self.check_same("thread_storm")
        self.assertEqual(report["events"]["by_kind"]["copy_read"], 8 + 40 * 64)

    def test_fork_storm(self):
        self.assertEqual(len(self.check_same("fork_storm")), 1)

    def test_exit_from_another_thread(self):
        report, = self.check_same("exit_elsewhere", status=9)
        self.assertEqual(report["state"], "finished")

    def test_modules_that_come_and_go(self):
        report, = self.check_same("reload")
        self.assertEqual(report["events"]["by_kind"]["recv"], 20 * 8)

    def test_busy_process(self):
        report, = self.check_same("busy_process")
        self.assertEqual(report["events"]["by_kind"]["recv"], 200 * 8)

    def test_odd_transfers(self):
        report, = self.check_same("odd_transfers")
        self.assertEqual(report["totals"]["would_save_bytes"], 0)
        self.assertEqual(report["events"]["dropped"]["events"], 0)
        self.assertLess(report["agent_cost"]["tracker_bytes"], 4 << 20)
        self.assertEqual(report["events"]["by_kind"]["comm_destroy"], 300)

    @unittest.skipIf(SANITIZED, "AddressSanitizer does not follow how a cancelled thread unwinds")
    def test_threads_that_are_cancelled(self):
        report, = self.check_same("cancel")
        self.assertGreaterEqual(report["events"]["by_kind"]["alloc"], 21)

    def test_lost_working_folder(self):
        self.assertEqual(len(self.check_same("lost_folder")), 1)

    # stderr that nobody reads

    def run_with_stderr(self, descriptor, **extra):
        environment = support.simulated(CUDA_INJECTION64_PATH=AGENT, RECVPOOL_VERBOSE="1",
                                        RECVPOOL_REPORT_DIR="/dev/null/nowhere", **extra)
        return subprocess.run([HOST_PROGRAM, "no_nccl"], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=descriptor, timeout=support.TIMEOUT_SECONDS)

    def test_stderr_that_is_closed_at_the_other_end(self):
        reader, writer = os.pipe()
        os.close(reader)
        result = self.run_with_stderr(writer)
        os.close(writer)
        self.assertEqual(result.returncode, 4)

    def test_stderr_that_nobody_empties(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x" * 4096)
        except BlockingIOError:
            os.set_blocking(writer, True)
        result = self.run_with_stderr(writer)
        os.close(writer)
        os.close(reader)
        self.assertEqual(result.returncode, 4)

    def test_stderr_that_is_not_open(self):
        result = self.attached(["sh", "-c", f"exec '{HOST_PROGRAM}' no_nccl 2>&-"], RECVPOOL_VERBOSE="1",
                               RECVPOOL_REPORT_DIR="/dev/null/nowhere")
        self.assertEqual(result.returncode, 4)

    # The report's own folder and the command

    def test_folder_with_an_odd_name_and_a_program_that_leaves(self):
        self.reports_dir = os.path.join(self.folder, "Übung mit Leerzeichen 'und mehr'")
        result = support.run([RECVPOOL, "run", "--report-dir", os.path.basename(self.reports_dir), "--min-bytes", "1", "--",
                              "sh", "-c", f"cd / && exec '{PROGRAM}' graph"], env=support.simulated(), cwd=self.folder)
        self.assert_success(result)
        self.assertEqual(len(self.read_reports()), 1)

    def test_folder_that_is_a_link(self):
        real = os.path.join(self.folder, "real")
        os.mkdir(real)
        os.symlink(real, self.reports_dir)
        self.assertEqual(self.attached([HOST_PROGRAM, "no_nccl"]).returncode, 4)
        self.assertEqual(len(self.read_reports(real)), 1)

    def test_command_line_that_is_not_text(self):
        arguments = [b"no_nccl", b"\xff\xfe\x80", b"x" * 100000, b"\x1b[31m"]
        result = self.attached([HOST_PROGRAM, *arguments])
        self.assertEqual(result.returncode, 4)
        report, = self.read_reports()
        self.assertTrue(report["process"]["command"].startswith(HOST_PROGRAM))
