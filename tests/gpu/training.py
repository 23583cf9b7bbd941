"""Jobs of the trainer for the checks: several ranks on one device, attached or not, and what they leave behind."""
import os
import re
import shutil
import sys
import tempfile

from place import HERE, ROOT, read_reports, run
from results import Fail, Skip

sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import truth  # noqa: E402

MIB = 1 << 20

# Several ranks on one GPU: each on a host of its own by NCCL_HOSTID (ranks.py) and so over sockets; from 2.30 on NCCL has a
# switch for it. Few channels: kernels of all ranks have to make progress side by side.
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MAX_NCHANNELS": "2",
        "NCCL_NVLS_ENABLE": "0"}


def computed_lines(output):
    """Losses and checksums, in an order of their own: ranks print as they come."""
    lines = re.sub(r" peak_device_bytes \d+", "", output).splitlines()
    return sorted(line for line in lines if line.startswith(("step ", "evaluation ", "rank ")))


class Training:
    """What a training left behind."""

    def __init__(self, done, records, reports):
        self.done, self.records, self.reports = done, records, reports
        self.computed = computed_lines(done.stdout)

    def devices(self):
        """{rank: the device of its report}, of ranks that received something."""
        found = {rank: report["enforcement"]["devices"] for rank, report in self.reports.items() if report["enforcement"]}
        return {rank: devices[0] for rank, devices in sorted(found.items()) if devices}

    def counts(self, which):
        """prevented or violated over all ranks, without zeros."""
        total = {}
        for device in self.devices().values():
            for kind, count in device["conflicts"][which].items():
                if count:
                    total[kind] = total.get(kind, 0) + count
        return total


class Jobs:
    """Runs them. `scratch` is a folder that goes away with the run."""

    def __init__(self, place, scratch, machine):
        self.place, self.scratch, self.machine = place, scratch, machine
        self.known = {}  # what unattached trainings computed
        self.impossible = None  # why several ranks do not train here

    def folder(self, name):
        return tempfile.mkdtemp(prefix=name + "-", dir=self.scratch)

    def train(self, check, arguments, ranks=2, options=None, static=False, ok=(0,), **extra):
        """Unattached where `options` is None, else under `recvpool run` with them. Fails unless the status is in `ok`."""
        if self.impossible:
            raise Skip(self.impossible)
        program, preload = self.place.trainer(static)
        if not program:
            raise Skip("this build has no trainer" + (" with a static CUDA runtime" if static else ""))
        truth_dir, reports_dir = self.folder("truth"), self.folder("reports")
        prefix = [] if options is None else [self.place.recvpool, "run", "--report-dir", reports_dir, *map(str, options), "--"]
        settings = ["--set", f"LD_PRELOAD={preload}"] if preload else []
        command = [*prefix, sys.executable, os.path.join(HERE, "ranks.py"), str(ranks), *settings, "--", program,
                   "--stages", str(ranks), *map(str, arguments), "--truth-dir", truth_dir, "--rendezvous", "{folder}/id"]
        environment = self.place.environment(**NCCL, **extra)
        hidden = self.place.program("librp_hidden_calls.so")
        if hidden:
            environment["RP_TRAINER_HIDDEN_CALLS"] = hidden
        done = run(command, environment, check.left_seconds())
        training = Training(done, self.records(truth_dir), read_reports(reports_dir))
        for path in (truth_dir, reports_dir):
            shutil.rmtree(path)
        if ok is not None and (done.late or done.status not in ok):
            raise Fail(done.why())
        return training

    def records(self, folder):
        """The trainer's own records, by rank, of ranks that ended well."""
        records = {}
        for path in sorted(os.listdir(folder)):
            try:
                record = truth.Truth(os.path.join(folder, path))
                records[record.rank] = record
            except (ValueError, AttributeError):  # of a rank that ended in the middle of it
                pass
        return records

    def alone(self, check, arguments, ranks=2):
        """What the same training computes unattached, on this device. Made once for each kind."""
        key = (ranks, *map(str, arguments))
        if key not in self.known:
            self.known[key] = self.train(check, arguments, ranks).computed
        return self.known[key]

    def reference(self, check, arguments, ranks=2):
        """What the processor computes for the same training."""
        command = [self.place.program("rp_trainer_reference"), "--stages", str(ranks), *map(str, arguments)]
        done = run(command, self.place.environment(), check.left_seconds())
        if done.status != 0:
            raise Fail(done.why())
        return computed_lines(done.stdout)

    def plan(self, check, stages, microbatches, size, *options, schedule="1f1b"):
        """Path of a plan from the schedule alone."""
        path = os.path.join(self.folder("plan"), "plan.json")
        command = [self.place.recvpool, "plan", "--schedule", schedule, "--stages", str(stages), "--microbatches",
                   str(microbatches), "--buffer-bytes", str(size), *map(str, options), "--output", path]
        done = run(command, self.place.environment(), check.left_seconds())
        if done.status != 0:
            raise Fail(done.why())
        return path
