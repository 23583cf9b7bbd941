"""Programs that are correct and treat their receive buffers in uncommon ways: they compute the same, no alarm is given that
is not proven, and where nothing is shared the report says truly why."""

import json
import os
import re
import shutil
import unittest

import enforcing
import support
from support import PROGRAMS, RECVPOOL

BUFFERS = 6


class OddTest(support.TestCase):
    def program(self, mode, options=(), expect=0, seed=1, **extra):
        """The one device of the report; the output is that of the program alone, where it is right."""
        shutil.rmtree(self.reports_dir, ignore_errors=True)
        command = [os.path.join(PROGRAMS, "enforce_odd"), mode]
        alone = support.run(command, env=support.simulated(RPSIM_SEED=str(seed), **extra))
        self.assert_success(alone)
        result = support.run([RECVPOOL, "run", "--report-dir", self.reports_dir, "--mode", "enforce", "--slack", "0",
                              *map(str, options), "--", *command], env=support.simulated(RPSIM_SEED=str(seed), **extra))
        self.assertEqual(result.returncode, expect, f"{result.stdout}\n{result.stderr}")
        self.assertEqual(result.stdout, alone.stdout)
        (report,) = self.read_reports()
        (device,) = report["enforcement"]["devices"]
        return device

    BRIM = {"RPSIM_DEVICE_BYTES": str(64 * enforcing.MIB)}

    def test_at_the_brim_the_reason_gets_out(self):
        """The program took what sharing had set free, and one buffer needs memory of its own; it ends where that fails."""
        command = [os.path.join(PROGRAMS, "enforce_odd"), "brim"]
        result = support.run([RECVPOOL, "run", "--report-dir", self.reports_dir, "--mode", "enforce", "--slack", "0", "--", *command],
                             env=support.simulated(RPSIM_SEED="1", **self.BRIM))
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertIn("recvpool: a call was refused to keep its data: ", result.stderr)
        self.assertIn("out of memory", result.stderr.lower().replace("_", " "))

    def test_at_the_brim_with_headroom(self):
        device = self.program("brim", ["--headroom", 1], **self.BRIM)  # whole buffers
        self.assertEqual((device["headroom_used"], device["headroom_bytes"], device["grown"]), (1, 0, 0))
        self.assertEqual(self.counts(device), [{}, {}])

    def test_memory_pools_of_the_driver(self):
        device = self.program("temporaries")
        self.assertTrue(device["active"])
        self.assertEqual(self.counts(device), [{}, {}])
        device = self.program("pooled")
        self.assertFalse(device["active"])

    def test_pointers_in_device_memory(self):
        """Reads that nobody can see are no evidence of release."""
        device = self.program("table")
        self.assertEqual((device["active"], device["idle"]["reason"]), (False, "no_access_evidence"))
        self.assertEqual(self.counts(device), [{}, {}])

    def test_values_in_memory_order_streams(self):
        """That cannot be followed: the guard's own waits come on top, and nothing goes wrong or stands still."""
        for seed in range(1, 4):
            with self.subTest(seed=seed):
                device = self.program("values", seed=seed)
                self.assertEqual((device["activations"], self.counts(device)[1]), (1, {}))

    def test_how_long_receives_waited(self):
        device = self.program("ahead")
        self.assertEqual(self.counts(device)[1], {})
        self.assertGreater(device["receives_waited"], 0)
        self.assertGreater(device["waits_timed"], 0)
        self.assertGreater(device["wait_seconds"], 0)

    def test_slack_is_found(self):
        device = self.program("ahead", ["--slack", "auto"])
        self.assertEqual(self.counts(device)[1], {})
        self.assertEqual(device["grown"], 0)

    def counts(self, device):
        return [enforcing.nonzero(device["conflicts"][which]) for which in ("prevented", "violated")]

    def test_a_kernel_writes_a_recycled_buffer(self):
        device = self.program("recycled")
        self.assertEqual(self.counts(device), [{}, {}])
        unclear = device["conflicts"]["unclear"]
        self.assertEqual((unclear["count"], unclear["too_late"]), (1, 0))
        (use,) = unclear["kept"]
        self.assertEqual((use["kind"], use["later"]["function"]), ("unclear_access", "_Z4fillPhi"))
        self.assertEqual((device["active"], device["buffers_private"], device["fallbacks"]), (True, 3, 0))  # two of the program are no receive buffers
        text = support.run([RECVPOOL, "report", self.reports_dir]).stdout
        self.assertIn("1 launch was given a buffer whose data was gone", text)

    def test_a_late_read_of_a_batch_counts_once(self):
        device = self.program("late_batch", expect=enforcing.UNSAFE)
        self.assertEqual(self.counts(device), [{}, {"stale_access": 1}])

    def test_halves(self):
        for mode in ("halves", "halves_later"):
            with self.subTest(mode):
                device = self.program(mode)
                self.assertEqual(device["idle"]["reason"], "shared_allocation")
                self.assertEqual(self.counts(device), [{}, {}])

    def test_nonblocking(self):
        for seed in range(1, 4):
            with self.subTest(seed=seed):
                device = self.program("nonblocking", seed=seed)
                self.assertTrue(device["active"])
                (pool,) = device["classes"]
                self.assertEqual((pool["buffers"], pool["slots"], pool["grown"]), (BUFFERS, 1, 0))
                self.assertEqual(self.counts(device)[1], {})


