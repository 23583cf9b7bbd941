"""Proves recvpool on a real GPU, in one run (run.sh): makes the checks and writes gpu-report.json."""
import argparse
import os
import sys
import tempfile

import check_attach
import check_costs
import check_enforce
import check_nccl
import check_questions
import check_torch
import place as places
from programs import measure
from results import Check, Fail, Recorder
from training import Jobs

# Of all checks of a group, so that the whole run ends within 8 minutes.
GROUP_SECONDS = {"attach": 45, "costs": 75, "questions": 30, "enforce": 75, "nccl": 60, "mistake": 70, "torch": 115}
SIMULATED_PATIENCE = 10
NOTHING_DONE = 77


def parse():
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description="Proves recvpool on a real GPU, in one run.")
    parser.add_argument("--out", default="gpu-results", help="folder for gpu-report.json (default: %(default)s)")
    parser.add_argument("--simulate", action="store_true", help="on the simulated device: proves the script, nothing else")
    parser.add_argument("--only", action="append", default=[], metavar="BEGINNING", help="only checks whose names begin so")
    parser.add_argument("--python", default="python3", help="Python that has torch (default: %(default)s)")
    parser.add_argument("--build", help="build folder (default: build/default, built first; of a carried build, its own)")
    parser.add_argument("--check-options", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--simlib", help="folder of the simulated libraries (default: simlib of the build folder)")
    options = parser.parse_args()
    if options.check_options:
        sys.exit(0)
    return options


def simulated_libraries(options):
    if not options.simulate:
        return None
    folder = options.simlib or os.path.join(options.build or "", "simlib")
    if not os.path.isdir(folder):
        sys.exit(f"tests/gpu/run.sh: no simulated libraries in '{folder}': name their folder by --simlib")
    return os.path.abspath(folder)


def look_at_device(recorder, jobs):
    """Fills in what the driver says of itself and of the device; without one, nothing can be checked."""
    try:
        values = measure(Check("", "", 30), jobs, "gpu_memory", "info")
    except Fail as problem:
        recorder.impossible = f"there is no CUDA device to check on ({problem})"
        return
    for name in ("device", "device_bytes", "compute_capability", "driver"):
        recorder.machine[name] = values[name]
    if values["device"].startswith("Simulated") != recorder.simulated:
        recorder.impossible = "the loader gives the other kind of driver than was asked for: look at LD_LIBRARY_PATH"
    if not values["virtual memory management"]:
        recorder.impossible = "the device has no virtual memory management"


def make_checks(options, place, recorder):
    with tempfile.TemporaryDirectory(prefix="recvpool-gpu-") as scratch:
        jobs = Jobs(place, scratch, recorder.machine)
        look_at_device(recorder, jobs)
        # What takes one process comes first: it needs nothing of what the others find out.
        check_attach.doctor_check(recorder, place)
        check_costs.checks(recorder, place, jobs)
        check_questions.checks(recorder, place, jobs)
        check_enforce.checks_of_one_process(recorder, jobs)
        check_nccl.together_check(recorder, jobs)
        check_attach.checks(recorder, jobs)
        check_enforce.checks(recorder, jobs)
        check_nccl.checks(recorder, jobs)
        check_enforce.mistake_checks(recorder, jobs)
        check_torch.checks(recorder, jobs)


def main():
    options = parse()
    place = places.Place(options.build and os.path.abspath(options.build), simulated_libraries(options), options.python)
    os.makedirs(options.out, exist_ok=True)
    path = os.path.join(options.out, "gpu-report.json")
    recorder = Recorder(path, places.describe(place), place.simulated, GROUP_SECONDS,
                        SIMULATED_PATIENCE if place.simulated else 1, options.only)
    make_checks(options, place, recorder)
    recorder.finish()
    print("\n" + "\n".join(recorder.table()))
    print(f"report: {recorder.path}")
    counts = recorder.counts()
    if counts["fail"]:
        return 1
    return 0 if counts["pass"] else NOTHING_DONE


if __name__ == "__main__":
    sys.exit(main())
