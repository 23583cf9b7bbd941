"""NVTX ranges of the framework become labels of receives, where the program routes NVTX to CUPTI itself."""

import os

import support
from support import RECVPOOL, SIMLIB, TRAINER


class LabelsTest(support.TestCase):
    def reports(self, **environment):
        self.assert_success(support.run(
            [RECVPOOL, "run", "--report-dir", self.reports_dir, "--min-bytes", "1024", "--", TRAINER, "--stages", "2",
             "--microbatches", "4", "--schedule", "interleaved_1f1b", "--message-bytes", "4KiB"],
            env=support.simulated(**environment)))
        return self.read_reports()

    def nvtx(self, report):
        return next(source for source in report["evidence"] if source["name"] == "nvtx")

    def test_receives_carry_the_names_of_their_ranges(self):
        for report in self.reports(NVTX_INJECTION64_PATH=os.path.join(SIMLIB, "libcupti.so.13")):
            self.assertTrue(self.nvtx(report)["active"])
            self.assertGreater(report["events"]["by_kind"]["label"], 0)
            for channel in report["channels"]:
                stage = channel["stage_ordinal"] * 2 + report["process"]["rank"]
                letter = {"activation": "F", "gradient": "B"}[channel["direction"]]
                for lifetime in channel["lifetimes"]:
                    self.assertEqual(lifetime["label"], f"PP:{stage}RECV_{letter}{lifetime['microbatch']}")

    def test_nvtx_is_never_switched_on(self):
        for report in self.reports():
            self.assertFalse(self.nvtx(report)["active"])
            self.assertIn("not routed", self.nvtx(report)["reason"])
            self.assertEqual({lifetime["label"] for c in report["channels"] for lifetime in c["lifetimes"]}, {None})
