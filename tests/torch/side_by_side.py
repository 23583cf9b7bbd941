"""Prints the table of the README that holds receive buffer pools side by side, on the same jobs: stock torch,
nemo-automodel's pool, the newest torch, and recvpool. See run.sh, which sets the environment:

    side_by_side.py RECV_BUFFER_POOL.py

TORCH_NEWEST_PYTHON and TORCH_NEWEST_PRELOAD name the newest torch. Speed is that of the fastest step of a job, over stock
torch's of the same round, in which each job runs in turn with the others: the median of the rounds, the lowest and the
highest. Stock torch runs twice in each, so its second row tells how much of that is chance. The device is simulated: its
copies and kernels are work of the processor. TORCH_TABLE_SCHEDULES, _RANKS, _MICROBATCHES and _STEPS choose other jobs,
_ROUNDS how often speed is measured; 0: not at all.
"""
import os
import re
import shutil
import statistics
import sys
import tempfile

import jobs
import support

BYTES = 10 << 20  # from here on, torch's allocator gives each buffer an allocation of its own
SMALLEST = 1 << 16  # smaller receives are metadata
STAGES = {"1F1B": 1, "Interleaved1F1B": 2}  # per rank
SCHEDULES = os.environ.get("TORCH_TABLE_SCHEDULES", "1F1B,Interleaved1F1B").split(",")
RANKS, MICROBATCHES, STEPS, ROUNDS = (int(os.environ.get("TORCH_TABLE_" + name, default)) for name, default in
                                      (("RANKS", 4), ("MICROBATCHES", 8), ("STEPS", 5), ("ROUNDS", 3)))


class Result:
    """One way of running a job."""

    def __init__(self, name, variables=None, options=(), newest=False):
        self.name, self.variables, self.options, self.newest = name, variables, options, newest
        self.seconds, self.copies, self.buffers, self.losses, self.reports = [], 0, 0, None, []

    def peak_and_steady(self):
        """Bytes held for receive buffers: at most, and at the end. Those that are in no pool have memory of their own."""
        enforces = (self.variables or {}).get("RECVPOOL_MODE") == "enforce"
        devices = [device for report in self.reports for device in report["enforcement"]["devices"]] if enforces else []
        pools = [pool for device in devices for pool in device["classes"] if pool["slots"] and device["active"]]
        if pools:
            outside = self.buffers * BYTES - sum(p["one_to_one_bytes"] for p in pools)
            # Beside cuBLAS each buffer has memory of its own until its first receive, which is on no pool's account.
            own = any(reason["reason"] == "calls_unstoppable" for device in devices for reason in device["reasons"])
            begin = "physical_peak_bytes" if devices[0]["planned"] and not own else "one_to_one_peak_bytes"
            return outside + sum(p[begin] for p in pools), outside + sum(p["physical_bytes"] for p in pools)
        if self.newest:
            held = sum(c["held_bytes"] for report in self.reports for c in report["channels"])
            return held, held
        return self.buffers * BYTES, self.buffers * BYTES


    def speed(self, stock):
        ratios = [its / mine for its, mine in zip(stock.seconds, self.seconds, strict=True)]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "not measured"


