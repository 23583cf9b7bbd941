"""Does sharing memory change nothing but the memory: results bit for bit, memory as the device counts it, a job that would not
fit, and what becomes of every mistake that the trainer can make."""
from programs import measure, plan_from
from results import Fail
from training import MIB

SIZE = 2 * MIB  # a piece of device memory, so that nothing is rounded up
MICROBATCHES, STEPS = 6, 5
SLACK = 1


# name: what is trained, stages and schedule of its plan, and a way to do the same
ONE, INTERLEAVED = ["--schedule", "1f1b"], ["--schedule", "interleaved_1f1b", "--chunks", "2"]
TRAININGS = {
    "1f1b": (ONE, 2, "1f1b", []),
    "interleaved": (INTERLEAVED, 4, "interleaved_1f1b", []),
    "driver_api": (ONE, 2, "1f1b", ["--driver-api", "--own-stream"]),
    "backward_thread": (ONE, 2, "1f1b", ["--backward-thread"]),
}


def arguments_of(schedule):
    return [*schedule, "--microbatches", MICROBATCHES, "--steps", STEPS, "--message-bytes", SIZE]


def expect_quiet(check, training):
    """A correct program: nothing refused, prevented or violated."""
    for rank, report in sorted(training.reports.items()):
        check.expect_equal(report["warnings"], [], f"rank {rank}: warnings")
        check.expect(report["enforcement"]["refused"] is None, f"rank {rank}: refused: {report['enforcement']['refused']}")
    for rank, device in training.devices().items():
        check.expect(device["refused"] is None, f"rank {rank}: device refused: {device['refused']}")
        check.expect_equal(device["backend_failures"], 0, f"rank {rank}: failed driver calls")
    for which in ("prevented", "violated"):
        check.expect_equal(training.counts(which), {}, which)


def expect_slots(check, training, ranks):
    """Every class shares exactly K slots."""
    found = training.devices()
    check.expect_equal(sorted(found), list(range(ranks)), "ranks whose memory is shared")
    saved = 0
    for rank, device in found.items():
        check.expect(device["planned"] or device["activations"] > 0, f"rank {rank}: nothing was shared: {device['idle']}")
        for pool in device["classes"]:
            name = f"rank {rank} {pool['direction']}"
            check.expect_equal((pool["grown"], pool["physical_peak_bytes"]), (0, pool["slots"] * pool["mapped_bytes"]),
                               f"{name}: grown, peak bytes")
            check.expect(pool["slots"] < pool["buffers"], f"{name}: {pool['slots']} slots for {pool['buffers']} buffers")
        saved += device["saved_peak_bytes"]
    check.measure("saved at most, by the agent", saved, "bytes")
    seconds = [device["activation"]["duration_seconds"] for device in found.values() if device["activation"]]
    if seconds:
        check.measure("longest activation", max(seconds) * 1e3, "ms")


def same_bits(check, jobs, how, name):
    schedule, stages, planned, way = TRAININGS[name]
    arguments = [*arguments_of(schedule)]
    options = ["--mode", "enforce", "--slack", SLACK]
    if how == "planned":
        path = jobs.plan(check, stages, MICROBATCHES, SIZE, "--ranks", 2, "--slack", SLACK, schedule=planned)
        options = ["--mode", "enforce", "--plan", path]
    training = jobs.train(check, [*arguments, *way], options=options)
    check.expect_equal(training.computed, jobs.alone(check, arguments), "losses and parameters")
    expect_quiet(check, training)
    expect_slots(check, training, 2)


def cupti_given_back(check, jobs):
    arguments = arguments_of(["--schedule", "1f1b"])
    training = jobs.train(check, arguments, options=["--mode", "enforce", "--cupti", "learn"])
    check.expect_equal(training.computed, jobs.alone(check, arguments), "losses and parameters")
    expect_quiet(check, training)
    expect_slots(check, training, 2)


# ---- memory, in one process, so that nobody else's is counted

