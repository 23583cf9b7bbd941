"""A torch that takes each receive buffer out of its cache just before its receive: nothing is claimed, nothing shared,
and training is not disturbed. As the driver sees no memory come or go, the few blocks that go round look like buffers that
are all in use (unbounded_depth) and not like just_in_time."""
import os
import re
import unittest

from jobs import Forks, agent, preallocates
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

    def run_job(self, name, options, **variables):
        """Losses, and reports by process."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        reports = os.path.join(folder, "reports")
        _, texts = self.forks.run("pipeline.py", [*options, *OPTIONS], 2, folder, **agent(reports, **variables))
        return [re.findall(r"step \d+ loss .*", text) for text in texts], self.read_reports(reports)

    def check(self, *options):
        losses, reports = self.run_job("observed", options)
        for channel in (channel for report in reports for channel in report["channels"]):
            self.assertEqual((channel["decision"]["poolable"], channel["would_save_bytes"]), (False, 0), channel["direction"])
        enforced_losses, enforced = self.run_job("enforced", options, RECVPOOL_MODE="enforce")
        self.assertEqual(enforced_losses, losses)
        for report in enforced:
            self.assertEqual(report["warnings"], [])
            for device in report["enforcement"]["devices"]:
                self.assertEqual((device["active"], device["saved_bytes"]), (False, 0))
        return reports

    def test_1f1b(self):
        reports = self.check("--schedule", "1F1B")
        self.assertEqual(sum(len(report["channels"]) for report in reports), 2)

    def test_gpipe(self):
        self.check("--schedule", "GPipe")

    def test_interleaved(self):
        self.check("--schedule", "Interleaved1F1B", "--stages-per-rank", "2")
