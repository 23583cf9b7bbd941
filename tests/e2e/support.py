"""What every end-to-end test needs: where the binaries are, running them, reading and validating reports."""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema

SOURCE = os.environ["RECVPOOL_SOURCE_DIR"]
BUILD = os.environ["RECVPOOL_BUILD_DIR"]
RECVPOOL = os.path.join(BUILD, "agent", "recvpool")
AGENT = os.path.join(BUILD, "agent", "librecvpool.so")
TRAINER = os.path.join(BUILD, "tests", "trainer", "rp_trainer")
SIMLIB = os.path.join(BUILD, "simlib")
PROGRAMS = os.path.join(BUILD, "tests", "e2e")

# No test waits for less than it must: this only ends one that hangs.
TIMEOUT_SECONDS = int(os.environ.get("E2E_TIMEOUT_SECONDS", "300"))


def load_schema(name):
    with open(os.path.join(SOURCE, "dashboards", "schema", name)) as file:
        return json.load(file)


def validator(name):
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    store = {other: load_schema(other) for other in ("report.schema.json", "job.schema.json")}
    resolver = jsonschema.RefResolver("", schema, store=store)
    return jsonschema.Draft202012Validator(schema, resolver=resolver)


def clean_environment(**extra):
    """The environment of this test without what would configure the agent, plus `extra` (None removes a name)."""
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith(("RECVPOOL_", "RPSIM_", "CUDA_INJECTION", "NCCL_PROFILER"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    for name, value in extra.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def simulated(**extra):
    """clean_environment with the simulated CUDA and NCCL in front."""
    path = SIMLIB + (":" + os.environ["LD_LIBRARY_PATH"] if os.environ.get("LD_LIBRARY_PATH") else "")
    return clean_environment(LD_LIBRARY_PATH=path, **extra)


def run(command, env=None, **options):
    """Runs to the end; returns CompletedProcess with text output."""
    options.setdefault("timeout", TIMEOUT_SECONDS)
    return subprocess.run(command, env=env if env is not None else clean_environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, errors="backslashreplace",
                          **options)


def has_trainer():
    return os.path.exists(TRAINER) and os.path.exists(AGENT)


def incarnation(pid):
    """What a report says of process `pid`, so that others can tell whether it is still there."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    with open(f"/proc/{pid}/stat") as file:
        start_ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    return {"pid": pid, "boot_id": boot_id, "pid_namespace": os.stat(f"/proc/{pid}/ns/pid").st_ino, "start_ticks": start_ticks}


def incarnation_of_ended():
    """The same of a process that has ended."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    found = incarnation(process.pid)
    process.communicate()
    return found


class TestCase(unittest.TestCase):
    """Gives each test a folder of its own and readable failures."""

    maxDiff = 4000

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="recvpool-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.reports_dir = os.path.join(self.folder, "reports")

    def read_reports(self, folder=None):
        """Every report in the folder, each validated against the schema."""
        reports = []
        for path in sorted(glob.glob(os.path.join(folder or self.reports_dir, "*.json"))):
            with open(path) as file:
                report = json.load(file)
            errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}"
                      for e in validator("report.schema.json").iter_errors(report)]
            self.assertEqual(errors, [], path)
            reports.append(report)
        return reports

    def sample(self, style, *ranks, folder=None):
        """Reports of made-up processes in the folder of reports, or another."""
        for rank in ranks:
            self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), folder or self.reports_dir, str(rank), style]))

    def change_reports(self, change):
        """Calls `change` for each report in the folder, and writes it back."""
        for path in sorted(glob.glob(os.path.join(self.reports_dir, "*.json"))):
            with open(path) as file:
                report = json.load(file)
            change(report)
            with open(path, "w") as file:
                json.dump(report, file)

    def assert_success(self, result):
        self.assertEqual(result.returncode, 0, f"{result.args}\nstdout:\n{result.stdout}\nstderr:\n{result.stderr}")

    def assert_one_line(self, text):
        self.assertEqual(text.count("\n"), 1, text)
        self.assertTrue(text.endswith("\n"), text)


def main(module):
    """Runs the tests of a module. Status 77 (skipped, for ctest) when every test was skipped, 1 when there was none."""
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    if not result.wasSuccessful() or result.testsRun == 0:
        return 1
    return 77 if len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    import support  # the module that the tests import too, not this one under the name __main__

    sys.exit(support.main(sys.argv[1]))
