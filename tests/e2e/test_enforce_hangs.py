"""Programs whose later work waits for the host, or for another rank: only the uses of a slot are waited for before it is
used again, never what the program has queued behind them. Where something is held up all the same, nothing moves, and the
program says so."""

import os
import unittest

import support
from support import PROGRAMS, RECVPOOL

PROGRAM = os.path.join(PROGRAMS, "enforce_hangs")
MODES = ["grow", "grow_unseen", "scratch", "gone_stream", "other_thread", "other_rank"]
WAYS = [["--slack", "0"], [], ["--slack", "0", "--cupti", "learn"]]  # the last one with wrappers alone, once it has learned


class HangsTest(support.TestCase):
    def attached(self, mode, options, seed, how="enforce"):
        command = [RECVPOOL, "run", "--report-dir", self.reports_dir, "--mode", how, *options, "--", PROGRAM, mode]
        return support.run(command, env=support.simulated(RPSIM_SEED=str(seed)))

    def test_nobody_waits_for_what_comes_behind(self):
        for mode in MODES:
            alone = support.run([PROGRAM, mode], env=support.simulated())
            self.assert_success(alone)
            ways = [way for way in WAYS if mode != "grow_unseen" or "learn" not in way]
            for seed, options in enumerate(ways, start=1):
                with self.subTest(mode=mode, options=options):
                    self.reports_dir = os.path.join(self.folder, f"{mode}{seed}")
                    result = self.attached(mode, options, seed)
                    self.assertEqual((result.returncode, result.stdout, result.stderr), (0, alone.stdout, ""))
                    self.check_shared()

    def check_shared(self):
        """A test in which nothing shares memory would show nothing."""
        reports = self.read_reports()
        milestones = [report["enforcement"]["milestones"] for report in reports]
        self.assertGreater(sum(counts["placed"] for counts in milestones), 0)
        self.assertGreater(sum(counts["waits"] for counts in milestones), 0)
        self.assertEqual(sum(counts["failed"] for counts in milestones), 0)
        devices = [device for report in reports for device in report["enforcement"]["devices"]]
        self.assertGreater(sum(device["activations"] for device in devices), 0)
        for device in devices:
            self.assertEqual(sum(device["conflicts"]["violated"].values()), 0)

    def test_where_nothing_is_shared_no_event_is_recorded(self):
        alone = support.run([PROGRAM, "records"], env=support.simulated())
        self.assert_success(alone)
        for how, options in (("observe", []), ("enforce", ["--buffer-bytes", "64MiB", "--slots", "1"])):
            with self.subTest(how):
                self.reports_dir = os.path.join(self.folder, how)
                result = self.attached("records", options, 1, how)
                self.assertEqual((result.returncode, result.stdout), (0, alone.stdout), result.stderr)
                [report] = self.read_reports()
                shadow = how == "observe"
                self.assertEqual(report["enforcement"]["milestones"]["placed"] > 0, shadow)
        with self.subTest("shared"):
            self.reports_dir = os.path.join(self.folder, "shared")
            result = self.attached("records", [], 1)
            [report] = self.read_reports()
            counts = report["enforcement"]["milestones"]
            alone_count, count = (int(output.split()[-2]) for output in (alone.stdout, result.stdout))
            self.assertGreaterEqual(count, alone_count + counts["placed"])


if __name__ == "__main__":
    unittest.main()
