"""Reads the simulated device's record of launches (RPSIM_LAUNCH_LOG, see tests/sim/rpsim.h) and compares two of them."""
import collections
import os

# What is told of these is told exactly. Parameters of other kernels have parts that torch does not fill, where old
# addresses lie about, other ones in every process (cupti/launch_tables.h): of those the name counts only.
EXACT = ("copy", "memset", "send", "receive", "vectorized_elementwise_kernel")


# Smaller receives are metadata, whose memory the allocator soon uses for something else, when depends on the clock.
SMALLEST = 1 << 16


def number(part):
    """Of the buffer in BUFFER=HASH or BUFFER:BYTES."""
    return part.replace(":", "=").split("=")[0]


def renumber(part, numbers):
    return str(numbers[number(part)]) + part[len(number(part)):]


def read(folder, pid):
    """What ran, by stream, as lists of (name, buffers with contents) in the order in which it ran. Streams have no names
    that two runs share, so the lists are sorted. Buffers get the numbers that they would have without metadata."""
    with open(os.path.join(folder, f"{pid}.log")) as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return streams(lines)


def streams(lines):
    found, received = collections.defaultdict(list), {}
    for _, name, buffers in lines:
        if name == "receive":
            received |= {number(part): int(part.split(":")[1]) for part in buffers.split()}
    large = sorted((buffer for buffer, size in received.items() if size >= SMALLEST), key=int)
    numbers = {buffer: place for place, buffer in enumerate(large)}
    for stream, name, buffers in lines:
        exact = any(part in name for part in EXACT)
        named = [renumber(part, numbers) for part in buffers.split() if exact and number(part) in numbers]
        if named or name not in ("copy", "memset", "send", "receive"):
            found[stream].append((name, " ".join(named)))
    return sorted(found.values())


def without_self_check(mine, its):
    """When memory begins to be shared, the agent tries out words of it, on a stream of its own: copies and nothing else, on
    one stream more than without it."""
    own = [stream for stream in mine if all(name == "copy" for name, _ in stream)]
    return [stream for stream in mine if stream not in own] if len(own) == len(mine) - len(its) == 1 else mine


def problems(mine, its, where):
    """Differences between two results of read(), the first of a run with the agent, as lines."""
    mine = without_self_check(mine, its)
    if len(mine) != len(its):
        return [f"{where}: {len(mine)} streams with work, {len(its)} without the agent"]
    found = []
    for number, (a, b) in enumerate(zip(mine, its)):
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        found.append(f"{where}: stream {number} of {len(a)} and {len(b)} launches differs at {at}: "
                     f"{a[at:at + 1]} instead of {b[at:at + 1]}")
    return found
