"""The order of streams as it is fed in a live process: programs of many kinds of calls, by the runtime and the driver, with
legacy and per-thread default streams, with driver callbacks and without."""

import os
import re
import unittest

import support
from support import PROGRAMS

PROBE = os.path.join(PROGRAMS, "librecvpool_probe.so")
SANITIZED = bool(os.environ.get("E2E_SANITIZE"))
LINE = re.compile(r"promises (\d+) broken (\d+) operations (\d+) captured (\d+) lost (\d+) dropped (\d+)")


class OrderLiveTest(support.TestCase):
    def run_program(self, variant, api, mode, seed, count, cupti, **extra):
        environment = support.simulated(CUDA_INJECTION64_PATH=PROBE, RECVPOOL_CUPTI=cupti, RPSIM_SEED=str(seed),
                                        RECVPOOL_REPORT_DIR=self.reports_dir, **extra)
        program = os.path.join(PROGRAMS, "order_program" + variant)
        result = support.run([program, api, mode, str(seed), str(count)], env=environment)
        self.assert_success(result)
        line = LINE.search(result.stdout)
        self.assertTrue(line, result.stdout + result.stderr)
        promises, broken, _, captured, lost, dropped = map(int, line.groups())
        self.assertEqual((broken, lost, dropped), (0, 0, 0), result.stdout)
        return promises, captured

    def variants(self):
        for variant in ("", "_ptds"):
            for api in ("runtime", "driver"):
                for cupti in ("always", "off"):
                    yield variant, api, cupti

    def test_exactly_what_cuda_promises(self):
        programs = 60 if SANITIZED else 200
        for seed, (variant, api, cupti) in enumerate(self.variants(), 1):
            with self.subTest(variant=variant, api=api, cupti=cupti):
                promises, _ = self.run_program(variant, api, "model", seed, programs, cupti)
                self.assertGreater(promises, programs * 3)

    def test_threads_on_the_loose(self):
        rounds = 1 if SANITIZED else 2
        for seed, (variant, api, cupti) in enumerate(self.variants(), 1):
            with self.subTest(variant=variant, api=api, cupti=cupti):
                promises, captured = self.run_program(variant, api, "free", seed, rounds, cupti, ORDER_PROBE_PAUSE_US="60")
                self.assertGreater(promises, 200)
                self.assertGreater(captured, 0)

    def test_calls_that_fail(self):
        for seed, fail in enumerate(("cuEventRecord:40+:999", "cuStreamWaitEvent:30+:999,cuLaunchKernel:25:999",
                                     "cuLaunchKernelEx:5+:999,cuStreamSynchronize:3+:999,cuEventSynchronize:3+:999",
                                     "cuStreamBeginCapture_v2:8+:999,cuGraphLaunch:9+:999,cuStreamDestroy_v2:4+:999"), 50):
            for cupti in ("always", "off"):
                with self.subTest(fail=fail, cupti=cupti):
                    self.run_program("", "runtime", "free", seed, 1, cupti, RPSIM_FAIL=fail, ORDER_PROBE_PAUSE_US="30")

    def test_where_it_is_easy_to_promise_too_much(self):
        for variant in ("", "_ptds"):
            for cupti in ("always", "off"):
                with self.subTest(variant=variant, cupti=cupti):
                    self.run_program(variant, "runtime", "odd", 1, 1, cupti, RPSIM_DEVICES="2")

    def test_nccls_own_events(self):
        self.assertEqual(self.run_program("", "runtime", "nccl", 1, 1, "always")[0], 2)
        self.assertEqual(self.run_program("", "runtime", "nccl", 1, 1, "off")[0], 1)


if __name__ == "__main__":
    unittest.main()
