"""Training with and without enforcing: what every test of the two needs to compare."""

import glob
import json
import os
import re
import shutil

import support
import truth
from support import BUILD, RECVPOOL, TRAINER

REFERENCE = os.path.join(BUILD, "tests", "trainer", "rp_trainer_reference")
MIB = 1 << 20
GRANULARITY = 2 * MIB  # of the simulated device
BROKEN_PATTERN = 5  # what the trainer ends with when it found wrong data
SANITIZED = bool(os.environ.get("E2E_SANITIZE"))  # then everything takes ten times as long, and less is tried
UNSAFE = 3  # what `recvpool run` ends with when memory was reused unsafely


def computed(output):
    """Losses and checksums: what must not depend on where the memory comes from."""
    return re.sub(r" peak_device_bytes \d+", "", output)


def mapped(size):
    return -(-size // GRANULARITY) * GRANULARITY


def nonzero(counts):
    return {name: count for name, count in counts.items() if count}


class Run:
    """What a training run left behind."""

    def __init__(self, result, records, reports):
        self.result = result
        self.stdout, self.stderr, self.status = result.stdout, result.stderr, result.returncode
        self.computed = computed(result.stdout)
        self.records = {record.rank: record for record in records}
        self.reports = {report["process"]["rank"]: report for report in reports}

    def device(self, rank):
        """The one device of a rank's report."""
        devices = self.reports[rank]["enforcement"]["devices"]
        return devices[0] if devices else None

    def devices(self):
        return {rank: self.device(rank) for rank in sorted(self.reports) if self.device(rank)}

    def conflicts(self, kind, prevented=True):
        """[(rank, conflict)] of those kept in full."""
        return [(rank, conflict) for rank, device in self.devices().items() for conflict in device["conflicts"]["kept"]
                if conflict["kind"] == kind and conflict["prevented"] == prevented]

    def counts(self, which):
        """prevented or violated, over all ranks, without zeros."""
        total = {}
        for device in self.devices().values():
            for kind, count in device["conflicts"][which].items():
                total[kind] = total.get(kind, 0) + count
        return nonzero(total)


class EnforcingCase(support.TestCase):
    def setUp(self):
        super().setUp()
        self.truth_dir = os.path.join(self.folder, "truth")

    def train(self, arguments, enforce=None, seed=1, expect=0, launcher=(), **extra):
        """Trains unattached where `enforce` is None, else with these options of `recvpool run`. `expect` None: any status.
        `launcher`: a command that starts the trainer."""
        for folder in (self.truth_dir, self.reports_dir):
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(self.truth_dir)
        prefix = [] if enforce is None else [RECVPOOL, "run", "--report-dir", self.reports_dir, *map(str, enforce), "--"]
        command = [*prefix, *launcher, TRAINER, *map(str, arguments), "--truth-dir", self.truth_dir]
        result = support.run(command, env=support.simulated(RPSIM_SEED=str(seed), **extra))
        if expect is not None:
            self.assertEqual(result.returncode, expect, f"{command}\nRPSIM_SEED={seed} {extra}\n{result.stdout}\n{result.stderr}")
        reports = self.read_reports() if enforce is not None else []
        return Run(result, self.read_truth(), reports)

    def read_truth(self):
        """The records that are whole."""
        records = []
        for path in glob.glob(os.path.join(self.truth_dir, "rank-*.jsonl")):
            with open(path) as file:
                lines = file.read().splitlines()
            if lines and self.is_summary(lines[-1]):
                records.append(truth.Truth(path))
        return records

    def is_summary(self, line):
        try:
            return json.loads(line)["type"] == "summary"
        except json.JSONDecodeError:  # of a rank that was ended in the middle of writing it
            return False

    def reference(self, arguments):
        """What a run must compute."""
        result = support.run([REFERENCE, *map(str, arguments)])
        self.assert_success(result)
        return computed(result.stdout)

    def plan(self, *arguments):
        """A plan file from options of `recvpool plan`."""
        path = os.path.join(self.folder, "plan.json")
        self.assert_success(support.run([RECVPOOL, "plan", *map(str, arguments), "--output", path]))
        return path

    def check_same(self, run, arguments):
        self.assertEqual(run.computed, self.reference(arguments), run.stderr)

    def check_accounts_close(self, run):
        """Everything was given back: in the report, and as the simulated device sees it."""
        for rank, device in run.devices().items():
            for name in ("physical_bytes", "one_to_one_bytes", "buffers", "buffers_lost"):
                self.assertEqual(device[name], 0, f"rank {rank} {name}")
            self.assertEqual(run.records[rank].summary["left_bytes"], 0, f"rank {rank}")

    def check_quiet(self, run):
        """A correct program: nothing prevented, nothing violated, no warning, nothing refused."""
        self.assertEqual(run.stderr, "")
        for rank, report in run.reports.items():
            self.assertEqual(report["warnings"], [], f"rank {rank}")
            self.assertIsNone(report["enforcement"]["refused"])
        for rank, device in run.devices().items():
            self.assertIsNone(device["refused"])
            self.assertEqual(device["conflicts"]["kept"], [], f"rank {rank}")
            self.assertEqual((device["pending_dropped"], device["grown"], device["reopened"]), (0, 0, 0), f"rank {rank}")
        self.assertEqual((run.counts("prevented"), run.counts("violated")), ({}, {}))
