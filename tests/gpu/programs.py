"""The programs that measure (gpu_*.c, tests/bench/bench_calls.c): running them, alone or attached, and their lists of values."""
import json
import os

from place import read_reports, run
from results import Fail, Skip


class Values:
    """What a program printed."""

    def __init__(self, entries, reports=()):
        self.entries, self.reports = entries, reports
        self.by_name = {entry["name"]: entry["value"] for entry in entries}

    def __getitem__(self, name):
        if name not in self.by_name:
            raise Fail(f"the program did not tell '{name}'")
        return self.by_name[name]


def measure(check, jobs, name, *arguments, options=None, ok=(0,), **extra):
    """Values of a program; attached where `options` of `recvpool run` are given. Fails unless its status is in `ok`; without a
    value where that is not 0."""
    program = jobs.place.program(name)
    if not program:
        raise Skip(f"this build has no {name}")
    reports = jobs.folder("reports")
    prefix = [] if options is None else [jobs.place.recvpool, "run", "--report-dir", reports, *map(str, options), "--"]
    done = run([*prefix, program, *map(str, arguments)], jobs.place.environment(**extra), check.left_seconds())
    if done.late or done.status not in ok:
        raise Fail(done.why())
    entries = json.loads(done.stdout) if done.status == 0 else []
    found = list(read_reports(reports).values())
    for report in found:
        for library in ("cuda_runtime", "nccl", "cupti"):
            jobs.machine[library.removeprefix("cuda_")] = report["versions"][library]["version"]
    return Values(entries, found)


def copy_values(check, values):
    check.values += values.entries


def plan_from(check, jobs, name, *arguments, **extra):
    """Path of a plan made of an observed run of the program."""
    program, reports = jobs.place.program(name), jobs.folder("reports")
    command = [jobs.place.recvpool, "run", "--report-dir", reports, "--", program, *map(str, arguments)]
    done = run(command, jobs.place.environment(**extra), check.left_seconds())
    if done.status != 0:
        raise Fail(done.why())
    path = os.path.join(reports, "plan")
    done = run([jobs.place.recvpool, "plan", "--from-report", reports, "--output", path], jobs.place.environment(),
               check.left_seconds())
    if done.status != 0:
        raise Fail(done.why())
    return path
