"""An attached run computes, prints and allocates exactly what an unattached one does."""

import os

import support
from support import AGENT, RECVPOOL, TRAINER

VARIANTS = [
    ["--schedule", "gpipe"],
    ["--schedule", "1f1b"],
    ["--schedule", "1f1b", "--allocation", "just_in_time"],
    ["--schedule", "1f1b", "--recompute", "--backward-thread", "--message-bytes", "64KiB"],
    ["--schedule", "1f1b", "--driver-api", "--own-stream"],
    ["--schedule", "interleaved_1f1b"],
    ["--schedule", "looped_bfs", "--backward-thread"],
]


class EqualityTest(support.TestCase):
    def train(self, variant, prefix=(), **extra):
        return support.run([*prefix, TRAINER, "--stages", "4", "--microbatches", "8", "--steps", "3", *variant],
                           env=support.simulated(RPSIM_SEED="7", **extra))

    def test_output_is_bitwise_equal(self):
        for index, variant in enumerate(VARIANTS):
            with self.subTest(" ".join(variant)):
                alone = self.train(variant)
                self.assert_success(alone)
                self.assertIn("parameters", alone.stdout)
                reports = os.path.join(self.folder, str(index))
                attached = self.train(variant, [RECVPOOL, "run", "--min-bytes", "1", "--report-dir", reports, "--"])
                self.assertEqual((attached.returncode, attached.stdout, attached.stderr),
                                 (alone.returncode, alone.stdout, alone.stderr))
                self.assertEqual(len(self.read_reports(reports)), 4)

    def test_attaching_by_hand_means_the_same(self):
        alone = self.train(VARIANTS[1])
        attached = self.train(VARIANTS[1], CUDA_INJECTION64_PATH=AGENT, RECVPOOL_REPORT_DIR=self.reports_dir,
                              RECVPOOL_MIN_BYTES="1")
        self.assertEqual((attached.returncode, attached.stdout, attached.stderr),
                         (alone.returncode, alone.stdout, alone.stderr))
        reports = self.read_reports()
        self.assertEqual(len(reports), 4)
        self.assertTrue(all(report["channels"] for report in reports))

    def test_off_switches(self):
        alone = self.train(VARIANTS[1])
        for extra in ({"CUDA_INJECTION64_PATH": "none"}, {"CUDA_INJECTION64_PATH": AGENT, "RECVPOOL_MODE": "off"}):
            with self.subTest(extra):
                attached = self.train(VARIANTS[1], RECVPOOL_REPORT_DIR=self.reports_dir, **extra)
                self.assertEqual((attached.returncode, attached.stdout, attached.stderr),
                                 (alone.returncode, alone.stdout, alone.stderr))
                self.assertFalse(any(report["channels"] for report in self.read_reports()))

    def test_the_comparison_can_fail(self):
        a, b = self.train(VARIANTS[1]), self.train([*VARIANTS[1], "--seed", "2"])
        self.assertNotEqual(a.stdout, b.stdout)
