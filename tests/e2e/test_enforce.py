"""Enforcing: the memory comes back and nothing else changes. Each run is compared with the same run unattached."""

import os
import re
import shutil
import unittest

import support
from support import AGENT, PROGRAMS, RECVPOOL, TRAINER

MIB = 1 << 20
BYTES = 2 * MIB
MICROBATCHES = 8
STEPS = 6
SLACK = 2

VARIANTS = [
    (2, ["--schedule", "1f1b"]),
    (4, ["--schedule", "1f1b"]),
    (4, ["--schedule", "1f1b", "--recompute", "--backward-thread"]),
    (2, ["--schedule", "1f1b", "--driver-api", "--own-stream"]),
    (2, ["--schedule", "interleaved_1f1b"]),
]


def training(output):
    """What a run computed, without what it took for it."""
    return re.sub(r" peak_device_bytes \d+", "", output)


def peaks(output):
    return {int(rank): int(peak) for rank, peak in re.findall(r"rank (\d+) .* peak_device_bytes (\d+)", output)}


class EnforceCase(support.TestCase):
    def run_program(self, command, options=None, seed=1, expect=0, **extra):
        """Unattached where `options` is None, else with `recvpool run` and these options."""
        prefix = [] if options is None else [RECVPOOL, "run", "--report-dir", self.reports_dir, *options, "--"]
        result = support.run([*prefix, *command], env=support.simulated(RPSIM_SEED=str(seed), **extra))
        self.assertEqual(result.returncode, expect, f"{result.args}\n{result.stdout}\n{result.stderr}")
        return result

    def train(self, stages, variant, options=None, **extra):
        command = [TRAINER, "--stages", str(stages), "--microbatches", str(MICROBATCHES), "--steps", str(STEPS),
                   "--message-bytes", str(BYTES), *variant]
        return self.run_program(command, options, **extra)

    def take_reports(self):
        """The reports of the last run; the next one starts without."""
        reports = self.read_reports()
        shutil.rmtree(self.reports_dir)
        return reports

    def paper_plan(self, schedule="1f1b", stages=2, ranks=2, slack=1):
        """The path of a plan made of a schedule."""
        plan = os.path.join(self.folder, "schedule-plan.json")
        self.assert_success(support.run([RECVPOOL, "plan", "--schedule", schedule, "--stages", str(stages), "--ranks",
                                         str(ranks), "--microbatches", str(MICROBATCHES), "--slack", str(slack),
                                         "--buffer-bytes", str(BYTES), "--output", plan]))
        return plan

    def devices(self, reports):
        found = [(report, device) for report in reports for device in report["enforcement"]["devices"]]
        self.assertTrue(found)
        return found

    def assert_quiet(self, reports):
        for report in reports:
            self.assertEqual(report["warnings"], [])
            self.assertIsNone(report["enforcement"]["refused"])
            for device in report["enforcement"]["devices"]:
                self.assertIsNone(device["refused"])
                self.assertEqual(device["conflicts"]["kept"], [])
                self.assertEqual(sum(device["conflicts"]["prevented"].values()), 0)
                self.assertEqual(sum(device["conflicts"]["violated"].values()), 0)
                self.assertEqual(device["pending_dropped"], 0)


