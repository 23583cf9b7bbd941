"""What a report of the agent must say about a job that record.py has recorded."""
import truth


def lifetime_problems(report, record, where):
    problems = []
    for name in ("step", "microbatch", "address", "accesses"):
        if report[name] != record[name]:
            problems.append(f"{where}: {name} is {report[name]}, the record says {record[name]}")
    for mine, its in (("posted", "posted_ns"), ("first_access", "first_access_ns"), ("last_access", "last_access_ns")):
        got, (before, after) = report[mine + "_monotonic_ns"], record[its]
        if got is None or not before <= got <= after:
            problems.append(f"{where}: {mine} at {got}, the record says {before} to {after} ({record['last_kernel']})")
    return problems


def channel_problems(report, record, channel, slack, shared, where):
    lifetimes = record.of_channel(channel, record.steps - 1)
    count, size, depths = len(lifetimes), channel["bytes"], channel["depth_per_step"]
    slots, decision = min(count, depths[-1] + slack), reason(channel, slack, shared)
    want = {"buffer_bytes": size, "buffers": count, "depth": depths[-1], "depth_min": min(depths),
            "depth_max": max(depths), "slots": slots, "transfers": count * record.steps,
            "steps_complete": record.steps, "allocation_style": record.summary["allocation"], "estimate": False,
            "held_bytes": count * size, "unreachable_bytes": count * size if shared else 0,
            "would_save_bytes": (count - slots) * size if decision == "poolable" else 0}
    got = report["decision"]["reason"]
    return [f"{where}: {name} is {report[name]}, the record says {value}"
            for name, value in want.items() if report[name] != value] + (
                [f"{where}: decided {got}, right is {decision}"] if got != decision else [])


def reason(channel, slack, shared):
    """The decision that is right for a preallocated channel."""
    count, depth = channel["receives_per_step"][-1], channel["depth_per_step"][-1]
    if depth == count:
        return "unbounded_depth"
    if shared:
        return "shared_allocation"
    return "within_slack" if depth + slack >= count else "poolable"


def problems(report, record, slack, limits=(), shared=False):
    """Every difference, as lines; `shared`: buffers share allocations."""
    name = f"rank {record.rank}"
    mine = {truth.channel_key(channel, limits): channel for channel in report["channels"]}
    its = {truth.channel_key(channel, limits): channel for channel in record.channels}
    if len(mine) != len(report["channels"]) or set(mine) != set(its):
        return [f"{name}: channels {sorted(map(truth.channel_key, report['channels']), key=str)}, "
                f"the record says {sorted(its)}"]
    found = []
    for key, channel in its.items():
        where = f"{name} {key}"
        found += channel_problems(mine[key], record, channel, slack, shared, where)
        want = record.of_channel(channel, record.steps - 1)
        if truth.RECEIPT_ORDER in limits:
            want = truth.by_receipt(want)
        got = mine[key]["lifetimes"]
        if len(got) != len(want):
            found.append(f"{where}: {len(got)} lifetimes, the record says {len(want)}")
        for a, b in zip(got, want):
            found += lifetime_problems(a, b, f"{where} microbatch {b['microbatch']}")
    return found
