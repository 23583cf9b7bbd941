"""Starts a command once for each rank of one job on one GPU, and ends all when one fails:

    ranks.py COUNT [--set NAME=VALUE]... -- COMMAND...

RANK, WORLD_SIZE and LOCAL_RANK (0) are set as a launcher does. Each rank claims to be on a host of its own, so that NCCL takes
several of them on one device. --set is for the ranks only. What rank R prints comes out after all have ended, rank by rank.
Ends with the status of the first that failed.
"""
import os
import subprocess
import sys
import tempfile
import time


def parse(arguments):
    at = arguments.index("--")
    count, *settings = arguments[:at]
    return int(count), dict(item.split("=", 1) for item in settings if item != "--set"), arguments[at + 1:]


def environment_of(rank, count, settings):
    own = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "NCCL_HOSTID": f"recvpool-rank-{rank}"}
    return {**os.environ, **{name: str(value) for name, value in own.items()}, **settings}


def wait_all(processes):
    """Status of the first that failed, 0 if none did. The others are ended then, after a moment to end by themselves."""
    status, running = 0, list(processes)
    grace = None
    while running:
        for process in list(running):
            if process.poll() is None:
                continue
            running.remove(process)
            if process.returncode != 0 and status == 0:
                status, grace = process.returncode, time.monotonic() + 3
        if running and grace is not None and time.monotonic() > grace:
            for process in running:
                process.kill()
        if running:
            time.sleep(0.01)  # none of them tells when it ends but by ending
    return status if status >= 0 else 128 - status


def main():
    count, settings, command = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        command = [word.replace("{folder}", folder) for word in command]
        files = [[open(os.path.join(folder, f"{rank}.{name}"), "w+b") for name in ("out", "err")] for rank in range(count)]
        processes = [subprocess.Popen(command, env=environment_of(rank, count, settings), stdout=files[rank][0],
                                      stderr=files[rank][1]) for rank in range(count)]
        status = wait_all(processes)
        for rank in range(count):
            for file, output in zip(files[rank], (sys.stdout, sys.stderr)):
                file.seek(0)
                output.buffer.write(file.read())
    sys.exit(status)


if __name__ == "__main__":
    main()