def read_log(path):
    """Copies of whole receive buffers, and how many of those there are."""
    copies, buffers, large = 0, set(), set()
    with open(path) as file:
        for line in file:
            _, name, rest = line.rstrip("\n").split("\t")
            if name == "receive":
                buffers |= {part for part in rest.split() if int(part.split(":")[1]) >= SMALLEST}
                large = {part.split(":")[0] for part in buffers}
            copies += name == "copy" and any(part.split("=")[0] in large for part in rest.split())
    return copies, len(buffers)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.forks = {}

    def forks_of(self, newest):
        if newest not in self.forks:
            before = {name: os.environ[name] for name in ("TORCH_PYTHON", "TORCH_PRELOAD")}
            if newest:
                os.environ.update({name: os.environ[name.replace("TORCH", "TORCH_NEWEST")] for name in before})
            self.forks[newest] = jobs.Forks()
            os.environ.update(before)
        return self.forks[newest]

    def run(self, result, schedule, logged):
        """With a record of launches a run tells how many copies were made, without one how fast it is."""
        folder = os.path.join(self.folder, "run")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        reports = os.path.join(folder, "reports")
        variables = jobs.agent(reports, **result.variables) if result.variables is not None else {}
        if logged:
            variables["RPSIM_LAUNCH_LOG"] = folder
        arguments = ["--schedule", schedule, "--microbatches", str(MICROBATCHES), "--bytes", str(BYTES), "--steps", str(STEPS),
                     "--stages-per-rank", str(STAGES[schedule]), "--time", *result.options]
        pids, texts = self.forks_of(result.newest).run("pipeline.py", arguments, RANKS, folder, **variables)
        losses = [re.findall(r"step \d+ loss .*", text) for text in texts]
        if not logged:
            result.seconds.append(max(float(re.search(r"fastest step ([\d.]+) s", text)[1]) for text in texts))
        else:
            logs = [read_log(os.path.join(folder, f"{pid}.log")) for pid in pids]
            result.copies, result.buffers = (sum(numbers) for numbers in zip(*logs))
            result.losses = losses
            if result.variables is not None:
                case = support.TestCase()
                result.reports = case.read_reports(reports)

    def plan(self, observed, granularity):
        reports = os.path.join(self.folder, "observed")
        os.makedirs(reports, exist_ok=True)
        for number, report in enumerate(observed.reports):
            with open(os.path.join(reports, f"{number}.json"), "w") as file:
                support.json.dump(report, file)
        path = os.path.join(self.folder, f"plan-{granularity}.json")
        done = support.run([support.RECVPOOL, "plan", "--from-report", reports, "--granularity", granularity, "--output", path])
        if done.returncode:
            raise SystemExit(done.stderr)
        return path

    def close(self):
        for forks in self.forks.values():
            forks.close()


def measure(bench, schedule, pool_module):
    results = [Result("torch {torch}")]
    if schedule == "1F1B":
        results.append(Result("torch {torch} with nemo-automodel's pool", options=("--automodel", pool_module)))
    results.append(Result("torch {newest}", {}, newest=True))
    observed = Result("torch {torch}, recvpool observes", {})
    results += [observed, Result("torch {torch}, recvpool enforces: auto", {"RECVPOOL_MODE": "enforce"})]
    for result in results:
        bench.run(result, schedule, logged=True)
    for granularity in ("stage", "direction", "rank"):
        plan = bench.plan(observed, granularity)
        results.append(Result(f"torch {{torch}}, recvpool enforces: planned, by {granularity}",
                              {"RECVPOOL_MODE": "enforce", "RECVPOOL_PLAN": plan}))
        bench.run(results[-1], schedule, logged=True)
    again = Result("torch {torch}, again")
    if ROUNDS:
        bench.run(again, schedule, logged=True)
        results.append(again)
    for _ in range(ROUNDS):
        for result in results:
            bench.run(result, schedule, logged=False)
    return results


def versions():
    """Of both, by what their packages say: importing torch takes long."""
    found, code = {}, "import importlib.metadata as m; print(m.version('torch').split('+')[0])"
    for name, python in (("torch", "TORCH_PYTHON"), ("newest", "TORCH_NEWEST_PYTHON")):
        found[name] = support.run([os.environ[python], "-c", code]).stdout.strip()
    return found


def main():
    pool_module = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="recvpool-side-by-side-")
    bench = Bench(folder)
    try:
        for schedule in SCHEDULES:
            results = measure(bench, schedule, pool_module)
            stock = results[0]
            print(f"\n| {schedule}, {RANKS} ranks x {MICROBATCHES} microbatches | held at most | at the end | copies | "
                  "steps/s | same losses |\n| --- | --- | --- | --- | --- | --- |")
            for result in results:
                peak, steady = (f"{value >> 20} MiB" for value in result.peak_and_steady())
                same = "yes" if result.losses == stock.losses else "no"
                # What is freed and used for something else is copied for other reasons too.
                copies = "not counted" if result.newest else result.copies - stock.copies
                print(f"| {result.name.format(**versions())} | {peak} | {steady} | {copies} | "
                      f"{result.speed(stock)} | {same} |", flush=True)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
