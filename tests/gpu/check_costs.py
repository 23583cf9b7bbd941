"""What it costs: calls by the host's clock, memory by CUDA events, medians of many."""
from place import run
from programs import copy_values, measure
from results import Fail, Skip


def call_ns(check, jobs, call, pointer, base, count, options=None):
    """Nanoseconds of one call of bench_calls, in a process of its own."""
    program = jobs.place.program("bench_calls")
    if not program:
        raise Skip("this build has no bench_calls")
    prefix = [] if options is None else [jobs.place.recvpool, "run", "--report-dir", jobs.folder("reports"), "--min-bytes",
                                         "1024", *options, "--"]
    done = run([*prefix, program, call, pointer, base, str(count)], jobs.place.environment(), check.left_seconds())
    if done.late or done.status != 0:
        raise Fail(done.why())
    return float(done.stdout.split()[-1])


def calls(check, jobs, call, pointer, count, bases):
    """Each in a process of its own; bench_calls takes the best of ten batches."""
    times = {f"base: {base}": call_ns(check, jobs, call, pointer, base, count) for base in bases}
    times["observed"] = call_ns(check, jobs, call, pointer, "none", count, [])
    for name, value in times.items():
        check.measure(name, value, "ns")
    check.measure("observed over the last base", times["observed"] - times[f"base: {bases[-1]}"], "ns")


def program(check, jobs, name, *arguments):
    copy_values(check, measure(check, jobs, name, *arguments))


def checks(recorder, place, jobs):
    few = place.simulated
    sizes = ("2", "4") if few else ("2", "64", "512")
    recorder.run("costs.mapping", "what does each call of virtual memory management take?", 30, program, jobs, "gpu_memory",
                 "costs", *sizes)
    recorder.run("costs.pool", "what does it take to map 64 buffers over 8 slots?", 20, program, jobs, "gpu_memory", "pool", "64",
                 "8", "2" if few else "64")
    recorder.run("costs.unmap", "does unmapping wait for a kernel that has nothing to do with it?", 20, program, jobs,
                 "gpu_memory", "unmap", "4" if few else "64")
    recorder.run("costs.bandwidth", "is memory with two addresses as fast as plain memory (1.00)?", 20, program, jobs,
                 "gpu_memory", "bandwidth", "4" if few else "1024")
    for pointer, words in (("miss", "names no receive buffer"), ("hit", "names a receive buffer")):
        recorder.run(f"costs.launch_{pointer}", f"a launch that {words}, refused by the driver right after its callbacks", 30,
                     calls, jobs, "launch", pointer, 2000 if few else 100000, ["none", "resource", "empty"])
        recorder.run(f"costs.use_{pointer}", f"a launch that {words}, made", 30, calls, jobs, "use", pointer,
                     200 if few else 10000, ["none", "empty"])
    recorder.run("costs.receive", "a send and receive of 1 MiB to oneself", 30, calls, jobs, "transfer", "miss",
                 20 if few else 200, ["none"])
    for call in ("record", "wait"):
        recorder.run(f"costs.{call}", f"an event {call}, receive buffers in use on 8 streams", 30, calls, jobs, call,
                     "hit", 200 if few else 5000, ["none"])
