"""`recvpool attach` on the processes that torchrun starts: from outside it sees the calls, N and D that the agent sees."""
import json
import os
import subprocess

from attach_support import AttachCase, reports_of
from jobs import HERE, SECONDS, environment, only_where_it_preallocates
import support

LARGE = str(12 << 20)  # bytes of a buffer with an allocation of its own
KINDS = ("alloc", "free", "recv", "send", "group_start", "group_end", "comm_init")


@only_where_it_preallocates
class TorchrunTest(AttachCase):
    def observe(self, schedule, ranks, *arguments):
        """Reports of the agent and of the observer, by process id, and the cross-check."""
        command = [support.RECVPOOL, "run", "--report-dir", self.reports_dir, "--", os.environ["TORCH_PYTHON"], "-m",
                   "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), os.path.join(HERE, "pipeline.py"),
                   "--schedule", schedule, "--bytes", LARGE, "--steps", "4"]
        job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *command], env=environment(), text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        observer = self.observer("--pid", str(job.pid), "--min-bytes", "64KiB", *arguments)
        output, _ = job.communicate("go\n", timeout=SECONDS)
        self.assertEqual(job.returncode, 0, output[-3000:])
        document = observer.finish(SECONDS)
        inside = {report["process"]["pid"]: report for report in self.read_reports() if report["channels"]}
        return inside, reports_of(document), document["observer"]

    def check(self, schedule, ranks):
        inside, outside, observer = self.observe(schedule, ranks)
        self.assertEqual(sorted(report["process"]["rank"] for report in inside.values()), list(range(ranks)))
        self.assertEqual(set(inside), set(outside))
        self.check_plan(ranks)
        self.assertEqual(set(observer["dropped_by_cpu"]), {0})
        self.assertGreaterEqual(observer["cross_checks"]["compared"], ranks)  # the launcher has the agent, too
        self.assertEqual(observer["cross_checks"]["differences"], 0)
        for pid, mine in outside.items():
            theirs = inside[pid]
            for kind in KINDS:
                self.assertEqual(mine["events"]["by_kind"][kind], theirs["events"]["by_kind"][kind], (pid, kind))
            self.assertEqual(mine["communicators"], theirs["communicators"])
            self.assertEqual(self.numbers(mine), self.numbers(theirs))

    def check_plan(self, ranks):
        """The launcher leaves a report, too, and is no rank."""
        self.assertIn(None, [report["process"]["rank"] for report in self.read_reports()])
        planned = support.run([support.RECVPOOL, "plan", "--from-report", self.reports_dir, "--json"])
        self.assert_success(planned)
        document = json.loads(planned.stdout)
        self.assertEqual((len(document["ranks"]), document["provenance"]["world_size"]), (ranks, ranks))

    def numbers(self, report):
        return sorted((c["direction"], c["peer"], c["buffers"], c["buffer_bytes"], c["depth"], c["transfers"])
                      for c in report["channels"])

    def test_1f1b(self):
        self.check("1F1B", 2)

    def test_1f1b_of_four_ranks(self):
        self.check("1F1B", 4)

    def test_gpipe(self):
        self.check("GPipe", 2)
