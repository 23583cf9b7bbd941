"""What the agent costs, as ratios of runs made side by side on this machine.

    bench.py BUILD_FOLDER [--rounds N] [--json FILE]

Each row compares two commands run in turn, so that whatever else the machine does meets both alike; the median over the
rounds is shown. Needs no GPU: the device is simulated, and so only the agent's own host cost is measured.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def run(command, environment=None):
    """Runs a command and returns (seconds, standard output)."""
    begin = time.monotonic()
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, check=True,
                          stdin=subprocess.DEVNULL)
    return time.monotonic() - begin, done.stdout.decode()


class Bench:
    def __init__(self, build, rounds, scratch):
        self.build, self.rounds, self.scratch = pathlib.Path(build), rounds, scratch
        self.recvpool = str(self.build / "agent" / "recvpool")
        self.calls = str(self.build / "tests" / "bench" / "bench_calls")
        self.trainer = str(self.build / "tests" / "trainer" / "rp_trainer")
        self.libraries = {"LD_LIBRARY_PATH": str(self.build / "simlib")}
        self.rows = []

    def attached(self, command):
        return [self.recvpool, "run", "--report-dir", self.scratch, "--min-bytes", "1024", "--"] + command

    def report(self):
        files = sorted(pathlib.Path(self.scratch).glob("*.json"), key=lambda path: path.stat().st_mtime)
        return json.loads(files[-1].read_text())

    def add(self, what, base, other, unit, target=""):
        ratio = statistics.median(b / a for a, b in zip(base, other))
        difference = statistics.median(b - a for a, b in zip(base, other))
        self.rows.append({"what": what, "unit": unit, "base": statistics.median(base),
                          "with_agent": statistics.median(other), "ratio": ratio, "difference": difference,
                          "target": target})

    def pairs(self, first, second):
        """Runs two functions in turn, swapping who begins."""
        results = [], []
        for turn in range(self.rounds):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            values = {}
            for which in order:
                values[which] = (first, second)[which]()
            for which in (0, 1):
                results[which].append(values[which])
        return results

    def call_cost(self, call, pointer, base, count):
        command = [self.calls, call, pointer, "none", str(count)]
        floor = [self.calls, call, pointer, base, str(count)]
        return self.pairs(lambda: float(run(floor, self.libraries)[1]),
                          lambda: float(run(self.attached(command), self.libraries)[1]))

    def end_to_end(self, options):
        command = [self.trainer] + options
        return self.pairs(lambda: run(command)[0], lambda: run(self.attached(command))[0])

    def memory(self, steps):
        command = [self.trainer, "--stages", "2", "--microbatches", "4", "--batch", "1", "--hidden", "4",
                   "--message-bytes", "4KiB", "--steps", str(steps)]
        run(self.attached(command))
        return self.report()["agent_cost"]["agent_bytes"]


def show(rows, path):
    """Prints the rows, and writes them to a file if there is a path."""
    print(f"{'what':66} {'base':>12} {'attached':>12} {'difference':>12} {'ratio':>7}  target")
    for row in rows:
        print(f"{row['what']:66} {row['base']:12.4g} {row['with_agent']:12.4g} {row['difference']:12.4g} "
              f"{row['ratio']:7.3f}  {row['unit']}; {row['target']}")
    if path:
        pathlib.Path(path).write_text(json.dumps(rows, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10000, help="steps of the memory run")
    parser.add_argument("--json", help="also write the rows there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(options.build, options.rounds, scratch)
        bench.add("launch, no receive buffer named, over an empty callback",
                  *bench.call_cost("launch", "miss", "empty", 200000), "ns", "difference <= 100")
        bench.add("launch that names a receive buffer, over an empty callback",
                  *bench.call_cost("launch", "hit", "empty", 100000), "ns")
        bench.add("launch, no receive buffer named, over no callback",
                  *bench.call_cost("launch", "miss", "none", 200000), "ns")
        for call, words in (("record", "event record"), ("wait", "stream wait")):
            bench.add(f"{words}, before any receive", *bench.call_cost(call, "miss", "none", 5000), "ns")
            bench.add(f"{words}, receive buffers in use on 8 streams", *bench.call_cost(call, "hit", "none", 5000), "ns")
        bench.add("transfer of 1 MiB to oneself", *bench.call_cost("transfer", "miss", "none", 200), "ns")
        bench.add("trainer, 2 stages x 16 microbatches, 1F1B, 100 steps",
                  *bench.end_to_end(["--stages", "2", "--microbatches", "16", "--steps", "100",
                                     "--message-bytes", "1MiB"]), "s", "ratio <= 1.02")
        bench.add(f"agent memory after {options.steps} steps, over after 100",
                  [bench.memory(100)], [bench.memory(options.steps)], "bytes", "ratio = 1.00")
    show(bench.rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
