"""What a program may do with its memory besides training must be the same with buffers that share memory: exports to
other processes, contexts of its own, rarely used calls, entry points by name, graphs built by hand."""

import os
import re
import shutil
import tempfile
import unittest

import support
from support import PROGRAMS, RECVPOOL

PROGRAM = os.path.join(PROGRAMS, "enforce_memory")
TRACKER = os.path.join(PROGRAMS, "libmemory_tracker.so")
AUTO = ["--mode", "enforce"]
# By a plan, K slots from the first step: what is beyond them has addresses only until something touches it.
PLANNED = ["--mode", "enforce", "--plan-rank", "0", "--plan"]  # followed by the plan's path
TOUCHES = ["cudaMemcpy3D", "cudaMemcpy3DAsync", "cudaMemcpy3DPeer", "cuMemcpy3D", "cuMemcpy2DAsync", "cuMemcpyPeer",
           "cuMemcpyPeerAsync", "cudaMemcpyPeer", "cudaMemset2DAsync", "cuMemsetD2D32", "cuStreamWriteValue32",
           "cuStreamWaitValue32", "cuMemcpyBatchAsync", "cuGetProcAddress", "cudaGetDriverEntryPointByVersion"]


class MemoryCase(support.TestCase):
    plain = {}  # what it prints unattached, by mode: that does not change

    @classmethod
    def setUpClass(cls):
        """A plan of what the program does in every mode, from watching it."""
        super().setUpClass()
        cls.plan_folder = tempfile.mkdtemp(prefix="recvpool-test-")
        cls.addClassCleanup(shutil.rmtree, cls.plan_folder, ignore_errors=True)
        reports, cls.plan_path = (os.path.join(cls.plan_folder, name) for name in ("reports", "plan.json"))
        for command in ([RECVPOOL, "run", "--report-dir", reports, "--", PROGRAM, "plain"],
                        [RECVPOOL, "plan", "--from-report", reports, "--output", cls.plan_path]):
            result = support.run(command, env=support.simulated(RPSIM_SEED="1"))
            if result.returncode:
                raise AssertionError(f"{command}\n{result.stdout}\n{result.stderr}")

    def attached(self, mode, options):
        """The command that runs the mode under recvpool."""
        options = [*options, self.plan_path] if options is PLANNED else options
        return [RECVPOOL, "run", "--report-dir", self.reports_dir, *options, "--", PROGRAM, mode]

    def run_mode(self, mode, options=None, **extra):
        """Unattached where `options` is None, else with `recvpool run` and these options."""
        shutil.rmtree(self.reports_dir, ignore_errors=True)
        command = [PROGRAM, mode] if options is None else self.attached(mode, options)
        result = support.run(command, env=support.simulated(RPSIM_SEED="1", **extra))
        self.assertEqual(result.returncode, 0, f"{result.args}\n{result.stdout}\n{result.stderr}")
        return result

    def report_of(self):
        """The report of the one process that received something."""
        reports = [report for report in self.read_reports() if report["enforcement"]["devices"]]
        self.assertGreater(len(reports), 0)
        return max(reports, key=lambda report: report["enforcement"]["devices"][0]["receives"])

    def same(self, mode, options, warns=False, **extra):
        """The program sees the same attached and not; gives its report."""
        plain = self.plain.setdefault(mode, None) or self.run_mode(mode, **extra)
        self.plain[mode] = plain
        attached = self.run_mode(mode, options, **extra)
        self.assertEqual(attached.stdout, plain.stdout)
        self.assertEqual(attached.stderr != "", warns, attached.stderr)
        report = self.report_of()
        for device in report["enforcement"]["devices"]:
            self.assertEqual(sum(device["conflicts"]["violated"].values()), 0, device["conflicts"])
            self.assertEqual((device["buffers"], device["buffers_lost"], device["physical_bytes"]), (0, 0, 0))
            self.assertEqual(device["planned"], options is PLANNED)
        return report