class TwoCommunicatorsTest(enforcing.EnforcingCase):
    """Activations over one communicator, gradients over another one: as much is shared as over one for both, and of the
    same directions."""

    def held(self, stages, more):
        arguments = ["--stages", stages, "--microbatches", 6, "--steps", 4, "--message-bytes", 2 * enforcing.MIB, *more]
        run = self.train(arguments, ["--mode", "enforce", "--slack", 0])
        self.check_same(run, arguments)
        self.check_quiet(run)
        self.assertTrue(all(device["activations"] for device in run.devices().values()))
        return {rank: sorted((pool["direction"], pool["buffers"], pool["slots"]) for pool in device["classes"])
                for rank, device in run.devices().items()}

    def test_as_much_is_shared(self):
        for stages in (2, 3):
            with self.subTest(stages=stages):
                self.assertEqual(self.held(stages, ["--two-communicators"]), self.held(stages, []))


class NothingSharedTest(enforcing.EnforcingCase):
    SHAPE = ["--stages", 2, "--microbatches", 6, "--steps", 3, "--message-bytes", 2 * enforcing.MIB]

    def test_a_size_that_nothing_has(self):
        for more in ([], ["--slots", 2]):
            with self.subTest(more):
                run = self.train(self.SHAPE, ["--mode", "enforce", "--buffer-bytes", "5MiB", *more])
                self.check_same(run, self.SHAPE)
                idle = [device["idle"] for device in run.devices().values()]
                self.assertEqual([why["reason"] for why in idle], ["size_never_seen"] * 2)
                self.assertIn("buffer-bytes", idle[0]["text"])

    def test_just_in_time(self):
        arguments = [*self.SHAPE, "--allocation", "just_in_time"]
        run = self.train(arguments, ["--mode", "enforce"])
        self.check_same(run, arguments)
        self.assertEqual([device["idle"]["reason"] for device in run.devices().values()], ["just_in_time"] * 2)

    def test_a_device_that_is_too_small(self):
        for mode in ("observe", "enforce"):
            with self.subTest(mode):
                self.train(self.SHAPE, ["--mode", mode], expect=1, RPSIM_DEVICE_BYTES=str(8 * enforcing.MIB))
                said = support.run([RECVPOOL, "report", self.reports_dir]).stdout
                self.assertIn("   The device had no memory for 2.0 MiB more. Make a plan of the job's schedule", said)

    def test_no_device_memory_to_try_with(self):
        plan = self.plan("--schedule", "1f1b", "--stages", 2, "--microbatches", 6, "--slack", 0, "--buffer-bytes",
                         2 * enforcing.MIB)
        run = self.train(self.SHAPE, ["--mode", "enforce", "--plan", plan], RPSIM_FAIL="cuMemCreate:1:2")
        self.check_same(run, self.SHAPE)
        refused = [device["refused"] for device in run.devices().values() if device["refused"]]
        self.assertTrue(refused)
        for why in refused:
            self.assertEqual(why["reason"], "no_device_memory")
            self.assertNotIn("host", why["text"])


class RoundingTest(enforcing.EnforcingCase):
    """Buffers smaller than what the device gives at a time: no rank ever holds more than without recvpool, and what the
    report says to be saved is missing from the peaks."""

    def peaks(self, run):
        return {int(rank): int(peak) for rank, peak in re.findall(r"rank (\d+) parameters \w+ peak_device_bytes (\d+)", run.stdout)}

    def test_costs_no_more_than_it_saves(self):
        for schedule, microbatches, size, planned, shared in (
                ("gpipe", 16, enforcing.MIB, True, [0]), ("1f1b", 6, enforcing.MIB, True, []), ("1f1b", 16, enforcing.MIB, True, [0, 1, 2]),
                ("1f1b", 16, 3 * enforcing.MIB, True, [0, 1, 2]), ("1f1b", 8, enforcing.MIB, False, []), ("1f1b", 8, 3 * enforcing.MIB, False, [])):
            with self.subTest(schedule, microbatches=microbatches, size=size, planned=planned):
                shape = ["--schedule", schedule, "--stages", 3, "--microbatches", microbatches, "--message-bytes", size, "--steps", 3]
                alone = self.peaks(self.train(shape))
                plan = self.plan("--schedule", schedule, "--stages", 3, "--microbatches", microbatches, "--buffer-bytes", size)
                run = self.train(shape, ["--mode", "enforce", *(["--plan", plan] if planned else [])])
                self.check_same(run, shape)
                peaks = self.peaks(run)
                self.assertEqual(len(peaks), 3)
                for rank, peak in peaks.items():
                    self.assertLessEqual(peak, alone[rank] + 4096, f"rank {rank}")  # events and the like
                self.assertEqual([rank for rank, device in run.devices().items() if device["physical_peak_bytes"]], shared)
                for rank in set(peaks) - set(shared):
                    device = run.device(rank)
                    self.assertEqual(device and device["idle"]["reason"], device and "rounding")
                job = json.loads(support.run([RECVPOOL, "report", "--json", self.reports_dir]).stdout)
                saved = job["totals"]["enforcement"]["saved_peak_bytes"]
                missing = sum(alone.values()) - sum(peaks.values())
                self.assertTrue(0 <= saved <= missing + 3 * 4096, (saved, missing))
                self.assertEqual(saved > 0, shared == [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
