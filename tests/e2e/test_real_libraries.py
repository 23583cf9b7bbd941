"""The agent in a process with the real CUDA libraries and no driver: it says which evidence is missing and the program's
own error comes through."""

import os

import support
from support import AGENT, PROGRAMS

ROOT = os.environ.get("E2E_CUDA_ROOT", "")
# A toolkit, or wheels, where NCCL has a folder of its own.
FOLDERS = [os.path.join(ROOT, folder) for folder in ("lib", "lib64", "../nccl/lib")]


def find(name):
    paths = [os.path.join(folder, name) for folder in FOLDERS]
    return next(filter(os.path.exists, paths), paths[0])


LIBRARIES = [find(name) for name in ("libcudart.so.13", "libnccl.so.2")]


class RealLibrariesTest(support.TestCase):
    def setUp(self):
        super().setUp()
        missing = [path for path in LIBRARIES if not os.path.exists(path)]
        if missing:
            self.skipTest("no " + " and no ".join(missing))
        if support.run(["sh", "-c", "ldconfig -p | grep -q libcuda.so.1"]).returncode == 0:
            self.skipTest("this machine has a driver")

    def run_program(self, *agent):
        environment = support.clean_environment(RECVPOOL_REPORT_DIR=self.reports_dir, LD_LIBRARY_PATH=None)
        return support.run([os.path.join(PROGRAMS, "real_libraries"), *LIBRARIES, *agent], env=environment)

    def test_the_error_of_the_program_comes_through(self):
        alone, attached = self.run_program(), self.run_program(AGENT)
        self.assertEqual(alone.returncode, 5, alone.stdout)
        self.assertIn("cudaMalloc: 35 cudaErrorInsufficientDriver", alone.stdout)
        self.assertEqual((attached.returncode, attached.stdout), (alone.returncode, alone.stdout))
        self.assertLessEqual(attached.stderr.count("\n"), 1, attached.stderr)

    def test_the_report_says_what_is_missing(self):
        self.run_program(AGENT)
        report, = self.read_reports()
        evidence = {entry["name"]: entry for entry in report["evidence"]}
        self.assertFalse(evidence["cupti"]["active"])
        self.assertTrue(evidence["cupti"]["reason"])
        self.assertIsNone(report["versions"]["cuda_driver"]["version"])
        self.assertEqual(os.path.realpath(report["versions"]["nccl"]["path"]), os.path.realpath(LIBRARIES[1]))
        self.assertGreater(report["versions"]["nccl"]["version"], 22000)
        self.assertEqual(report["channels"], [])
