"""What the report says about a training run is what the trainer itself recorded, for the whole matrix of schedules,
allocation styles, recomputation, backward threads, stages and microbatches. E2E_SCHEDULE and E2E_ALLOCATION pick the part
that this process runs."""

import itertools
import os

import support
import truth
from support import RECVPOOL, TRAINER

SCHEDULE = os.environ.get("E2E_SCHEDULE", "1f1b")
ALLOCATION = os.environ.get("E2E_ALLOCATION", "preallocated")
STEPS = 4
SLACK = 2


class MatrixCase(support.TestCase):
    """Trains with the agent attached and compares its reports with the trainer's record."""

    def train(self, *options, seed=1):
        truth_dir = os.path.join(self.folder, "truth")
        os.makedirs(truth_dir)
        result = support.run(
            [RECVPOOL, "run", "--report-dir", self.reports_dir, "--min-bytes", "1", "--slack", str(SLACK), "--", TRAINER,
             "--truth-dir", truth_dir, "--steps", str(STEPS), *options],
            env=support.simulated(RPSIM_SEED=str(seed)))
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        return truth.read(truth_dir)

    def check(self, *options, ranks, seed=1, limits=()):
        records = self.train(*options, "--stages", str(ranks), seed=seed)
        self.assertEqual(len(records), ranks)
        reports = self.read_reports()
        self.assertEqual(sorted(report["process"]["pid"] for report in reports), sorted(records))
        problems = []
        for report in reports:
            self.assertEqual(report["state"], "finished")
            self.assertEqual(report["warnings"], [])
            problems += truth.compare(report, records[report["process"]["pid"]], SLACK, limits)
        if problems:
            self.fail("\n".join([" ".join(options)] + problems[:20] + [f"{len(problems)} differences"]))


class MatrixTest(MatrixCase):
    pass


def add_tests():
    seed = 0
    for ranks, microbatches, recompute, thread in itertools.product((2, 4), (2, 4, 8, 16), (False, True), (False, True)):
        options = ["--schedule", SCHEDULE, "--microbatches", str(microbatches), "--allocation", ALLOCATION]
        options += ["--recompute"] * recompute + ["--backward-thread"] * thread
        seed += 1

        def test(self, options=options, ranks=ranks, seed=seed):
            self.check(*options, ranks=ranks, seed=seed)
        name = f"S{ranks}_N{microbatches}" + "_recompute" * recompute + "_thread" * thread
        setattr(MatrixTest, "test_" + name, test)


add_tests()
