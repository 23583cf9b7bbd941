"""Runs jobs of several ranks in forks of one Python that has imported torch already, which takes most of the time of a
short job. Reads one JSON object a line and answers each with the exit statuses of its ranks:

    {"script": FILE, "arguments": [...], "ranks": 4, "environment": {...}, "folder": FOLDER, "seconds": 120}

"environment_of_rank", which may be left out, is a list of what each rank has besides. What rank R prints is in FOLDER/R.txt. CUDA is not touched before the fork, so ranks start as if they were programs of
their own."""
import gc
import json
import os
import runpy
import signal
import socket
import sys
import time

import torch  # noqa: F401
import torch.distributed.pipelining  # noqa: F401


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def become_rank(job, rank, port):
    """In the child: never returns."""
    output = os.open(os.path.join(job["folder"], f"{rank}.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(job["environment"], RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(job.get("environment_of_rank", [{}] * job["ranks"])[rank])
    sys.argv = [job["script"], *job["arguments"]]
    sys.path.insert(0, os.path.dirname(job["script"]))
    runpy.run_path(job["script"], run_name="__main__")
    sys.exit(0)


def wait_all(pids, seconds):
    """Exit statuses; what has not ended in time is killed."""
    deadline, statuses = time.monotonic() + seconds, {}
    while len(statuses) < len(pids):
        for pid in set(pids) - set(statuses):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return [statuses[pid] for pid in pids]


def main():
    gc.freeze()  # else each rank looks through all that torch made, to end
    for line in sys.stdin:
        job = json.loads(line)
        port, pids = free_port(), []
        for rank in range(job["ranks"]):
            pid = os.fork()
            if pid == 0:
                become_rank(job, rank, port)
            pids.append(pid)
        print(json.dumps({"pids": pids, "statuses": wait_all(pids, job["seconds"])}), flush=True)


if __name__ == "__main__":
    main()
