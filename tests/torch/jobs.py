"""Runs jobs of real PyTorch on the simulated device (see run.sh, which sets the environment):

    TORCH_PYTHON      interpreter that has torch
    TORCH_PRELOAD     simulated libraries to preload, separated by ':'
    RECVPOOL_BUILD_DIR, RECVPOOL_SOURCE_DIR   as for the end-to-end tests
"""
import json
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["RECVPOOL_SOURCE_DIR"], "tests", "e2e"))
import support  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICES = 8
# No job waits for less than it must: this only ends one that hangs.
SECONDS = int(os.environ.get("TORCH_TIMEOUT_SECONDS", "900"))


def environment(**extra):
    """For a Python that is to find the simulated device."""
    return support.simulated(LD_PRELOAD=os.environ["TORCH_PRELOAD"], OMP_NUM_THREADS="1", RPSIM_DEVICES=str(DEVICES),
                             RPSIM_DEVICE_BYTES="16GiB", PYTHONDONTWRITEBYTECODE="1", **extra)


def agent(reports, **extra):
    """What attaches the agent."""
    return dict(CUDA_INJECTION64_PATH=support.AGENT, RECVPOOL_REPORT_DIR=reports, **extra)


def preallocates():
    """Whether this torch makes all receive buffers before the first step. Newer ones make each just before its receive."""
    done = support.run([os.environ["TORCH_PYTHON"], "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    pipelining = os.path.join(done.stdout.strip(), "torch", "distributed", "pipelining")
    if not os.path.isdir(pipelining):
        raise RuntimeError(f"no torch there: {pipelining}")
    return not os.path.exists(os.path.join(pipelining, "_recv_buffers.py"))


def only_where_it_preallocates(case):
    """Decorator of test cases."""
    return unittest.skipUnless(preallocates(), "this torch allocates each receive buffer just before its receive")(case)


def results(text):
    """What a rank of pipeline.py computed: losses and parameters, bit for bit."""
    return re.findall(r"step \d+ loss .*|stage \d+ parameters .*", text)


def held_bytes(text):
    """How much more the driver said was held on the device at the end of a rank of pipeline.py than torch's allocator had
    asked for; how many blocks that has depends on the clock."""
    held, reserved = re.search(r"device peak \d+ held (\d+) for (\d+)", text).groups()
    return int(held) - int(reserved)


class Forks:
    """Jobs whose ranks are forks of one process (forks.py)."""

    def __init__(self):
        self.process = subprocess.Popen([os.environ["TORCH_PYTHON"], os.path.join(HERE, "forks.py")], env=environment(),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, script, arguments, ranks, folder, **variables):
        """Process ids of the ranks and what they printed, by rank; fails unless all of them end well."""
        job = {"script": os.path.join(HERE, script), "arguments": list(arguments), "ranks": ranks, "folder": folder,
               "environment": variables, "seconds": SECONDS}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        texts = []
        for rank in range(ranks):
            with open(os.path.join(folder, f"{rank}.txt"), errors="backslashreplace") as file:
                texts.append(file.read())
        if any(answer["statuses"]):
            raise AssertionError(f"{script} {' '.join(arguments)}: statuses {answer['statuses']}\n" +
                                 "\n".join(f"rank {rank}:\n{text[-3000:]}" for rank, text in enumerate(texts)))
        return answer["pids"], texts

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