class OtherProcessesTest(MemoryCase):
    """cudaIpcGetMemHandle and what another process does with the handle."""

    def test_memory_can_be_exported(self):
        for mode in ("export_first", "export_late"):
            for options in (AUTO, PLANNED):
                with self.subTest(mode=mode, options=options):
                    device = self.same(mode, options)["enforcement"]["devices"][0]
                    if options is AUTO:
                        self.assertGreater(device["activations"], 0)

    def test_what_was_exported_once_is_left_to_the_driver(self):
        plain = self.run_mode("export_learned")
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                self.assertEqual(self.run_mode("export_learned", options).stdout, plain.stdout)

    def test_without_file_descriptors_the_job_is_told_why(self):
        plain = self.run_mode("export_learned")
        for failing in ("cuMemExportToShareableHandle:1+", "cuMemRetainAllocationHandle:1+"):
            with self.subTest(failing):
                result = support.run(self.attached("export_first", AUTO), env=support.simulated(RPSIM_SEED="1", RPSIM_FAIL=failing))
                self.assertIn("export 1\n", result.stdout)
                self.assertIn("--buffer-bytes", result.stderr)
                self.assert_one_line(result.stderr)
        self.assertIn("capable 1", plain.stdout)


    def test_another_process_that_cannot_map_it_is_told(self):
        failing = "cuMemImportFromShareableHandle:1+"  # as if there were no memory
        result = support.run(self.attached("export_first", AUTO), env=support.simulated(RPSIM_SEED="1", RPSIM_FAIL=failing))
        self.assertIn("other opens 2\n", result.stdout, result.stderr)
        self.assertIn("now 42\n", result.stdout)
        self.assertEqual(result.returncode, 0)


class ContextsTest(MemoryCase):
    def test_memory_of_a_context_goes_with_it(self):
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                report = self.same("contexts", options)
                self.assertIsNone(report["enforcement"]["devices"][0]["refused"])


class TouchesTest(MemoryCase):
    def test_every_call_finds_memory(self):
        for mode in TOUCHES:
            with self.subTest(mode):
                self.same(mode, PLANNED)


class EntryPointsTest(MemoryCase):
    def test_allocating_and_freeing_by_entry_points(self):
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                self.same("by_name", options)

    def test_freeing_by_dlsym_gives_the_memory_back_and_a_reason(self):
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                report = self.same("by_dlsym", options, warns=True)
                self.assertEqual(report["enforcement"]["refused"]["reason"], "freed_elsewhere")

    def test_every_function_has_one_wrapper(self):
        """Of two the first one would be used, and the other never."""
        names = []
        agent = os.path.join(support.SOURCE, "agent")
        for name in os.listdir(agent):
            if re.fullmatch(r"hooks_\w+\.c", name):
                with open(os.path.join(agent, name)) as file:
                    names += re.findall(r"RP_HOOK_ENTRY\((\w+)\)", file.read())
        self.assertGreater(len(names), 300)
        self.assertEqual(sorted(names), sorted(set(names)))

    def test_versions_of_functions_are_those_of_the_headers(self):
        """The wrappers that are handed out for a base name and a version take that version's arguments."""
        root = os.environ.get("E2E_CUDA_ROOT")
        header = os.path.join(root, "include", "cudaTypedefs.h") if root else ""
        if not os.path.exists(header):
            self.skipTest("cudaTypedefs.h was not found: this toolkit has none")
        with open(header) as file:
            named = re.findall(r"PFN_(cu\w+?)_v(\d{4,5})\)", file.read())
        versions = {}
        for base, version in named:
            versions.setdefault(base, set()).add(int(version))
        hooked, second = {}, {}
        agent = os.path.join(support.SOURCE, "agent")
        for name in os.listdir(agent):
            if not re.fullmatch(r"hooks_\w+\.c", name):
                continue
            with open(os.path.join(agent, name)) as file:
                text = file.read()
            for function in re.findall(r"RP_HOOK_ENTRY\((cu(?!da)\w+)\)", text):
                function = re.sub(r"_pt[sd][sz]$", "", function)
                base, number = re.fullmatch(r"(\w+?)(?:_v(\d))?", function).groups()
                hooked.setdefault(base, set()).add(int(number or 1))
            if name == "hooks_entry.c":
                second = {base: int(since) for base, since in re.findall(r'\{"(\w+)", (\d+)\}', text)}
        self.assertGreater(len(hooked), 50)
        self.assertGreater(len(second), 10)
        for base, numbers in sorted(hooked.items()):
            known = sorted(versions.get(base, ()))
            with self.subTest(base=base, numbers=numbers, known=known):
                self.assertTrue(known)
                if base in second:
                    self.assertEqual(known[-1], second[base])
                elif 2 in numbers:
                    self.assertEqual(known[-1], 3020)
                else:
                    self.assertEqual(len(known), 1)


