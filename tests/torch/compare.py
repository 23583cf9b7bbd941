"""Compares recvpool with dumped schedules of torch (dump.py): its lowering token by token, reading and writing, and what
each rank receives, for how long, and in how many slots.

    python compare.py FOLDER... ; programs: RECVPOOL and SCHEDULE_TEXT in the environment
"""

import glob
import json
import os
import subprocess
import sys

RECVPOOL = os.environ["RECVPOOL"]
SCHEDULE_TEXT = os.environ["SCHEDULE_TEXT"]


def rewrite(how, path):
    with open(path, "rb") as file:
        result = subprocess.run([SCHEDULE_TEXT, how], stdin=file, capture_output=True)
    if result.returncode:
        raise AssertionError(f"{path}: {how}: {result.stderr.decode().strip()}")
    return result.stdout


def plan(path, *options):
    command = [RECVPOOL, "plan", "--lowered", path, "--json", "--slack", "0", *options]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise AssertionError(f"{path}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def dialect(torch_version):
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    if (major, minor) < (2, 10):
        return "lower-2.6"
    return "lower-2.10" if (major, minor) < (2, 15) else "lower-2.15"


def first_difference(ours, theirs):
    for row, (a, b) in enumerate(zip(ours.splitlines(), theirs.splitlines())):
        for column, (x, y) in enumerate(zip(a.split(b","), b.split(b","))):
            if x != y:
                return f"row {row}, column {column}: {x.decode()} instead of {y.decode()}"
        if a != b:
            return f"row {row}: {a.count(b',') + 1} actions instead of {b.count(b',') + 1}"
    return "different number of rows"


def compare_receives(case, expected, document):
    for theirs, ours in zip(expected["ranks"], document["ranks"], strict=True):
        where = f"{case}, rank {theirs['rank']}"
        r = ours["receives"]
        received = [list(item) for item in zip(r["stage"], r["direction"], r["microbatch"], r["begin"], r["end"])]
        assert received == theirs["receives"], f"{where}: lifetimes"
        assert ours["slots"] == theirs["slots"], f"{where}: slots {ours['slots']} instead of {theirs['slots']}"
        depth = sorted([p["stage"], p["direction"], p["depth"]] for p in ours["pools"])
        assert depth == theirs["depth"], f"{where}: depth"


def check_slots(case, expected, document, granularity):
    """No two receives of one class are in one slot at one position, and there are no more slots than needed."""
    for rank in expected["ranks"]:
        classes = [c for c in document["classes"] if c["rank"] == rank["rank"]]
        assert sum(c["slots"] for c in classes) == rank["slots"][granularity], f"{case}: {granularity} slots"
        for c in classes:
            items = [i for i in rank["receives"] if c["stage"] in (None, i[0]) and c["direction"] in (None, i[1])]
            assert len(items) == c["buffers"], f"{case}: buffers of a class"
            last = {}
            for item, slot in zip(items, c["slot_of_microbatch"], strict=True):
                assert last.get(slot, -1) < item[3], f"{case}: slot {slot} is given out twice"
                last[slot] = item[4]


def compare(folder):
    cases = sorted(glob.glob(os.path.join(folder, "*.json")))
    assert cases, f"{folder}: nothing dumped there"
    for path in cases:
        case = path[: -len(".json")]
        with open(path) as file:
            expected = json.load(file)
        with open(case + ".lowered.csv", "rb") as file:
            lowered = file.read()
        ours = rewrite(dialect(expected["torch"]), case + ".compute.csv")
        assert ours == lowered, f"{case}: lowering: {first_difference(ours, lowered)}"
        assert rewrite("print", case + ".lowered.csv") == lowered, f"{case}: reading and writing"
        for granularity in ("stage", "direction", "rank"):
            document = plan(case + ".lowered.csv", "--granularity", granularity)
            check_slots(case, expected, document, granularity)
        compare_receives(case, expected, document)
    print(f"{folder}: {len(cases)} schedules agree")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compare(name)
