"""Do several ranks of the real NCCL share one GPU: without the agent, and with it."""
import re

from check_attach import same_as_record
from results import Fail
from training import MIB

ARGUMENTS = ["--microbatches", "6", "--steps", "4", "--message-bytes", str(MIB)]


def several(check, jobs, ranks):
    arguments = ["--schedule", "1f1b", *ARGUMENTS]
    alone = jobs.alone(check, arguments, ranks)
    check.expect_equal(len([line for line in alone if line.startswith("rank ")]), ranks, "ranks that ended")
    check.measure("the same bits as the processor computes", alone == jobs.reference(check, arguments, ranks), "")
    training = jobs.train(check, arguments, ranks, ["--slack", 2])
    check.expect_equal(training.computed, alone, "losses and parameters")
    same_as_record(check, training, ranks)
    shared = jobs.train(check, arguments, ranks, ["--mode", "enforce"])
    check.expect_equal(shared.computed, alone, "losses and parameters in shared memory")


def captured(check, jobs):
    """A graph that holds receives is left alone, and NCCL may register their buffers."""
    arguments = ["--schedule", "1f1b", "--own-stream", *ARGUMENTS, "--capture-at", "2"]
    alone = jobs.alone(check, arguments)
    training = jobs.train(check, arguments, options=["--mode", "enforce"], NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="REG")
    check.expect_equal(training.computed, alone, "losses and parameters")
    check.expect_equal(training.counts("violated"), {}, "violated")
    lines = [line for line in (training.done.stdout + training.done.stderr).splitlines() if re.search(r"regist", line, re.I)]
    check.measure("lines of NCCL about registration", len(lines), "")


def together(check, jobs):
    """If they do not, everything that takes several ranks is left out."""
    try:
        training = jobs.train(check, ["--schedule", "1f1b", "--microbatches", "2", "--steps", "1", "--message-bytes", str(MIB)])
    except Fail as problem:
        jobs.impossible = f"two ranks of NCCL do not train on one GPU here: {problem}"
        raise
    check.expect_equal(len(training.computed), 3, "lines that the trainer printed")


def together_check(recorder, jobs):
    recorder.run("nccl.together", "do two ranks train on one GPU at all?", 40, together, jobs)


def checks(recorder, jobs):
    for ranks in (2, 4):
        recorder.run(f"nccl.ranks_{ranks}", f"do {ranks} ranks train on one GPU, alone, observed and enforced?", 30, several,
                     jobs, ranks)
    recorder.run("nccl.captured", "does a job whose steps are captured in a graph go on as it did?", 20, captured, jobs)
