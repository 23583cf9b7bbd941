"""Real PyTorch in enforce mode: everything that runs on the device is the same, with the same contents of the receive
buffers that it names, and no more memory lies behind them than the agent says is needed.
TORCH_TEST_SCHEDULES, _RANKS and _MICROBATCHES choose a part, each a list with commas."""
import itertools
import os
import re

from jobs import Forks, agent
import launches
import support

BYTES = 10 << 20  # from here on, torch's allocator gives each buffer an allocation of its own
SLACK = 2
STEPS = 5


def chosen(name, default):
    return os.environ.get("TORCH_TEST_" + name, default).split(",")


class EnforcingTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.forks = Forks()

    @classmethod
    def tearDownClass(cls):
        cls.forks.close()

    def run_job(self, name, options, ranks, **variables):
        """Process ids, losses, and records of launches, by rank."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        pids, texts = self.forks.run("pipeline.py", options, ranks, folder, RPSIM_LAUNCH_LOG=folder, **variables)
        losses = [re.findall(r"step \d+ loss .*", text) for text in texts]
        warnings = [line for text in texts for line in text.splitlines() if "recvpool" in line]
        return pids, losses, [launches.read(folder, pid) for pid in pids], warnings

    def reports_of(self, name, pids):
        by_pid = {report["process"]["pid"]: report for report in self.read_reports(os.path.join(self.folder, name))}
        self.assertEqual(sorted(by_pid), sorted(pids))
        return [by_pid[pid] for pid in pids]

    def enforce(self, name, options, ranks, plain, **variables):
        """Runs the job in enforce mode, holds it against the plain one, and returns its reports."""
        reports = os.path.join(self.folder, "reports-" + name)
        pids, losses, ran, warnings = self.run_job(name, options, ranks, **agent(reports, RECVPOOL_MODE="enforce"), **variables)
        self.assertEqual((losses, warnings), (plain[1], []))
        problems = [line for rank in range(ranks) for line in launches.problems(ran[rank], plain[2][rank], f"rank {rank}")]
        self.assertEqual(problems, [], name)
        return self.reports_of("reports-" + name, pids)

    def check_quiet(self, reports):
        for report in reports:
            self.assertEqual((report["warnings"], report["enforcement"]["refused"]), ([], None))
            for device in report["enforcement"]["devices"]:
                self.assertIsNone(device["refused"])
                self.assertEqual(sum(device["conflicts"]["violated"].values()), 0, device["conflicts"])
                self.assertEqual(sum(device["conflicts"]["prevented"].values()), 0, device["conflicts"])

    def check_classes(self, reports, observed, microbatches):
        """What is held is what observing called needed."""
        for report, seen in zip(reports, observed, strict=True):
            wanted = {(c["direction"], c["peer"], c["stage_ordinal"]): c for c in seen["channels"]
                      if c["decision"]["poolable"]}
            pools = [pool for device in report["enforcement"]["devices"] for pool in device["classes"] if pool["slots"]]
            self.assertEqual(sorted((pool["buffers"], pool["slots"]) for pool in pools),
                             sorted((microbatches, c["slots"]) for c in wanted.values()))
            for pool in pools:
                self.assertEqual((pool["grown"], pool["physical_peak_bytes"]), (0, pool["slots"] * BYTES))

    def check(self, schedule, ranks, microbatches):
        options = ["--schedule", schedule, "--microbatches", str(microbatches), "--bytes", str(BYTES), "--steps", str(STEPS)]
        options += ["--stages-per-rank", "2"] * (schedule in ("Interleaved1F1B", "InterleavedZeroBubble"))
        plain = self.run_job("plain", options, ranks)
        folder = os.path.join(self.folder, "reports-observe")
        observed = self.reports_of("reports-observe", self.run_job("observe", options, ranks, **agent(folder))[0])
        auto = self.enforce("auto", options, ranks, plain)
        self.check_quiet(auto)
        self.check_classes(auto, observed, microbatches)
        plan = os.path.join(self.folder, "plan.json")
        self.assert_success(support.run([support.RECVPOOL, "plan", "--from-report", folder, "--output", plan]))
        planned = self.enforce("planned", options, ranks, plain, RECVPOOL_PLAN=plan)
        self.check_quiet(planned)
        self.check_classes(planned, observed, microbatches)


def add_tests():
    for schedule, ranks, microbatches in itertools.product(
            chosen("SCHEDULES", "GPipe,1F1B,Interleaved1F1B,InterleavedZeroBubble,ZBVZeroBubble,DualPipeV"),
            chosen("RANKS", "2,4"), chosen("MICROBATCHES", "8")):
        def test(self, schedule=schedule, ranks=int(ranks), microbatches=int(microbatches)):
            self.check(schedule, ranks, microbatches)
        setattr(EnforcingTest, f"test_{schedule}_R{ranks}_N{microbatches}", test)


add_tests()
