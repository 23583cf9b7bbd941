"""Real PyTorch under the agent: what it reports about jobs of torch.distributed.pipelining is what their Python objects
were seen to do. Which jobs: cells.py."""
import os

from jobs import Forks, agent, only_where_it_preallocates
import agreement
from cells import LOOPED, V_SHAPED, add_tests
import support
import truth

SLACK = 2
OWN_ALLOCATION = 10 << 20  # from so many bytes on, torch's allocator gives a receive buffer one
BYTES = int(os.environ.get("TORCH_TEST_BYTES", 1 << 18))  # of one receive


@only_where_it_preallocates
class PipelinesTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.forks = Forks()

    @classmethod
    def tearDownClass(cls):
        cls.forks.close()

    def train(self, schedule, ranks, microbatches, *options):
        for name in ("record", "reports"):
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        arguments = ["--schedule", schedule, "--microbatches", str(microbatches), *options]
        arguments += ["--stages-per-rank", "2"] * (schedule in LOOPED)
        arguments += ["--record", os.path.join(self.folder, "record")]
        return self.forks.run("pipeline.py", arguments, ranks, self.folder, **agent(self.reports_dir))

    def check(self, schedule, ranks, microbatches, *options):
        self.train(schedule, ranks, microbatches, "--steps", "3", "--bytes", str(BYTES), *options)
        records = truth.read(os.path.join(self.folder, "record"))
        reports = self.read_reports()
        self.assertEqual(sorted(report["process"]["pid"] for report in reports), sorted(records))
        limits = (truth.STAGE_UNKNOWN,) if schedule in V_SHAPED else ()
        problems = []
        for report in reports:
            self.assertEqual((report["state"], report["warnings"]), ("finished", []))
            problems += agreement.problems(report, records[report["process"]["pid"]], SLACK, limits, BYTES < OWN_ALLOCATION)
        if problems:
            self.fail("\n".join([f"{schedule} {ranks} ranks {microbatches} microbatches"] + problems[:20] +
                                [f"{len(problems)} differences"]))

    def test_foreach_optimizer(self):
        self.check("1F1B", 2, 8, "--foreach")


add_tests(PipelinesTest, "GPipe,1F1B,Interleaved1F1B,InterleavedZeroBubble,ZBVZeroBubble,DualPipeV")
