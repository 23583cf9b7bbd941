"""A torch that takes each receive buffer out of its cache just before its receive: nothing is claimed, nothing shared,
and training is not disturbed. The driver sees no memory come or go, but the same few blocks go round and hold other tensors
between two receives. Where none of those is sent (on the first rank, or with all blocks in use at once), they look like
buffers that are always all in use."""
import os
import unittest

from jobs import Forks, agent, preallocates, results
import support

OPTIONS = ["--microbatches", "8", "--bytes", str(10 << 20), "--steps", "4"]


@unittest.skipIf(preallocates(), "this torch allocates all receive buffers before the first step")
class JustInTimeTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.forks = Forks()

    @classmethod
    def tearDownClass(cls):
        cls.forks.close()

    def run_job(self, name, options, ranks, **variables):
        """What was computed, and reports by rank."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        reports = os.path.join(folder, "reports")
        _, texts = self.forks.run("pipeline.py", [*options, *OPTIONS], ranks, folder, **agent(reports, **variables))
        return ([results(text) for text in texts],
                sorted(self.read_reports(reports), key=lambda report: report["process"]["rank"]))

    def check(self, *options, ranks=2):
        """Reasons by rank."""
        computed, reports = self.run_job("observed", options, ranks)
        for channel in (channel for report in reports for channel in report["channels"]):
            self.assertEqual((channel["decision"]["poolable"], channel["would_save_bytes"]), (False, 0), channel["direction"])
        enforced_computed, enforced = self.run_job("enforced", options, ranks, RECVPOOL_MODE="enforce")
        self.assertEqual(enforced_computed, computed)
        for report in enforced:
            self.assertEqual(report["warnings"], [])
            for device in report["enforcement"]["devices"]:
                self.assertEqual((device["active"], device["saved_bytes"]), (False, 0))
        return [{channel["decision"]["reason"] for channel in report["channels"]} for report in reports]

    def test_1f1b(self):
        self.assertEqual(self.check("--schedule", "1F1B")[1], {"just_in_time"})

    def test_1f1b_of_four_ranks(self):
        self.assertEqual(self.check("--schedule", "1F1B", ranks=4)[1:], [{"just_in_time"}] * 3)

    def test_gpipe(self):
        self.check("--schedule", "GPipe")

    def test_interleaved(self):
        self.assertEqual(self.check("--schedule", "Interleaved1F1B", "--stages-per-rank", "2")[1], {"just_in_time"})
