"""Real PyTorch on the GPU: pipelines of torch.distributed over NCCL, two ranks on one device, alone and with the agent."""
import json
import os
import re
import select
import subprocess

from place import ROOT, end_group, read_reports, run
from results import Fail, Skip
from training import MIB, NCCL

SCRIPTS = os.path.join(ROOT, "tests", "torch")
RANKS = 2
WAYS = {"alone": None, "observe": {}, "enforce": {"RECVPOOL_MODE": "enforce"},
        "learn": {"RECVPOOL_MODE": "enforce", "RECVPOOL_CUPTI": "learn"}}
# Sums of matrix products come out the same in every run.
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class Torch:
    """Jobs whose ranks are forks of one Python that has imported torch (tests/torch/forks.py)."""

    def __init__(self, jobs):
        self.jobs, self.place, self.process, self.known = jobs, jobs.place, None, {}

    def environment(self):
        """torch's wheels find CUDA's libraries by themselves."""
        if not self.place.simulated:
            return self.place.environment(LD_LIBRARY_PATH=self.place.driver_path(), **NCCL, **DETERMINISTIC)
        return self.place.environment(LD_PRELOAD=os.environ["TORCH_PRELOAD"], OMP_NUM_THREADS="1", RPSIM_DEVICE_BYTES="16GiB")

    def version(self, check):
        """Raises Skip where there is none that can be used here."""
        if self.place.simulated and not os.environ.get("TORCH_PRELOAD"):
            raise Skip("torch on the simulated device takes what tests/torch/run.sh prepares (TORCH_PRELOAD)")
        ask = [self.place.python, "-c", "import torch; print(torch.__version__)"]
        try:
            done = run(ask, self.environment(), check.left_seconds())
        except OSError as error:
            raise Skip(f"no torch: {self.place.python}: {error.strerror}") from None
        if done.status != 0:
            raise Skip(f"no torch in {self.place.python}: {done.why()}")
        return done.stdout.strip()

    def ask(self, job, seconds):
        """The answer of forks.py, which is started for the first job."""
        if self.process is None:
            self.process = subprocess.Popen([self.place.python, os.path.join(SCRIPTS, "forks.py")], env=self.environment(),
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True)
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], seconds + 15)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.close()
            raise Fail("the process that starts torch's ranks gave no answer")
        return json.loads(line)

    def job(self, check, arguments, way):
        """(what every rank printed, reports by rank)."""
        folder, reports = self.jobs.folder("torch"), self.jobs.folder("torch-reports")
        variables = {} if way is None else {"CUDA_INJECTION64_PATH": self.place.agent, "RECVPOOL_REPORT_DIR": reports, **way}
        own = [{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NCCL_HOSTID": f"recvpool-rank-{rank}"} for rank in range(RANKS)]
        seconds = check.left_seconds()
        answer = self.ask({"script": os.path.join(SCRIPTS, "pipeline.py"), "arguments": arguments, "ranks": RANKS,
                           "folder": folder, "environment": variables, "environment_of_rank": own, "seconds": seconds}, seconds)
        texts = []
        for rank in range(RANKS):
            with open(os.path.join(folder, f"{rank}.txt"), errors="backslashreplace") as file:
                texts.append(file.read())
        if any(answer["statuses"]):
            last = [text.strip().splitlines()[-1][:200] if text.strip() else "no output" for text in texts]
            raise Fail(f"statuses {answer['statuses']}: {' | '.join(last)}")
        return texts, read_reports(reports)

    def alone(self, check, arguments):
        """What the job computes without the agent, and its fastest step; once for each kind."""
        key = tuple(arguments)
        if key not in self.known:
            self.known[key] = self.job(check, arguments, None)[0]
        return self.known[key]

    def close(self):
        if self.process is not None:
            end_group(self.process)
            self.process.communicate()
            self.process = None


def computed(texts):
    return [re.findall(r"step \d+ loss .*|stage \d+ parameters .*", text) for text in texts]


def step_seconds(texts):
    """The slower rank's fastest step."""
    return max(float(re.search(r"fastest step ([\d.]+) s", text)[1]) for text in texts)


def arguments_of(place, schedule):
    size = 10 * MIB if place.simulated else 32 * MIB
    kind = [] if place.simulated else ["--layer", "--deterministic"]
    looped = ["--stages-per-rank", "2"] if schedule.startswith("Interleaved") else []
    return ["--schedule", schedule, *looped, *kind, "--microbatches", "8", "--steps", "6", "--bytes",
            str(size), "--time"]


def installed(check, torch, recorder):
    version = torch.version(check)
    recorder.machine["torch"] = version
    check.measure("torch", version, "")


def tell_memory(check, reports):
    devices = [device for report in reports.values() for device in report["enforcement"]["devices"]]
    for name, words in (("one_to_one_peak_bytes", "receive buffers alone"), ("physical_bytes", "physical, at the end"),
                        ("saved_peak_bytes", "saved at most")):
        check.measure(words, sum(device[name] or 0 for device in devices), "bytes")
    # Newer releases of torch allocate for each receive: there is nothing to share.
    poolable = any(channel["decision"]["poolable"] for report in reports.values() for channel in report["channels"])
    check.expect(not poolable or any(device["activations"] for device in devices),
                 f"nothing was shared: {[device['idle'] for device in devices]}")
    for device in devices:
        for which in ("prevented", "violated"):
            check.expect_equal({kind: n for kind, n in device["conflicts"][which].items() if n}, {}, which)


def job(check, torch, recorder, schedule, way, profiled):
    """Equal losses and parameters, and steps per second over those alone."""
    if recorder.machine["torch"] is None:
        raise Skip("no torch was found")
    if torch.jobs.impossible:
        raise Skip(torch.jobs.impossible)
    arguments = arguments_of(torch.place, schedule) + (["--profile"] if profiled else [])
    before = torch.alone(check, arguments)
    if way == "alone":
        check.measure("steps per second", 1 / step_seconds(before), "/s")
        texts, reports = before, {}
    else:
        texts, reports = torch.job(check, arguments, WAYS[way])
        check.measure("steps per second, over alone", step_seconds(before) / step_seconds(texts), "")
        check.expect_equal(computed(texts), computed(before), "losses and parameters")
        check.expect_equal(sorted(reports), list(range(RANKS)), "ranks that left a report")
    if way in ("enforce", "learn"):
        tell_memory(check, reports)
    for report in reports.values():
        check.measure(f"rank {report['process']['rank']}: CUPTI at the end",
                      next((source["reason"] or "active" for source in report["evidence"] if source["name"] == "cupti"), ""), "")
        check.measure(f"rank {report['process']['rank']}: callbacks", report["agent_cost"]["callbacks"], "")
    if profiled:
        for rank, text in enumerate(texts):
            check.measure(f"rank {rank}: kernels in torch's profile", int(re.search(r"profiled (\d+) kernels", text)[1]), "")


def checks(recorder, jobs):
    torch = Torch(jobs)
    try:
        recorder.run("torch.installed", "is torch there?", 45, installed, torch, recorder)
        for profiled in (False, True):
            for schedule in ("1F1B", "Interleaved1F1B"):
                for way in WAYS:
                    name = f"torch.{schedule.lower()}.{way}" + (".profiled" if profiled else "")
                    recorder.run(name, "same losses and parameters, bit for bit; bytes saved; speed" if way != "alone" else
                                 "the job alone", 30, job, torch, recorder, schedule, way, profiled)
    finally:
        torch.close()
