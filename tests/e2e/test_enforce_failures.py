"""Whatever the driver refuses, the job goes on to the same results, and what was taken is given back; whenever a job is
killed, its last reports are whole.

E2E_FULL=1 makes every call fail at every position, instead of positions that lie further and further apart.
"""

import glob
import itertools
import json
import os
import random
import re
import signal
import subprocess
import time
import unittest

import enforcing
import support
from enforcing import MIB
from support import RECVPOOL, TRAINER

CALLS = ["cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
         "cuMemRelease", "cuMemAddressFree"]
OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801
SHAPE = ["--stages", 2, "--microbatches", 6, "--steps", 5, "--message-bytes", 2 * MIB]
FULL = bool(os.environ.get("E2E_FULL"))
MOST_POSITIONS = 10000


def positions():
    """1, 2, 3, 5, 8 ...: or all."""
    position, before = 1, 1
    while position < MOST_POSITIONS:
        yield position
        position, before = (position + 1, position) if FULL else (position + before, position)
        position *= 4 if enforcing.SANITIZED else 1


class FailuresTest(enforcing.EnforcingCase):
    def options(self, planned):
        options = ["--mode", "enforce", "--slack", 1]
        if planned:
            options += ["--plan", self.plan("--schedule", "1f1b", "--stages", 2, "--microbatches", 6, "--slack", 1,
                                            "--buffer-bytes", 2 * MIB)]
        return options

    def failed(self, run):
        """How many driver calls of the pools were refused."""
        return sum(device["memory"]["failures"] for device in run.devices().values() if device["memory"])

    def check(self, planned, failure, once):
        """Gives whether anything was refused. What was refused once is asked for again."""
        run = self.train(SHAPE, self.options(planned), seed=7, RPSIM_FAIL=failure)
        self.check_same(run, SHAPE)
        self.assertEqual(run.counts("violated"), {})
        for rank, record in run.records.items():
            device = run.device(rank)
            left = record.summary["left_bytes"]
            if device is not None and device["refused"] is None:
                self.assertEqual(device["physical_bytes"], left, f"rank {rank}")
            if once:
                self.assertEqual(left, 0, f"rank {rank}")
        return self.failed(run) > 0

    def every_position(self, planned):
        tried = 0
        for call in CALLS:
            for position in positions():
                with self.subTest(call=call, position=position, planned=planned):
                    failing = self.check(planned, f"{call}:{position}:{OUT_OF_MEMORY}", once=True)
                    tried += 1
                    if position > 1 and not failing:
                        break  # it is not called as often
        print(f"{tried} runs", flush=True)

    def test_learned(self):
        self.every_position(planned=False)

    def test_planned(self):
        self.every_position(planned=True)

    def test_two_in_a_row(self):
        """The second one refused is what was to undo the first: each address has its memory all the same."""
        pairs = [("cuMemMap", "cuMemMap"), ("cuMemSetAccess", "cuMemUnmap"), ("cuMemSetAccess", "cuMemMap")]
        for planned, (first, second) in itertools.product((False, True), pairs):
            for position in range(1, MOST_POSITIONS) if FULL else (13,) if enforcing.SANITIZED else (13, 14, 19):
                with self.subTest(planned=planned, first=first, second=second, position=position):
                    others = range(1, position + 4) if FULL and first != second else (position + 1,)
                    failing = [self.check(planned, f"{first}:{position}:{NOT_SUPPORTED},{second}:{other}:{NOT_SUPPORTED}",
                                          once=True) for other in others]
                    if not any(failing):
                        break

    def test_bursts(self):
        """Several calls are refused several times in a row: in vain tries come to an end before the driver's patience does."""
        for seed in range(100 if FULL else 2 if enforcing.SANITIZED else 8):
            choose = random.Random(seed)
            bursts = [f"{call}:{first + i}:{choose.choice([OUT_OF_MEMORY, NOT_SUPPORTED])}"
                      for call in choose.sample(CALLS[1:], 4) for first in [choose.randrange(1, 40)]
                      for i in range(choose.randrange(1, 7))]
            with self.subTest(seed=seed, bursts=bursts):
                self.check(seed % 2 == 1, ",".join(bursts), once=False)

    def check_goes_on_or_stops(self, planned, failure):
        """Where the driver never again changes a mapping, memory may be out of reach: then a call is refused, and nothing is
        computed with wrong data."""
        run = self.train(SHAPE, self.options(planned), seed=7, expect=None, RPSIM_FAIL=failure)
        if run.status == 0:
            self.check_same(run, SHAPE)
            return
        self.assertIn("a call was refused to keep its data", run.stderr)
        self.assertNotIn("broken pattern", run.stderr)
        self.assertTrue(self.reference(SHAPE).startswith(run.computed), run.stdout)

    def test_from_then_on(self):
        for planned, call, position in itertools.product((False, True), CALLS, (4,) if enforcing.SANITIZED else (1, 4, 15, 40)):
            with self.subTest(call=call, position=position, planned=planned):
                failure = f"{call}:{position}+:{NOT_SUPPORTED}"
                if call in ("cuMemMap", "cuMemSetAccess", "cuMemUnmap"):
                    self.check_goes_on_or_stops(planned, failure)
                else:
                    self.check(planned, failure, once=False)


class KilledTest(enforcing.EnforcingCase):
    """SIGKILL at random moments leaves whole reports."""

    ROUNDS = 40 if FULL else 3 if enforcing.SANITIZED else 8

    def start(self):
        command = [RECVPOOL, "run", "--mode", "enforce", "--interval", "0.05", "--report-dir", self.reports_dir, "--", TRAINER,
                   "--stages", "2", "--microbatches", "6", "--steps", "1000000", "--message-bytes", "2MiB"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                env=support.simulated(RPSIM_SEED="3"))

    def ranks_of(self, pid):
        """Processes below this one that train."""
        found, below = [], [pid]
        while below:
            pid = below.pop()
            try:
                with open(f"/proc/{pid}/task/{pid}/children") as file:
                    below += map(int, file.read().split())
                with open(f"/proc/{pid}/environ") as file:
                    if re.search(r"(^|\0)LOCAL_RANK=", file.read()):
                        found.append(pid)
            except OSError:
                pass
        return found

    def test_reports_are_whole(self):
        choose = random.Random(5)
        for attempt in range(self.ROUNDS):
            with self.subTest(attempt=attempt):
                process = self.start()
                self.addCleanup(process.stdout.close)
                self.assertRegex(process.stdout.readline(), "^step 0 loss ")
                time.sleep(choose.uniform(0, 0.6))  # the moment is the test's, nothing is waited for
                for pid in self.ranks_of(process.pid):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass  # ended with the other one
                process.stdout.read()
                process.wait(timeout=support.TIMEOUT_SECONDS)
                self.assertNotEqual(process.returncode, 0)
        reports = self.read_reports()  # each is checked against the schema
        self.assertGreaterEqual(len(reports), self.ROUNDS)
        self.assertTrue(any(device["activations"] for report in reports for device in report["enforcement"]["devices"]))
        self.assertEqual({report["state"] for report in reports}, {"running"})
        leftover = [path for path in glob.glob(os.path.join(self.reports_dir, "*")) if not path.endswith(".json")]
        self.assertLessEqual(len(leftover), 2 * self.ROUNDS)  # a temporary file for each that was killed, at the most
        for path in glob.glob(os.path.join(self.reports_dir, "*.json")):
            with open(path) as file:
                json.load(file)


if __name__ == "__main__":
    unittest.main()