def sizes(place):
    """Bytes of a buffer, buffers: large ones where there is memory."""
    return (SIZE, 12) if place.simulated else (64 * MIB, 64)


def transfers(check, jobs, how, steps=6, **extra):
    """(alone, attached) of gpu_transfers."""
    size, buffers = sizes(jobs.place)
    arguments = ["--buffers", buffers, "--depth", 2, "--steps", steps, "--bytes", size]
    options = ["--mode", "enforce"]
    if how == "planned":
        options += ["--plan", plan_from(check, jobs, "gpu_transfers", *arguments), "--plan-rank", 0]
    alone = measure(check, jobs, "gpu_transfers", *arguments, **extra)
    return alone, measure(check, jobs, "gpu_transfers", *arguments, options=options, **extra)


def device_of(check, values):
    devices = [device for report in values.reports for device in report["enforcement"]["devices"]]
    if len(devices) != 1:
        raise Fail(f"{len(devices)} devices in the report, expected one")
    return devices[0]


def memory(check, jobs, how):
    """What the device has in use tells the same as the agent."""
    alone, attached = transfers(check, jobs, how)
    device = device_of(check, attached)
    when = "in use after the last step"
    saved = alone[when] - attached[when]
    check.measure("in use alone", alone[when], "bytes")
    check.measure("in use attached", attached[when], "bytes")
    buffers, slots = sizes(jobs.place)[1], sum(pool["slots"] for pool in device["classes"])
    check.measure("buffers", buffers, "")
    check.measure("slots", slots, "")
    # The report is written when everything was given back; what was shared until then are the buffers beyond the slots.
    should = (buffers - slots) * sizes(jobs.place)[0]
    check.measure("saved, by the agent", device["saved_peak_bytes"], "bytes")
    check.expect(device["planned"] or device["activations"] > 0, f"nothing was shared: {device['idle']}")
    check.expect_equal(device["saved_peak_bytes"], should, "bytes saved by the agent's account")
    # What the agent and CUPTI take for themselves is less than a buffer.
    check.expect(abs(saved - should) <= sizes(jobs.place)[0], f"the device says that {saved} bytes are saved, the agent {should}")
    for values in (alone, attached):
        check.expect_equal(values["words that were wrong"], 0, "words that were wrong")
    check.measure("a step, attached over alone", attached["a step after the first"] / alone["a step after the first"], "")
    if device["activation"]:
        check.measure("activation", device["activation"]["duration_seconds"] * 1e3, "ms")


