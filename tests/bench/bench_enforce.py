"""What enforcing costs and what it gives, from runs made side by side on this machine.

    bench_enforce.py BUILD_FOLDER [--rounds N] [--steps N] [--json FILE]

Times compare two commands run in turn, as bench.py does; bytes and the pause come from the reports. Needs no GPU: the device
is simulated. What one guarded call costs inside the guard, and how that grows with the number of buffers, is bench_guard's.
"""
import argparse
import json
import pathlib
import re
import resource
import statistics
import sys
import tempfile

import bench

STAGES, MICROBATCHES, BYTES = 2, 16, 2 << 20


def processor_seconds(command):
    """Of all its processes: what else the machine does hardly matters."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    bench.run(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class EnforceBench(bench.Bench):
    def enforced(self, command, options):
        return [self.recvpool, "run", "--mode", "enforce", "--report-dir", self.scratch, *options, "--"] + command

    def training(self, steps):
        return [self.trainer, "--stages", str(STAGES), "--microbatches", str(MICROBATCHES), "--steps", str(steps),
                "--message-bytes", str(BYTES)]

    def plan(self, buffer_bytes=BYTES):
        path = str(pathlib.Path(self.scratch) / "plan")
        bench.run([self.recvpool, "plan", "--schedule", "1f1b", "--stages", str(STAGES), "--microbatches", str(MICROBATCHES),
                   "--buffer-bytes", str(buffer_bytes), "--output", path])
        return ["--plan", path]

    def end_to_end(self, steps, options, timed):
        """Seconds of a training alone, and observed (`options` None) or enforced."""
        command = self.training(steps)
        attached = self.attached(command) if options is None else self.enforced(command, options)
        return self.pairs(lambda: timed(command), lambda: timed(attached))

    def device_bytes(self, options, arguments):
        """What the devices of all ranks held at most, and at the end of a training; alone where `options` is None."""
        with tempfile.TemporaryDirectory() as truth:
            command = self.training(5) + [*arguments, "--truth-dir", truth]
            output = bench.run(command if options is None else self.enforced(command, options))[1]
            ends = [json.loads(path.read_text().splitlines()[-1]) for path in pathlib.Path(truth).glob("*.jsonl")]
        return sum(map(int, re.findall(r"peak_device_bytes (\d+)", output))), sum(end["held_bytes"] for end in ends)

    def add_device_memory(self, plan):
        """All of a training's memory, not only that of its receive buffers."""
        hidden = ["--lookalike", "after", "--lookalike-count", "1"]  # brings a library whose calls cannot be stopped
        for name, options, arguments in (("learned", [], []), ("planned", plan, []),
                                         ("planned, with a library that cannot be stopped", plan, hidden)):
            alone, enforced = self.device_bytes(None, arguments), self.device_bytes(options, arguments)
            for when, before, after in zip(("at most", "at the end"), alone, enforced):
                self.add(f"device memory {when}, {name}", [before], [after], "bytes")

    def call(self, call, pointer, count):
        """Nanoseconds of one call, unattached and with its buffer in a pool."""
        command = [self.calls, call, pointer, "none", str(count)]
        guarded = self.enforced(command, [*self.plan(1 << 20), "--plan-rank", "1"])
        return self.pairs(lambda: float(bench.run(command, self.libraries)[1]),
                          lambda: float(bench.run(guarded, self.libraries)[1]))

    def devices(self, options):
        """The devices in the reports of one run."""
        for path in pathlib.Path(self.scratch).glob("*.json"):
            path.unlink()
        bench.run(self.enforced(self.training(5), options))
        reports = [json.loads(path.read_text()) for path in pathlib.Path(self.scratch).glob("*.json")]
        return [device for report in reports for device in report["enforcement"]["devices"]]

    def add_memory(self, options):
        classes = [pool for device in self.devices(options) for pool in device["classes"]]
        self.add("peak bytes of all pools, planned, over the least possible", [sum(p["minimum_bytes"] for p in classes)],
                 [sum(p["physical_peak_bytes"] for p in classes)], "bytes", "ratio = 1.00")
        self.add("peak bytes of all pools, planned, over a buffer per microbatch",
                 [sum(p["one_to_one_peak_bytes"] for p in classes)],
                 [sum(p["physical_peak_bytes"] for p in classes)], "bytes")

    def add_pause(self):
        """The longest pause of any rank, beside the time of one step."""
        pauses = [max(device["activation"]["duration_seconds"] for device in self.devices([]))
                  for _ in range(self.rounds)]
        few, many = (statistics.median(bench.run(self.training(steps))[0] for _ in range(3)) for steps in (5, 25))
        self.add("activation, beside one step", [(many - few) / 20] * len(pauses), pauses, "s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="steps of the runs that are timed whole")
    parser.add_argument("--json", help="also write the rows there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = EnforceBench(options.build, options.rounds, scratch)
        plan = rows.plan()
        rows.add_memory(plan)
        rows.add_device_memory(plan)
        rows.add_pause()
        for name, arguments in (("observed", None), ("learned", []), ("planned", plan)):
            job = f"trainer, {STAGES} stages x {MICROBATCHES} microbatches, {options.steps} steps, {name}"
            rows.add(job, *rows.end_to_end(options.steps, arguments, lambda command: bench.run(command)[0]), "s",
                     "ratio <= 1.02")
            rows.add("processor time of the same", *rows.end_to_end(options.steps, arguments, processor_seconds), "s")
        rows.add("launch that names no buffer of a pool", *rows.call("launch", "miss", 100000), "ns")
        rows.add("launch that names a buffer of a pool", *rows.call("launch", "hit", 50000), "ns")
        rows.add("the same, made: with the event recorded behind it", *rows.call("use", "hit", 2000), "ns")
        rows.add("transfer of 1 MiB to oneself, into a pool", *rows.call("transfer", "hit", 200), "ns")
    bench.show(rows.rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