class AutoTest(EnforceCase):
    """Without a plan: watched for two steps, then K slots."""

    def check_classes(self, device):
        self.assertEqual(device["activations"] > 0, True, device["idle"])
        for pool in device["classes"]:
            self.assertEqual(pool["buffers"], MICROBATCHES)
            self.assertEqual(pool["slots"], min(MICROBATCHES, pool["depth"] + SLACK))
            self.assertEqual(pool["grown"], 0)
            self.assertEqual(pool["physical_peak_bytes"], pool["slots"] * BYTES)
            self.assertEqual(pool["one_to_one_peak_bytes"], MICROBATCHES * BYTES)

    def test_training_is_bitwise_the_same_in_less_memory(self):
        for stages, variant in VARIANTS:
            for seed in (1, 2, 3):
                with self.subTest(stages=stages, variant=variant, seed=seed):
                    stock = self.train(stages, variant, seed=seed)
                    pooled = self.train(stages, variant, ["--mode", "enforce"], seed=seed)
                    self.assertEqual(training(pooled.stdout), training(stock.stdout))
                    self.assertEqual(pooled.stderr, "")
                    reports = self.take_reports()
                    self.assertEqual(len(reports), stages)
                    self.assert_quiet(reports)
                    for _, device in self.devices(reports):
                        self.check_classes(device)

    def test_depths_are_those_of_the_schedule(self):
        self.train(4, ["--schedule", "1f1b"], ["--mode", "enforce"])
        for report, device in self.devices(self.take_reports()):
            rank = report["process"]["rank"]
            depths = {pool["direction"]: pool["depth"] for pool in device["classes"]}
            wanted = {} if rank == 0 else {"activation": 4 - rank}
            if rank < 3:
                wanted["gradient"] = 1
            self.assertEqual(depths, wanted)

    def test_strict_mode_and_cupti_given_back(self):
        stock = self.train(2, ["--schedule", "1f1b"])
        for options in (["--strict"], ["--cupti", "learn"], ["--slack", "0"], ["--slack", "auto"]):
            with self.subTest(options):
                pooled = self.train(2, ["--schedule", "1f1b"], ["--mode", "enforce", *options])
                self.assertEqual(training(pooled.stdout), training(stock.stdout))
                for _, device in self.devices(self.take_reports()):
                    self.assertGreater(device["activations"], 0)
                    self.assertEqual(sum(device["conflicts"]["violated"].values()), 0)

    def test_a_plan_is_not_followed_where_uses_could_go_unseen(self):
        plan = os.path.join(self.folder, "blind-plan.json")
        self.assert_success(support.run([RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "3", "--microbatches", "8",
                                         "--buffer-bytes", "2MiB", "--slack", "0", "--output", plan]))
        for touch in ("now", "late"):
            variant = ["--message-bytes", "2MiB", "--lookalike", "before", "--lookalike-touch", touch]
            stock = self.train(3, variant)
            pooled = self.train(3, variant, ["--mode", "enforce", "--plan", plan, "--cupti", "off"])
            self.assertEqual(training(pooled.stdout), training(stock.stdout))
            self.assertIn("without CUPTI nothing is shared, by a plan or without", pooled.stderr)
            for _, device in self.devices(self.take_reports()):
                self.assertEqual((device["activations"], device["active"], device["planned"]), (0, False, False))

    def test_nothing_is_shared_where_uses_could_go_unseen(self):
        stock = self.train(2, ["--schedule", "1f1b"])
        pooled = self.train(2, ["--schedule", "1f1b"], ["--mode", "enforce", "--cupti", "off"])
        self.assertEqual(training(pooled.stdout), training(stock.stdout))
        for _, device in self.devices(self.take_reports()):
            self.assertEqual((device["activations"], device["active"]), (0, False))
            self.assertEqual(device["idle"]["reason"], "no_access_evidence")


class SizesTest(EnforceCase):
    """With sizes and slots of the user, which do not say when a message is done with: learned first, as without."""

    def test_shared_after_two_steps(self):
        for slots in (1, 4):
            options = ["--mode", "enforce", "--buffer-bytes", str(BYTES), "--slots", str(slots)]
            for seed, (stages, variant) in enumerate(VARIANTS):
                with self.subTest(stages=stages, variant=variant, slots=slots):
                    stock = self.train(stages, variant, seed=seed)
                    pooled = self.train(stages, variant, options, seed=seed)
                    self.assertEqual(training(pooled.stdout), training(stock.stdout))
                    reports = self.take_reports()
                    self.assert_quiet(reports)
                    for _, device in self.devices(reports):
                        self.assertFalse(device["planned"])
                        self.assertGreaterEqual(device["activation"]["step"], 2)
                        for pool in device["classes"]:
                            self.assertEqual((pool["slots"], pool["grown"]), (max(pool["depth"], slots), 0))
                            self.assertEqual(pool["physical_peak_bytes"], pool["slots"] * BYTES)

    def test_a_second_read_comes_late(self):
        """Two kinds of receives of one size from one peer, and an activation is read again when others have come."""
        for chunks, seed in ((2, 1), (2, 2), (4, 3)):
            for slots in (1, 2, 3):
                variant = ["--schedule", "interleaved_1f1b", "--chunks", str(chunks)]
                with self.subTest(chunks=chunks, slots=slots, seed=seed):
                    stock = self.train(2, variant, seed=seed)
                    pooled = self.train(2, variant, ["--mode", "enforce", "--buffer-bytes", str(BYTES), "--slots", str(slots)],
                                        seed=seed)
                    self.assertEqual(training(pooled.stdout), training(stock.stdout))
                    self.assert_quiet(self.take_reports())