def out_of_memory(check, jobs):
    """The same job does not fit alone, and fits with a plan; the limit is what another allocation leaves free."""
    size, buffers = sizes(jobs.place)
    small = ["--depth", 2, "--bytes", size]
    extra = {"RPSIM_DEVICE_BYTES": 256 * MIB} if jobs.place.simulated else {}
    path = plan_from(check, jobs, "gpu_transfers", "--buffers", buffers, *small)
    # K slots and room for what else is needed, but not for all buffers.
    arguments = ["--buffers", buffers, *small, "--leave-free", buffers * size // 2]
    alone = measure(check, jobs, "gpu_transfers", *arguments, ok=(0, 4), **extra)
    check.expect(not alone.entries, "alone, the job fits too: nothing is shown")
    options = ["--mode", "enforce", "--plan", path, "--plan-rank", 0]
    attached = measure(check, jobs, "gpu_transfers", *arguments, options=options, ok=(0, 4), **extra)
    if not attached.entries:
        raise Fail("with a plan the job runs out of memory too")
    check.expect_equal(attached["words that were wrong"], 0, "words that were wrong")
    check.measure("left free", attached["left free"], "bytes")
    check.measure("needed by all buffers", buffers * size, "bytes")


def self_check(check, jobs):
    """Memory with several addresses is coherent where operations are ordered, and the count of wrong words counts."""
    values = measure(check, jobs, "gpu_coherence", "order", 8 if jobs.place.simulated else 64, 3 if jobs.place.simulated else 50)
    check.values += values.entries
    for name in ("kernel to kernel, by stream", "kernel to kernel, by event", "copies and fills to kernels and back",
                 "kernel to kernel, in a graph"):
        check.expect_equal(values[name], 0, name)
    check.expect_equal(values["counted where all words are wrong"], values["words there are"], "wrong words counted on purpose")


# ---- mistakes

# kind: (what the report calls it, prevented)
MISTAKES = {
    "missing-wait": ("unordered_reuse", True),
    "early-post": ("early_reuse", True),
    "wrong-stream": ("unordered_reuse", True),
    "late-read": ("stale_access", False),
    "late-send": ("stale_access", False),
    "foreign-write": ("foreign_access", True),
    "unseen-write": ("foreign_access", False),
    "oversize": ("size_mismatch", True),
    "double-free": ("double_free", True),
    "register": ("escaped_pointer", True),
    "ipc-export": ("escaped_pointer", True),
    "comm-abort": ("interrupted_step", True),
}
MISTAKE_STAGES = 3


def mistake_arguments(kind):
    # The longer one has to fit into what is really there, where little of that is lost by rounding.
    size = SIZE - MIB // 128 if kind == "oversize" else SIZE
    return size, ["--microbatches", MICROBATCHES, "--steps", 6, "--message-bytes", size, "--own-stream"]


def mistake(check, jobs, kind, how):
    """Reported as what it is; where it can be prevented, with the same results."""
    word, prevented = MISTAKES[kind]
    size, correct = mistake_arguments(kind)
    options = ["--mode", "enforce", "--slack", 0]
    if how == "planned":
        options = ["--mode", "enforce", "--plan", jobs.plan(check, MISTAKE_STAGES, MICROBATCHES, size, "--slack", 0)]
    training = jobs.train(check, [*correct, "--mistake", kind, "--mistake-step", 4], MISTAKE_STAGES, options,
                          ok=(0,) if prevented else None)
    named, other = ("prevented", "violated") if prevented else ("violated", "prevented")
    check.expect_equal(set(training.counts(named)), {word}, named)
    check.expect_equal(training.counts(other), {}, other)
    if prevented:
        check.expect_equal(training.computed, jobs.alone(check, correct, MISTAKE_STAGES), "losses and parameters")
    else:  # what is gone is gone: the trainer sees it too
        check.expect("broken pattern" in training.done.stderr, "the trainer did not find what was overwritten")
        check.expect(training.done.status != 0 and not training.done.late, training.done.why())


def checks_of_one_process(recorder, jobs):
    for how in ("auto", "planned"):
        recorder.run(f"enforce.memory.{how}", "does the device have as much less in use as the agent says?", 30, memory, jobs, how)
    recorder.run("enforce.out_of_memory", "does a job that does not fit train with a plan?", 30, out_of_memory, jobs)
    recorder.run("enforce.self_check", "is memory with several addresses coherent where operations are ordered?", 20,
                 self_check, jobs)


def checks(recorder, jobs):
    for how in ("auto", "planned"):
        for name in TRAININGS:
            recorder.run(f"enforce.{how}.{name}", "are the results those without recvpool, bit for bit, in K slots?", 30,
                         same_bits, jobs, how, name)
    recorder.run("enforce.cupti_learn", "and with CUPTI given back once memory is shared?", 30, cupti_given_back, jobs)


def mistake_checks(recorder, jobs):
    for kind in MISTAKES:
        recorder.run(f"mistake.auto.{kind.replace('-', '_')}", f"is {kind} reported as what it is?", 20, mistake, jobs, kind,
                     "auto")
    for kind in ("missing-wait", "late-read", "foreign-write", "comm-abort"):
        recorder.run(f"mistake.planned.{kind.replace('-', '_')}", f"is {kind} reported as what it is, with a plan?", 20,
                     mistake, jobs, kind, "planned")
