"""The script for a real GPU, whole, on the simulated device: every check is made or says why not, and none fails."""

import json
import os
import re
import unittest

import support
from support import BUILD, SOURCE

RUN = os.path.join(SOURCE, "tests", "gpu", "run.sh")
# Why a check cannot be made on the simulated device.
EXCUSES = "needs a real driver|torch on the simulated device|no torch was found"
# Sanitizers make everything ten times as slow: then one of each kind.
FEW = ["attach.doctor", "attach.runtime_api", "enforce.auto.1f1b", "enforce.memory", "enforce.out_of_memory", "enforce.self_check",
       "mistake.auto.early_post", "mistake.auto.late_read", "nccl.together", "nccl.captured", "costs", "questions"]


class SimulatedTest(support.TestCase):
    def run_script(self, *arguments, **variables):
        """The report, after the exit status was checked; and what was printed."""
        out = os.path.join(self.folder, "out")
        result = support.run([RUN, "--build", BUILD, "--out", out, *arguments], env=support.clean_environment(**variables),
                             timeout=800)
        self.assertIn(result.returncode, (0, 1, 77), f"{result.stdout}\n{result.stderr}")
        with open(os.path.join(out, "gpu-report.json")) as file:
            report = json.load(file)
        errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}"
                  for e in support.validator("gpu.schema.json").iter_errors(report)]
        self.assertEqual(errors, [])
        return report, result

    def test_every_check(self):
        few = [word for name in FEW for word in ("--only", name)] if os.environ.get("E2E_SANITIZE") else []
        if few:
            print("only a few checks, and none of torch: this build has a sanitizer")
        report, result = self.run_script("--simulate", *few)
        failed = {check["name"]: check["problems"] or check["why"] for check in report["checks"] if check["result"] == "fail"}
        self.assertEqual((failed, result.returncode), ({}, 0), result.stdout + result.stderr)
        self.assertEqual((report["simulated"], report["complete"]), (True, True))
        self.assertIn("nothing here was seen on a GPU", result.stdout)
        for check in report["checks"]:
            self.assertIn(check["name"], result.stdout)
            if check["result"] == "skipped":
                self.assertTrue(re.search(EXCUSES, check["why"]), check)

    def check_nothing_claimed(self, path):
        """Not asked to simulate, and without a device. `path` is LD_LIBRARY_PATH."""
        report, result = self.run_script("--python", "/nonexistent/python3", LD_LIBRARY_PATH=path)
        if report["machine"]["device"] and "Simulated" not in report["machine"]["device"]:
            self.skipTest("this machine has a GPU")
        self.assertEqual(result.returncode, 77, result.stdout)
        self.assertFalse(report["simulated"])
        self.assertEqual({check["result"] for check in report["checks"]}, {"skipped"})
        return {check["why"] for check in report["checks"]}

    def test_without_a_device_nothing_is_claimed(self):
        why, = self.check_nothing_claimed(None)
        self.assertIn("there is no CUDA device", why)

    def test_the_simulated_device_is_not_taken_for_a_real_one(self):
        why, = self.check_nothing_claimed(support.SIMLIB)
        self.assertIn("the other kind of driver", why)


if __name__ == "__main__":
    unittest.main()
