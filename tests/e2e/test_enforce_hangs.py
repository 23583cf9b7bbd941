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
    def attached(self, mode, options, seed):
        command = [RECVPOOL, "run", "--report-dir", self.reports_dir, "--mode", "enforce", *options, "--", PROGRAM, mode]
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
        devices = [device for report in self.read_reports() for device in report["enforcement"]["devices"]]
        self.assertGreater(sum(device["activations"] for device in devices), 0)
        for device in devices:
            self.assertEqual(sum(device["conflicts"]["violated"].values()), 0)


if __name__ == "__main__":
    unittest.main()
