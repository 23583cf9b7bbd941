"""What users of PyTorch do beside training: the agent disturbs none of it and reports it for what it is. Each job runs
with the agent and without it; losses, parameters, and everything that ran on the device with the contents of the receive
buffers that it named, are the same."""
import json
import os

from jobs import HERE, SECONDS, Forks, agent, environment, only_where_it_preallocates, results
import agreement
import launches
import support
import truth

SLACK = 2
LARGE = ["--bytes", str(10 << 20)]  # buffers with allocations of their own
STEPS = ["--steps", "3"]


@only_where_it_preallocates
class FrameworkTest(support.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.forks = Forks()

    @classmethod
    def tearDownClass(cls):
        cls.forks.close()

    def make(self, name):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def run_job(self, name, options, ranks, **variables):
        """Process ids, what was computed, and records of launches, by rank."""
        folder = self.make(name)
        pids, texts = self.forks.run("pipeline.py", options, ranks, folder, RPSIM_LAUNCH_LOG=folder, **variables)
        return pids, [results(text) for text in texts], [launches.read(folder, pid) for pid in pids]

    def check(self, *options, ranks=2, record=True, **variables):
        """Runs a job without the agent and with it. Reports by rank."""
        options = [*STEPS, *options]
        _, plain_losses, plain = self.run_job("plain", options, ranks, **variables)
        reports = self.make("reports")
        pids, losses, ran = self.run_job("attached", options, ranks, **agent(reports), **variables)
        self.assertEqual(losses, plain_losses)
        problems = [line for rank in range(ranks) for line in launches.problems(ran[rank], plain[rank], f"rank {rank}")]
        self.assertEqual(problems, [])
        if record:  # in a run of its own: it holds what it sees, and so changes where the allocator puts things
            self.compare_with_record(options, ranks, variables)
        by_pid = {report["process"]["pid"]: report for report in self.read_reports(reports)}
        self.assertEqual(sorted(by_pid), sorted(pids))
        return [by_pid[pid] for pid in pids]

    def compare_with_record(self, options, ranks, variables):
        records, reports = self.make("records"), self.make("recorded")
        self.run_job("recording", [*options, "--record", records], ranks, **agent(reports), **variables)
        by_pid = truth.read(records)
        problems = []
        for report in self.read_reports(reports):
            problems += agreement.problems(report, by_pid[report["process"]["pid"]], SLACK)
        self.assertEqual(problems, [])

    def decisions(self, report):
        return {channel["direction"]: channel["decision"]["reason"] for channel in report["channels"]}

    def test_plain(self):
        reports = self.check("--microbatches", "8", *LARGE)
        self.assertEqual([self.decisions(report) for report in reports], [{"gradient": "poolable"}, {"activation": "poolable"}])

    def test_gpipe_keeps_its_activations(self):
        reports = self.check("--schedule", "GPipe", "--microbatches", "8", *LARGE)
        self.assertEqual([self.decisions(report) for report in reports],
                         [{"gradient": "poolable"}, {"activation": "unbounded_depth"}])

    def test_checkpointing(self):
        reports = self.check("--microbatches", "8", "--checkpoint", *LARGE)
        self.assertEqual(self.decisions(reports[1]), {"activation": "poolable"})

    def test_empty_cache_between_steps(self):
        reports = self.check("--microbatches", "8", "--empty-cache", *LARGE)
        self.assertEqual(self.decisions(reports[1]), {"activation": "poolable"})

    def test_profiler_in_the_same_process(self):
        reports = self.check("--microbatches", "8", "--profile", *LARGE)
        self.assertEqual(self.decisions(reports[1]), {"activation": "poolable"})

    def test_kept_references_change_nothing(self):
        reports = self.check("--microbatches", "8", "--keep", "hold", *LARGE)
        self.assertEqual(self.decisions(reports[1]), {"activation": "poolable"})

    def test_kept_and_read_after_the_step_is_not_poolable(self):
        reports = self.check("--microbatches", "8", "--keep", "read", *LARGE)
        self.assertEqual(self.decisions(reports[1]), {"activation": "unbounded_depth"})

    def test_a_stage_that_returns_its_input(self):
        self.check("--microbatches", "8", "--pass-through", *LARGE, ranks=3)

    def test_evaluation_between_steps(self):
        reports = self.check("--microbatches", "8", "--evaluate", *LARGE, record=False)
        self.assertFalse(any(report["channels"][0]["decision"]["poolable"] and report["channels"][0]["depth_max"] < 1
                             for report in reports))

    def test_expandable_segments(self):
        self.check("--microbatches", "8", *LARGE, record=False, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


class TorchrunTest(support.TestCase):
    """Four ranks from torch's launcher."""

    def launch(self, prefix, **variables):
        command = [*prefix, os.environ["TORCH_PYTHON"], "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", "4", os.path.join(HERE, "pipeline.py"), *STEPS, "--microbatches", "4"]
        return support.run(command, env=environment(**variables), timeout=SECONDS)

    def check_reports(self, result):
        self.assert_success(result)
        reports = [report for report in self.read_reports() if report["channels"]]
        self.assertEqual(sorted(report["process"]["rank"] for report in reports), [0, 1, 2, 3])
        merged = support.run([support.RECVPOOL, "report", "--json", self.reports_dir])
        self.assert_success(merged)
        self.assertIn('"rank"', merged.stdout)
        return json.loads(merged.stdout)

    def test_under_recvpool_run(self):
        self.check_reports(self.launch([support.RECVPOOL, "run", "--report-dir", self.reports_dir, "--"]))

    def test_with_the_variable_only(self):
        self.check_reports(self.launch([], **agent(self.reports_dir)))
