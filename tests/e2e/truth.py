"""The trainer's own record of what happened (rank-R.jsonl), and what a report must therefore say."""

import glob
import json
import os


class Truth:
    """Record of one rank."""

    def __init__(self, path):
        self.lifetimes, self.channels, self.mistakes = [], [], []
        with open(path) as file:
            for line in file:
                entry = json.loads(line)
                kind = entry.pop("type")
                if kind == "lifetime":
                    self.lifetimes.append(entry)
                elif kind == "channel":
                    self.channels.append(entry)
                elif kind == "mistake":
                    self.mistakes.append(entry)
                else:
                    self.summary = entry
        self.rank, self.pid, self.steps = (self.summary[key] for key in ("rank", "pid", "steps"))
        self.just_in_time = self.summary["allocation"] == "just_in_time"

    def of_channel(self, channel, step):
        """The channel's lifetimes of a step, by microbatch."""
        found = [entry for entry in self.lifetimes if entry["step"] == step
                 and (entry["direction"], entry["stage"]) == (channel["direction"], channel["stage"])]
        return sorted(found, key=lambda entry: entry["microbatch"])


def read(folder):
    """Records of all ranks, by pid."""
    records = [Truth(path) for path in glob.glob(os.path.join(folder, "rank-*.jsonl"))]
    return {record.pid: record for record in records}


# What a report cannot know (README, "What is seen, and what is not"):
# buffers that are allocated for each receive have nothing that numbers them but the order of receipt
RECEIPT_ORDER = "receipt_order"
# a rank that holds the first and the last stage has one channel of each direction, and nothing says that these two
# belong to different stages
STAGE_UNKNOWN = "stage_unknown"


def channel_key(channel, limits=()):
    """What names a channel in both."""
    return channel["direction"], channel["peer"], 0 if STAGE_UNKNOWN in limits else channel["stage_ordinal"]


def by_receipt(lifetimes):
    """The lifetimes with their microbatches numbered by order of receipt."""
    ordered = sorted(lifetimes, key=lambda entry: entry["posted_ns"])
    return [dict(entry, microbatch=index) for index, entry in enumerate(ordered)]


def expected_reason(buffers, depth, slack, just_in_time):
    if just_in_time:
        return "just_in_time"
    if depth == buffers:
        return "unbounded_depth"
    return "within_slack" if depth + slack >= buffers else "poolable"


def compare_lifetime(report, truth, where):
    """Differences between a lifetime of the report and the same one of the record, as lines."""
    problems = []

    def expect(name, got, want):
        if got != want:
            problems.append(f"{where}: {name} is {got}, the trainer says {want}")

    for name in ("step", "microbatch", "address", "accesses"):
        expect(name, report[name], truth[name])
    for mine, its in (("posted", "posted_ns"), ("first_access", "first_access_ns"), ("last_access", "last_access_ns")):
        got, (before, after) = report[mine + "_monotonic_ns"], truth[its]
        if got is None or not before <= got <= after:
            problems.append(f"{where}: {mine} at {got}, the trainer says between {before} and {after}")
    expect("last_access_kind", report["last_access_kind"], "kernel")
    expect("last_access_kernel", report["last_access_kernel"], truth["last_kernel"])
    if report["released_monotonic_ns"] is None or report["released_monotonic_ns"] < report["last_access_monotonic_ns"]:
        problems.append(f"{where}: released at {report['released_monotonic_ns']}, before its last access")
    if report["release_evidence"] == "none":
        problems.append(f"{where}: nothing shows its release")
    return problems


def compare_numbers(report, truth, channel, slack, where):
    """N, D, K, bytes, style and decision."""
    last = truth.steps - 1
    lifetimes = truth.of_channel(channel, last)
    buffers, depths, size = len(lifetimes), channel["depth_per_step"], channel["bytes"]
    depth = depths[last]
    slots = min(buffers, depth + slack)
    reason = expected_reason(buffers, depth, slack, truth.just_in_time)
    want = {"buffer_bytes": size, "buffers": buffers, "depth": depth, "depth_min": min(depths),
            "depth_max": max(depths), "slots": slots, "transfers": buffers * truth.steps,
            "transferred_bytes": buffers * truth.steps * size, "steps_complete": truth.steps,
            "allocation_style": truth.summary["allocation"], "needed_bytes": depth * size,
            "would_save_bytes": (buffers - slots) * size if reason == "poolable" else 0, "unreachable_bytes": 0,
            "estimate": False}
    problems = [f"{where}: {name} is {report[name]}, the trainer says {value}"
                for name, value in want.items() if report[name] != value]
    if report["decision"]["reason"] != reason:
        problems.append(f"{where}: decided {report['decision']['reason']}, expected {reason}")
    held = report["held_bytes"]
    if truth.just_in_time:
        if not depth * size <= held <= buffers * size:
            problems.append(f"{where}: held_bytes is {held} at D = {depth}, N = {buffers} of {size} bytes")
    elif held != buffers * size:
        problems.append(f"{where}: held_bytes is {held}, {buffers} buffers have {buffers * size}")
    return problems


def compare(report, truth, slack, limits=()):
    """Every difference between one process's report and its record, as lines. `limits` are those that apply."""
    name = f"rank {truth.rank}"
    problems = []
    if report["process"]["rank"] != truth.rank:
        problems.append(f"{name}: the report says rank {report['process']['rank']}")
    mine = {channel_key(channel, limits): channel for channel in report["channels"]}
    its = {channel_key(channel, limits): channel for channel in truth.channels}
    if len(mine) != len(report["channels"]) or set(mine) != set(its):
        return problems + [f"{name}: channels {sorted(map(channel_key, report['channels']), key=str)}, "
                           f"the trainer says {sorted(its)}"]
    for key, channel in its.items():
        where = f"{name} {key}"
        problems += compare_numbers(mine[key], truth, channel, slack, where)
        want = truth.of_channel(channel, truth.steps - 1)
        if RECEIPT_ORDER in limits:
            want = by_receipt(want)
        got = mine[key]["lifetimes"]
        if len(got) != len(want):
            problems.append(f"{where}: {len(got)} lifetimes, the trainer says {len(want)}")
        for a, b in zip(got, want):
            problems += compare_lifetime(a, b, f"{where} microbatch {b['microbatch']}")
    return problems
