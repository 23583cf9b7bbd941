"""The planner's cost, and the same calculation written straightforwardly in Python.

    python bench_plan.py BUILD_FOLDER
"""

import csv
import heapq
import os
import re
import subprocess
import sys
import tempfile
import time

TOKEN = re.compile(r"(\d+)([A-Z_]+?)(\d*)$")
ACTIONS = 1000000


def read(path):
    with open(path, newline="") as file:
        return [[TOKEN.match(cell).groups() for cell in row] for row in csv.reader(file)]


def check(rows):
    """Every microbatch once, every receive with its send."""
    seen = set()
    for row in rows:
        for action in row:
            assert action not in seen or not action[2], action
            seen.add(action)
    for stage, kind, microbatch in seen:
        if kind == "RECV_F":
            assert (str(int(stage) - 1), "SEND_F", microbatch) in seen
        elif kind == "RECV_B":
            assert (str(int(stage) + 1), "SEND_B", microbatch) in seen


def pools(row):
    """Lifetimes by stage and direction."""
    result, live = {}, {}
    for position, (stage, kind, microbatch) in enumerate(row):
        if kind in ("RECV_F", "RECV_B"):
            item = [position, None]
            live[stage, microbatch, kind] = item
            result.setdefault((stage, kind), []).append(item)
        elif kind in ("B", "W"):
            for direction in ("RECV_F", "RECV_B"):
                if (stage, microbatch, direction) in live:
                    live[stage, microbatch, direction][1] = position
    return result


def colour(intervals):
    """Lowest free slot in order of begin; returns the number of slots."""
    active, free, slots = [], [], 0
    for begin, end in sorted(intervals):
        while active and active[0][0] < begin:
            heapq.heappush(free, heapq.heappop(active)[1])
        if free:
            slot = heapq.heappop(free)
        else:
            slot, slots = slots, slots + 1
        heapq.heappush(active, (end, slot))
    return slots


def python_version(path):
    rows = read(path)
    check(rows)
    return sum(colour(v) for row in rows for v in pools(row).values())


def main():
    build = sys.argv[1]
    program = os.path.join(build, "tests", "bench", "bench_plan")
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    print(lines, end="")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "schedule.csv")
        subprocess.run([program, "write", path, str(ACTIONS)], check=True)
        begin = time.monotonic()
        slots = python_version(path)
        python_seconds = time.monotonic() - begin
        command = [os.path.join(build, "agent", "recvpool"), "plan", "--lowered", path, "--slack", "0"]
        begin = time.monotonic()
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds = time.monotonic() - begin
        assert f"Slots without slack: {slots} shared by stage" in text, "the two versions disagree"
    print(f"recvpool plan on one million actions: {seconds:.2f} s; Python: {python_seconds:.2f} s; "
          f"ratio {python_seconds / seconds:.0f}; both find {slots} slots")


if __name__ == "__main__":
    main()
