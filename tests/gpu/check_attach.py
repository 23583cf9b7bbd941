"""Does the agent see what happens: N, D and lifetimes against the trainer's own record, with the same results as without."""
import json

from place import run
from results import Fail, Skip
from training import MIB, truth

SLACK = 2
ARGUMENTS = ["--microbatches", "6", "--steps", "4", "--message-bytes", str(MIB)]


def doctor(check, place):
    """What `recvpool doctor` finds wanting on this machine."""
    done = run([place.recvpool, "doctor", "--json"], place.environment(), check.left_seconds())
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise Fail(done.why()) from None
    check.measure("recvpool run works", document["run_works"], "")
    check.measure("recvpool attach works", document["attach_works"], "")
    for finding in document["findings"]:
        if finding["concerns"] == "run" or finding["status"] in ("warning", "failure"):
            check.measure(finding["name"], f"{finding['status']}: {finding['text']}", "")
    check.expect(document["run_works"], "recvpool doctor says that recvpool run does not work here")


def same_as_record(check, training, ranks):
    """Every difference between reports and records is a problem."""
    check.expect_equal(sorted(training.reports), list(range(ranks)), "ranks that left a report")
    check.expect_equal(sorted(training.records), list(range(ranks)), "ranks that left a record")
    for rank, record in training.records.items():
        if rank in training.reports:
            check.expect_none(truth.compare(training.reports[rank], record, SLACK))


def observe(check, jobs, schedule, way, static):
    if static and jobs.place.simulated:
        raise Skip("CUDA's own static runtime needs a real driver")
    arguments = [*schedule, *ARGUMENTS]
    training = jobs.train(check, [*arguments, *way], options=["--slack", SLACK], static=static)
    same_as_record(check, training, 2)
    check.expect_equal(training.computed, jobs.alone(check, arguments), "losses and parameters")
    for rank, report in sorted(training.reports.items()):
        for source in report["evidence"]:
            if source["name"] in ("interposer", "cupti"):
                check.expect(source["active"], f"rank {rank}: {source['name']} is off: {source['reason']}")
        check.expect_equal(report["warnings"], [], f"rank {rank}: warnings")
    receiving = training.reports.get(1)
    for channel in receiving["channels"] if receiving else []:
        name = f"{channel['direction']} of stage {channel['stage_ordinal']}"
        check.measure(f"N and D, {name}", f"{channel['buffers']} and {channel['depth']}", "buffers")
    for name, version in sorted(receiving["versions"].items()) if receiving else []:
        check.measure(name, f"{version['version']} ({version['path']})", "")


def doctor_check(recorder, place):
    recorder.run("attach.doctor", "does recvpool doctor find what it needs on this machine?", 30, doctor, place)


def checks(recorder, jobs):
    one, interleaved = ["--schedule", "1f1b"], ["--schedule", "interleaved_1f1b", "--chunks", "2"]
    for name, schedule, way, static in (("runtime_api", one, [], False), ("driver_api", one, ["--driver-api"], False),
                                        ("static_runtime", one, [], True), ("interleaved", interleaved, [], False)):
        recorder.run(f"attach.{name}", "are N, D and lifetimes those of the trainer's record, and the results the same?", 40,
                     observe, jobs, schedule, way, static)
