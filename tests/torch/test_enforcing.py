"""Real PyTorch in enforce mode: losses, parameters and everything that runs on the device are the same, with the same
contents of the receive buffers that it names, and no more memory lies behind them than the agent says is needed: the
driver's own count is less than without the agent by what the agent says it saved. Which jobs: cells.py."""
import functools
import math
import os
import unittest

from cells import LOOPED, add_tests
from jobs import Forks, agent, held_bytes, only_where_it_preallocates, results
import launches
import support

BYTES = 10 << 20  # from here on, torch's allocator gives each buffer an allocation of its own
STEPS = 5


@functools.cache
def forks():
    """For the jobs of all classes: importing torch takes long."""
    made = Forks()
    unittest.addModuleCleanup(made.close)
    return made


class EnforcingCase(support.TestCase):
    def run_job(self, name, options, ranks, **variables):
        """Process ids, what was computed, records of launches, bytes held at the end, by rank; and lines of the agent."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        pids, texts = forks().run("pipeline.py", options, ranks, folder, RPSIM_LAUNCH_LOG=folder, **variables)
        warnings = [line for text in texts for line in text.splitlines() if "recvpool" in line]
        ran, held = [launches.read(folder, pid) for pid in pids], [held_bytes(text) for text in texts]
        return pids, [results(text) for text in texts], ran, held, warnings

    def reports_of(self, name, pids):
        by_pid = {report["process"]["pid"]: report for report in self.read_reports(os.path.join(self.folder, name))}
        self.assertEqual(sorted(by_pid), sorted(pids))
        return [by_pid[pid] for pid in pids]

    def enforce(self, name, options, ranks, plain, **variables):
        """Runs the job in enforce mode, unless told otherwise, holds it against the plain one, and returns its reports. Seeds
        make streams run in different orders."""
        attached = agent(os.path.join(self.folder, "reports-" + name), **{"RECVPOOL_MODE": "enforce", **variables})
        pids, computed, ran, held, warnings = self.run_job(name, options, ranks, RPSIM_SEED=str(ranks), **attached)
        self.assertEqual((computed, warnings), (plain[1], []))
        problems = [line for rank in range(ranks) for line in launches.problems(ran[rank], plain[2][rank], f"rank {rank}")]
        self.assertEqual(problems, [], name)
        reports = self.reports_of("reports-" + name, pids)
        saved = [sum(device["saved_bytes"] or 0 for device in report["enforcement"]["devices"]) for report in reports]
        self.assertEqual([before - now for before, now in zip(plain[3], held, strict=True)], saved, name)
        return reports

    def check_quiet(self, reports):
        for report in reports:
            self.assertEqual((report["warnings"], report["enforcement"]["refused"]), ([], None))
            for device in report["enforcement"]["devices"]:
                self.assertIsNone(device["refused"])
                done = sum(device["conflicts"]["violated"].values()) + sum(device["conflicts"]["prevented"].values())
                self.assertEqual(done, 0, device["conflicts"])

    def pools(self, report):
        return [pool for device in report["enforcement"]["devices"] for pool in device["classes"] if pool["slots"]]

    def check_auto(self, reports, microbatches):
        """All buffers of every channel that is poolable share exactly its K slots."""
        for report in reports:
            wanted = [channel for channel in report["channels"] if channel["decision"]["poolable"]]
            pools = self.pools(report)
            self.assertEqual(sorted((pool["buffers_bound"], pool["depth"], pool["slots"]) for pool in pools),
                             sorted((microbatches, channel["depth_max"], channel["slots"]) for channel in wanted))
            for pool in pools:
                self.assertEqual((pool["grown"], pool["physical_peak_bytes"]), (0, pool["slots"] * BYTES))

    def check_planned(self, reports, observed, microbatches):
        """The same in the end, blocks among them that torch had used for something else before they became receive buffers:
        they have memory of their own until steps repeat themselves."""
        for report, seen in zip(reports, observed, strict=True):
            wanted = [channel for channel in seen["channels"] if channel["decision"]["poolable"]]
            pools = [pool for pool in self.pools(report) if pool["slots"] < pool["buffers"]]
            self.assertEqual(sorted(pool["slots"] for pool in pools), sorted(channel["slots"] for channel in wanted))
            self.assertEqual({pool["buffers_bound"] for pool in pools}, {microbatches} if pools else set())
            for pool in pools:
                self.assertLessEqual(pool["physical_peak_bytes"], (pool["slots"] + pool["grown"]) * BYTES)

    def check_minimum(self, reports, observed):
        """No more memory than K slots is left behind the buffers of each channel that is poolable."""
        for report, seen in zip(reports, observed, strict=True):
            channels = [channel for channel in seen["channels"] if channel["decision"]["poolable"]]
            self.assertEqual(sum(device["saved_bytes"] for device in report["enforcement"]["devices"]),
                             sum((channel["buffers"] - channel["slots"]) * BYTES for channel in channels))

    def make_plan(self, *source):
        path = os.path.join(self.folder, "plan.json")
        self.assert_success(support.run([support.RECVPOOL, "plan", *source, "--output", path]))
        return path

    def check_both(self, options, ranks, microbatches):
        """Auto, and planned from its reports. What each rank computed."""
        plain = self.run_job("plain", options, ranks)
        auto = self.enforce("auto", options, ranks, plain)
        self.check_quiet(auto)
        self.check_auto(auto, microbatches)
        self.check_minimum(auto, auto)
        plan = self.make_plan("--from-report", os.path.join(self.folder, "reports-auto"))
        planned = self.enforce("planned", options, ranks, plain, RECVPOOL_PLAN=plan)
        self.check_quiet(planned)
        self.check_planned(planned, auto, microbatches)
        self.check_minimum(planned, auto)
        return plain[1]


@only_where_it_preallocates
class EnforcingTest(EnforcingCase):
    def check(self, schedule, ranks, microbatches):
        options = ["--schedule", schedule, "--microbatches", str(microbatches), "--bytes", str(BYTES), "--steps", str(STEPS)]
        options += ["--stages-per-rank", "2"] * (schedule in LOOPED)
        self.check_both(options, ranks, microbatches)


@only_where_it_preallocates
class TransformerTest(EnforcingCase):
    """Matrix products come from a library with a CUDA runtime of its own, whose calls nobody can stop."""

    def test_1f1b(self):
        options = ["--transformer", "--microbatches", "4", "--bytes", str(BYTES), "--steps", str(STEPS)]
        computed = self.check_both(options, 2, 4)
        losses = [float(line.split()[3]) for line in computed[1] if line.startswith("step")]
        self.assertEqual((len(losses), len(set(losses))), (STEPS, STEPS))
        self.assertTrue(all(map(math.isfinite, losses)), losses)


@only_where_it_preallocates
class SmallBuffersTest(EnforcingCase):
    """Receive buffers of less than 10 MiB lie in segments of 20 MiB, those of less than 1 MiB in segments of 2 MiB, beside each
    other and beside other things."""

    def check_shares_nothing(self, reports, size):
        self.check_quiet(reports)
        for report in reports:
            (channel,) = report["channels"]
            held = channel["buffers"] * size
            self.assertEqual((channel["decision"]["poolable"], channel["decision"]["reason"]), (False, "shared_allocation"))
            self.assertEqual((channel["held_bytes"], channel["unreachable_bytes"], channel["would_save_bytes"]), (held, held, 0))
            self.assertEqual(report["totals"]["would_save_bytes"], 0)
            for device in report["enforcement"]["devices"]:
                # in observe mode nothing is measured, so nothing is said
                self.assertEqual((device["active"], device["saved_bytes"] or 0), (False, 0))

    def check(self, size):
        options = ["--microbatches", "8", "--bytes", str(size), "--steps", str(STEPS)]
        plain = self.run_job("plain", options, 2)
        self.check_shares_nothing(self.enforce("observed", options, 2, plain, RECVPOOL_MODE="observe"), size)
        auto = self.enforce("auto", options, 2, plain)
        self.check_shares_nothing(auto, size)
        self.assertEqual({device["idle"]["reason"] for report in auto for device in report["enforcement"]["devices"]},
                         {"shared_allocation"})
        plan = self.make_plan("--schedule", "1f1b", "--stages", "2", "--microbatches", "8", "--buffer-bytes", str(size))
        self.check_shares_nothing(self.enforce("planned", options, 2, plain, RECVPOOL_PLAN=plan), size)

    def test_4_mib(self):
        self.check(4 << 20)

    def test_256_kib(self):
        self.check(256 << 10)


add_tests(EnforcingTest, "GPipe,1F1B,Interleaved1F1B,InterleavedZeroBubble,LoopedBFS,ZBVZeroBubble,DualPipeV")