class PlannedTest(EnforceCase):
    """By a plan: from the first step on, and from the first allocation."""

    def test_memory_is_never_taken(self):
        for stages, variant in VARIANTS:
            if stages == 2 and "interleaved" in variant[1]:
                continue  # where both neighbours are one rank, nothing is shared before two steps were seen
            for seed in (1, 2):
                with self.subTest(stages=stages, variant=variant, seed=seed):
                    name, chunks = variant[1], 2 if "interleaved" in variant[1] else 1
                    plan = self.paper_plan(name, stages * chunks, stages, 1)
                    stock = self.train(stages, variant, seed=seed)
                    pooled = self.train(stages, variant, ["--mode", "enforce", "--plan", plan], seed=seed)
                    self.assertEqual(training(pooled.stdout), training(stock.stdout))
                    reports = self.take_reports()
                    self.assert_quiet(reports)
                    for report, device in self.devices(reports):
                        rank, saved = report["process"]["rank"], 0
                        self.assertTrue(device["planned"])
                        for pool in device["classes"]:
                            self.assertEqual(pool["physical_peak_bytes"], pool["slots"] * BYTES)
                            saved += (MICROBATCHES - pool["slots"]) * BYTES
                        self.assertGreater(saved, 0)
                        self.assertEqual(peaks(stock.stdout)[rank] - peaks(pooled.stdout)[rank], saved)

    def test_a_launcher_is_no_rank_of_a_plan(self):
        """It loads the agent, too. Nobody needs to tell it which rank it is, and a plan made of the run is for the ranks alone."""
        command = [TRAINER, "--stages", "2", "--microbatches", str(MICROBATCHES), "--steps", str(STEPS), "--message-bytes", str(BYTES)]
        launched = [os.path.join(PROGRAMS, "host_program"), "launch", *command]
        self.run_program(launched, ["--mode", "observe"])
        plan = os.path.join(self.folder, "plan.json")
        self.assert_success(support.run([RECVPOOL, "report", "--plan", plan, self.reports_dir]))
        self.take_reports()
        stock = self.run_program(command)
        for path, refused in ((plan, None), (self.paper_plan(stages=4, ranks=4), "plan_rank_unknown")):
            with self.subTest(refused=refused):
                pooled = self.run_program(launched, ["--mode", "enforce", "--plan", path])
                self.assertEqual(training(pooled.stdout), training(stock.stdout))
                reports = {report["process"]["rank"]: report for report in self.take_reports()}
                launcher = reports.pop(None)
                self.assertEqual((launcher["enforcement"]["refused"], launcher["warnings"]), (None, []))
                self.assertEqual(sorted(reports), [0, 1])
                for report in reports.values():
                    self.assertEqual((report["enforcement"]["refused"] or {}).get("reason"), refused)
                    self.assertEqual(report["enforcement"]["totals"]["saved_peak_bytes"] > 0, refused is None)
                lines = pooled.stderr.splitlines()
                self.assertEqual(len(lines), 2 if refused else 0, pooled.stderr)
                for line in lines:
                    self.assertRegex(line, r"^recvpool: enforce: plan_rank_unknown: the plan is for a job of 4 ranks and this one has 2")

    def test_what_may_be_a_rank_is_told_what_is_missing(self):
        """With a communicator, or an allocation of a size of the plan."""
        for mode, size, told in (("late_module", "32MiB", True), ("no_nccl", "32MiB", False), ("no_nccl", "3MiB", False),
                                 ("no_nccl", "2MiB", True), ("no_nccl", "1MiB", True)):
            with self.subTest(mode, size=size):
                plan = os.path.join(self.folder, "sized-plan.json")
                self.assert_success(support.run([RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "2", "--microbatches", "4",
                                                 "--buffer-bytes", size, "--output", plan]))
                result = self.run_program([os.path.join(PROGRAMS, "host_program"), mode], ["--mode", "enforce", "--plan", plan],
                                          expect=4 if mode == "no_nccl" else 0)
                report, = self.take_reports()
                self.assertEqual((report["enforcement"]["refused"] or {}).get("reason"), "plan_rank_unknown" if told else None)
                self.assertEqual(result.stderr.count("plan_rank_unknown: the launcher does not say which rank"), told, result.stderr)

    def make_plan(self, stages, variant, *options):
        """The path of a plan made of an observed run."""
        plan = os.path.join(self.folder, "plan.json")
        self.train(stages, variant, ["--mode", "observe"])
        result = support.run([RECVPOOL, "plan", "--from-report", self.reports_dir, *options, "--output", plan])
        self.assert_success(result)
        self.take_reports()
        return plan

    def test_plan_of_an_earlier_run(self):
        plan = self.make_plan(4, ["--schedule", "1f1b"])
        stock = self.train(4, ["--schedule", "1f1b"])
        pooled = self.train(4, ["--schedule", "1f1b"], ["--mode", "enforce", "--plan", plan])
        self.assertEqual(training(pooled.stdout), training(stock.stdout))
        reports = self.take_reports()
        self.assert_quiet(reports)
        for report, device in self.devices(reports):
            rank = report["process"]["rank"]
            self.assertTrue(device["planned"])
            saved = sum((MICROBATCHES - pool["slots"]) * BYTES for pool in device["classes"])
            self.assertGreater(saved, 0)
            self.assertEqual(peaks(stock.stdout)[rank] - peaks(pooled.stdout)[rank], saved)

    def test_a_plan_of_another_size(self):
        """Nothing of it can be kept, and nothing is claimed that was not seen: no row of the plan's, no ratio."""
        for size in (2 * BYTES, BYTES // 2):
            with self.subTest(size=size):
                plan = os.path.join(self.folder, "other-plan.json")
                make = [RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "2", "--microbatches", str(MICROBATCHES)]
                self.assert_success(support.run([*make, "--buffer-bytes", str(size), "--output", plan]))
                stock = self.train(2, ["--schedule", "1f1b"])
                pooled = self.train(2, ["--schedule", "1f1b"], ["--mode", "enforce", "--plan", plan])
                self.assertEqual(training(pooled.stdout), training(stock.stdout))
                report = support.run([RECVPOOL, "report", self.reports_dir])
                self.assert_success(report)
                compared = support.run([RECVPOOL, "plan", "--compare", plan, self.reports_dir])
                self.assertEqual(compared.returncode, 1, compared.stdout)
                self.assertIn(f"rank 1, stage 1, activation: a buffer has {size} bytes in the plan and {BYTES} in the run\n",
                              compared.stdout)
                table = report.stdout.partition("ratio\n")[2]
                self.assertNotIn(f" {size / MIB:.1f} MiB  ", table.replace("of the plan", ""))
                self.assertIn("the run receives nothing of 1 of the plan's", report.stdout)
                for line in table.splitlines():
                    if line.startswith(("total", "0  ", "1  ")):
                        self.assertTrue(line.endswith("1.00"), line)
                for _, device in self.devices(self.take_reports()):
                    for pool in device["classes"]:
                        seen = pool["receive_bytes"] == BYTES
                        self.assertEqual(pool["buffers"], MICROBATCHES if seen else 0)
                        self.assertEqual(pool["minimum_bytes"], pool["slots"] * BYTES if seen else 0)

    def test_a_plan_of_more_microbatches(self):
        """Fewer buffers than the plan has could be those of another schedule: the plan is not followed."""
        plan = self.make_plan(2, ["--schedule", "1f1b", "--microbatches", "16"])
        stock = self.train(2, ["--schedule", "1f1b"])
        pooled = self.train(2, ["--schedule", "1f1b"], ["--mode", "enforce", "--plan", plan])
        self.assertEqual(training(pooled.stdout), training(stock.stdout))
        for _, device in self.devices(self.take_reports()):
            self.assertEqual((device["activations"], device["activation"]["step"], device["grown"]), (1, 2, 0))

    def test_more_in_flight_than_planned(self):
        plan = self.make_plan(4, ["--schedule", "1f1b"])
        stock = self.train(4, ["--schedule", "gpipe"])
        pooled = self.train(4, ["--schedule", "gpipe"], ["--mode", "enforce", "--plan", plan])
        self.assertEqual(training(pooled.stdout), training(stock.stdout))
        devices = self.devices(self.take_reports())
        self.assertGreater(sum(device["grown"] for _, device in devices), 0)
        reasons = {reason["reason"] for _, device in devices for reason in device["reasons"]}
        self.assertIn("more_in_flight", reasons)
        self.assertEqual(sum(sum(device["conflicts"]["violated"].values()) for _, device in devices), 0)


class ProgramTest(EnforceCase):
    """What a program does with its buffers besides training."""

    MODES = ["pointers", "double_free", "other_thread", "leave", "reset", "fork", "unseen_touch", "compiled_launch",
             "broadcast", "share", "registered", "driver_api", "peers"]

    def options(self):
        planned = ["--mode", "enforce", "--plan", self.paper_plan(), "--plan-rank", "1"]
        return [["--mode", "observe"], ["--mode", "enforce"],
                ["--mode", "enforce", "--buffer-bytes", str(BYTES), "--slots", "2"], planned, [*planned, "--strict"]]

    def program(self, mode, options=None, **extra):
        return self.run_program([os.path.join(PROGRAMS, "enforce_program"), mode], options, RPSIM_DEVICES="2", **extra)

    def test_the_program_sees_no_difference(self):
        for mode in self.MODES:
            alone = self.program(mode)
            for options in self.options():
                with self.subTest(mode=mode, options=options):
                    attached = self.program(mode, options)
                    self.assertEqual(attached.stdout, alone.stdout)
                    self.take_reports()

    def test_what_got_away_is_named(self):
        for mode, kind in (("share", "escaped_pointer"), ("double_free", "double_free")):
            with self.subTest(mode):
                self.program(mode, ["--mode", "enforce"])
                (_, device), = self.devices(self.take_reports())
                conflicts = device["conflicts"]
                self.assertEqual(conflicts["prevented"][kind] + conflicts["violated"][kind], 1)

    def test_no_wait_closes_a_circle(self):
        """A stream waits for a host function, or for a word, and that for the next receive. Where the last reader is behind
        it, only memory of its own helps; where it is before it, it is the reader alone that the receive waits for."""
        for mode, grown in (("host_function", 0), ("value_wait", 0), ("host_function_first", 1), ("value_wait_first", 1)):
            alone = self.program(mode)
            self.assertNotIn("stuck", alone.stdout)
            for options in (["--slack", "0"], ["--slack", "0", "--cupti", "learn"]):
                with self.subTest(mode=mode, options=options):
                    attached = self.program(mode, ["--mode", "enforce", *options])
                    self.assertEqual(attached.stdout, alone.stdout)
                    (_, device), = self.devices(self.take_reports())
                    self.assertGreater(device["activations"], 0)
                    self.assertEqual((device["grown"], device["receives_waited"]), (grown, 1 - grown))
                    self.assertEqual(device["conflicts"]["prevented"]["unordered_reuse"], 1)

    def test_the_first_call_of_a_thread_is_in_order(self):
        alone = self.program("thread_first_call")
        for options in (["--slack", "0"], ["--slack", "0", "--cupti", "learn"]):
            with self.subTest(options=options):
                attached = self.program("thread_first_call", ["--mode", "enforce", *options])
                self.assertEqual(attached.stdout, alone.stdout)
                (_, device), = self.devices(self.take_reports())
                self.assertGreater(device["activations"], 0)
                self.assertEqual((device["grown"], device["receives_waited"]), (0, 0))
                self.assertEqual(sum(device["conflicts"]["prevented"].values()), 0, device["conflicts"])

    def test_setuid_program_is_left_alone(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a program of another user's")
        program = shutil.copy(os.path.join(PROGRAMS, "enforce_program"), self.folder)
        os.chmod(self.folder, 0o755)
        os.chown(program, 65534, 65534)
        os.chmod(program, 0o4755)
        result = support.run([program, "driver_api"],
                             env=support.simulated(CUDA_INJECTION64_PATH=AGENT, RECVPOOL_REPORT_DIR=self.reports_dir))
        self.assert_success(result)
        self.assertFalse(os.path.exists(self.reports_dir))


class ThreadsTest(EnforceCase):
    """Threads that allocate, free, launch and receive at once. E2E_SECONDS makes it longer."""

    SECONDS = os.environ.get("E2E_SECONDS", "2")

    def test_threads(self):
        for options in (["--mode", "observe"], ["--mode", "enforce"],
                        ["--mode", "enforce", "--plan", self.paper_plan(), "--plan-rank", "1"]):
            with self.subTest(options):
                self.run_program([os.path.join(PROGRAMS, "enforce_threads"), self.SECONDS], options, seed=7)
                for report, device in self.devices(self.take_reports()):
                    self.assertEqual(report["warnings"], [])
                    self.assertEqual(sum(device["conflicts"]["violated"].values()), 0)


class GuardTest(EnforceCase):
    """A mistake is kept from doing harm; without the guard the same run is wrong."""

    def test_harm_is_prevented(self):
        variant = ["--schedule", "1f1b", "--mistake", "foreign-write"]
        stock = self.train(4, variant)
        guarded = self.train(4, variant, ["--mode", "enforce"])
        self.assertEqual(training(guarded.stdout), training(stock.stdout))
        devices = self.devices(self.take_reports())
        self.assertGreater(sum(device["conflicts"]["prevented"]["foreign_access"] for _, device in devices), 0)
        self.assertEqual(sum(sum(device["conflicts"]["violated"].values()) for _, device in devices), 0)
        command = [TRAINER, "--stages", "4", "--microbatches", str(MICROBATCHES), "--steps", str(STEPS),
                   "--message-bytes", str(BYTES), *variant]
        wrong = False
        for seed in range(1, 21):  # what overlaps is the scheduler's affair: one of them shows it
            result = support.run([RECVPOOL, "run", "--report-dir", self.reports_dir, "--mode", "enforce", "--", *command],
                                 env=support.simulated(RPSIM_SEED=str(seed), RECVPOOL_TEST_UNGUARDED="1"))
            wrong = result.returncode != 0 and training(result.stdout) != training(stock.stdout)
            if wrong:
                break
        self.assertTrue(wrong)

    def test_abort(self):
        variant = ["--schedule", "1f1b", "--mistake", "late-read"]
        command = [TRAINER, "--stages", "2", "--microbatches", str(MICROBATCHES), "--steps", str(STEPS),
                   "--message-bytes", str(BYTES), *variant]
        result = support.run([RECVPOOL, "run", "--report-dir", self.reports_dir, "--mode", "enforce", "--on-violation",
                              "abort", "--", *command], env=support.simulated(RPSIM_SEED="1"))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("the process ends", result.stderr)
        ended = [report for report in self.read_reports() if report["enforcement"]["totals"]["violations"]]
        self.assertTrue(ended)
        for report in ended:
            self.assertEqual(report["state"], "finished")
            self.assertIn("RECVPOOL_ON_VIOLATION=abort", " ".join(report["warnings"]))


if __name__ == "__main__":
    unittest.main()