class TrackerTest(MemoryCase):
    @unittest.skipIf(os.environ.get("E2E_SANITIZE"), "a sanitizer wants to be preloaded first")
    def test_a_library_between_program_and_runtime_sees_everything(self):
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                plain = self.run_mode("tracked", LD_PRELOAD=TRACKER)
                attached = self.run_mode("tracked", options, LD_PRELOAD=TRACKER)
                self.assertEqual(attached.stdout, plain.stdout)
                self.assertIn("live 1 unknown 0", attached.stdout)
                [report] = self.read_reports()
                self.assertEqual(report["enforcement"]["refused"]["reason"], "allocator_interposed")
                self.assertIn("libmemory_tracker.so", report["enforcement"]["refused"]["text"])
                self.assertEqual(len(report["warnings"]), 1)


class BehindTest(MemoryCase):
    def test_a_device_far_behind_its_host_is_waited_for_longer_and_longer(self):
        program = os.path.join(PROGRAMS, "enforce_behind")
        plain = support.run([program], env=support.simulated())
        self.assert_success(plain)
        attached = support.run([RECVPOOL, "run", "--report-dir", self.reports_dir, *AUTO, "--slack", "0", "--", program],
                               env=support.simulated())
        self.assert_success(attached)
        self.assertEqual(attached.stdout, plain.stdout)
        [report] = self.read_reports()
        device = report["enforcement"]["devices"][0]
        self.assertGreater(device["activations_postponed"], 0)
        self.assertEqual(device["activations"], 1)


class OddCallsTest(MemoryCase):
    def test_a_simulated_group_ends(self):
        report = self.same("simulated_group", AUTO)
        self.assertGreater(report["enforcement"]["devices"][0]["activations"], 0)
        self.same("simulated_group", PLANNED)

    def test_errors_are_those_of_the_runtime(self):
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                self.same("errors", options)

    def test_a_call_that_is_refused_leaves_its_error(self):
        """Memory for a first touch cannot be had; programs look at the last error after a launch."""
        result = support.run(self.attached("refused", PLANNED),
                             env=support.simulated(RPSIM_SEED="1", RPSIM_FAIL="cuMemCreate:6+"))
        self.assertIn("2 last 2\n", result.stdout, result.stderr)
        for line in result.stdout.splitlines():
            self.assertIn(line, ("0 last 0", "2 last 2", "done"))

    def test_a_refusal_says_what_the_driver_said(self):
        """Where it neither shares memory nor gives it back, more slots would not help."""
        said = 0
        for position in range(6, 13):
            result = support.run([RECVPOOL, "run", "--report-dir", self.reports_dir, *AUTO, "--", support.TRAINER, "--stages", "2",
                                  "--microbatches", "4", "--steps", "4", "--message-bytes", "2MiB"],
                                 env=support.simulated(RPSIM_SEED="1", RPSIM_FAIL=f"cuMemMap:{position}+:801"))
            for line in result.stderr.splitlines():
                if "a call was refused" in line:
                    said += 1
                    self.assertNotIn("plan more slots", line)
        self.assertGreater(said, 0)

    def test_attributes_are_those_of_plain_memory(self):
        for options in (AUTO, PLANNED):
            with self.subTest(options):
                self.same("attributes", options)

    def test_graphs_built_by_hand_hold_their_buffers(self):
        for mode in ("graph_copy_first", "graph_copy_late", "graph_kernel_first", "graph_kernel_late", "graph_set"):
            for options in (AUTO, PLANNED):
                with self.subTest(mode=mode, options=options):
                    self.same(mode, options)


if __name__ == "__main__":
    unittest.main()
