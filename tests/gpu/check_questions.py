"""What no public text answers about drivers, CUPTI and NCCL: measured here, since the design avoids to rely on any of it."""
from programs import copy_values, measure
from results import Fail


def attributes(check, jobs):
    """What the pool's own check relies on has right answers; the rest is told."""
    values = measure(check, jobs, "gpu_memory", "attributes", 8 if jobs.place.simulated else 64)
    copy_values(check, values)
    for name in ("MEMORY_BLOCK_ID is equal at both addresses", "MEMORY_BLOCK_ID differs for other memory", "MEMORY_TYPE is device",
                 "cuMemRetainAllocationHandle gives the same handle"):
        check.expect(values[name], f"not so: {name}")
    check.expect_equal(values["in use for three addresses of it"], 0, "bytes in use for further addresses")


def told(check, jobs, name, *arguments, **extra):
    """That it hangs or crashes is an answer too."""
    try:
        copy_values(check, measure(check, jobs, name, *arguments, **extra))
    except Fail as answer:
        check.measure("instead of an answer", str(answer), "")


def transfers(check, jobs):
    values = measure(check, jobs, "gpu_coherence", "nccl", 4 if jobs.place.simulated else 64)
    copy_values(check, values)
    for entry in values.entries:
        check.expect_equal(entry["value"], 0, entry["name"])


def checks(recorder, place, jobs):
    few = place.simulated
    declines = place.program("libgpu_declines.so")
    recorder.run("questions.injection_declines", "what does cuInit return when the injected library returns 0?", 15, told, jobs,
                 "gpu_callbacks", "init", **({"CUDA_INJECTION64_PATH": declines} if declines else {}))
    for mode, question in (("enter", "is an argument that a callback changes what the driver takes?"),
                           ("exit", "is an address that a callback changes what the caller gets?"),
                           ("parameters", "can a kernel's parameters be asked for inside the callback of its launch?"),
                           ("sync", "which calls tell CUPTI's synchronize domain that they waited?")):
        recorder.run(f"questions.callback_{mode}", question, 15, told, jobs, "gpu_callbacks", mode)
    recorder.run("questions.attributes", "what do pointer queries say of memory with several addresses; can a prefix be mapped?",
                 15, attributes, jobs)
    recorder.run("questions.one_kernel", "do writes by one address show at the other inside one kernel?", 15, told, jobs,
                 "gpu_coherence", "kernel")
    recorder.run("questions.early_launch", "and to a kernel that begins before the writer ended?", 15, told, jobs, "gpu_coherence",
                 "early", *(("4", "3") if few else ("64", "200")))
    recorder.run("questions.transfers", "do transfers, in a group and in a graph, work on memory with several addresses?", 20,
                 transfers, jobs)
