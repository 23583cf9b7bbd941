"""Real PyTorch under the agent: what it reports about jobs of torch.distributed.pipelining is what their Python objects
were seen to do. TORCH_TEST_SCHEDULES, _RANKS and _MICROBATCHES choose a part, each a list with commas."""
import itertools
import os

from jobs import Forks, agent, only_where_it_preallocates
import agreement
import support
import truth

LOOPED = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SLACK = 2
# of one receive: from 10 MiB on, torch's allocator gives each an allocation of its own
BYTES = int(os.environ.get("TORCH_TEST_BYTES", 1 << 18))


def chosen(name, default):
    return os.environ.get("TORCH_TEST_" + name, default).split(",")


@only_where_it_preallocates
class PipelinesTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.forks = Forks()

    @classmethod
    def tearDownClass(cls):
        cls.forks.close()

    def train(self, schedule, ranks, microbatches, *options, **variables):
        for name in ("record", "reports"):
            os.makedirs(os.path.join(self.folder, name), exist_ok=True)
        arguments = ["--schedule", schedule, "--microbatches", str(microbatches), *options]
        arguments += ["--stages-per-rank", "2"] * (schedule in LOOPED)
        arguments += ["--record", os.path.join(self.folder, "record")]
        return self.forks.run("pipeline.py", arguments, ranks, self.folder, **agent(self.reports_dir), **variables)

    def check(self, schedule, ranks, microbatches, *options, shared, **variables):
        self.train(schedule, ranks, microbatches, *options, **variables)
        records = truth.read(os.path.join(self.folder, "record"))
        reports = self.read_reports()
        self.assertEqual(sorted(report["process"]["pid"] for report in reports), sorted(records))
        limits = (truth.STAGE_UNKNOWN,) if schedule in V_SHAPED else ()
        problems = []
        for report in reports:
            self.assertEqual((report["state"], report["warnings"]), ("finished", []))
            problems += agreement.problems(report, records[report["process"]["pid"]], SLACK, limits, shared)
        if problems:
            self.fail("\n".join([f"{schedule} {ranks} ranks {microbatches} microbatches"] + problems[:20] +
                                [f"{len(problems)} differences"]))


    def test_foreach_optimizer(self):
        self.check("1F1B", 2, 8, "--steps", "3", "--bytes", str(BYTES), "--foreach", shared=BYTES < 10 << 20)


def add_tests():
    for schedule, ranks, microbatches in itertools.product(
            chosen("SCHEDULES", "GPipe,1F1B,Interleaved1F1B,InterleavedZeroBubble,ZBVZeroBubble,DualPipeV"),
            chosen("RANKS", "2,4"), chosen("MICROBATCHES", "4,8,16")):
        if schedule == "DualPipeV" and int(microbatches) < 2 * int(ranks):
            continue  # torch refuses that
        def test(self, schedule=schedule, ranks=int(ranks), microbatches=int(microbatches)):
            self.check(schedule, ranks, microbatches, "--steps", "3", "--bytes", str(BYTES), shared=BYTES < 10 << 20)
        setattr(PipelinesTest, f"test_{schedule}_R{ranks}_N{microbatches}", test)


add_tests()
