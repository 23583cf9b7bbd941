"""The parts of the script that decide what is told: results, times, ends of commands and of ranks."""

import json
import os
import sys
import time
import unittest

import place
import support
from results import Fail, Recorder, Skip

RANKS = os.path.join(support.SOURCE, "tests", "gpu", "ranks.py")


class RecorderTest(support.TestCase):
    def recorder(self, seconds=60, **options):
        machine = {"kernel": "", "processors": 1, "libraries": [], "python": "", "recvpool": None, "device": None,
                   "device_bytes": None, "driver": None, "runtime": None, "nccl": None, "cupti": None, "kernel_module": None,
                   "compute_capability": None, "torch": None}
        self.path = os.path.join(self.folder, "gpu-report.json")
        return Recorder(self.path, machine, False, {"a": seconds, "b": 60}, **options)

    def read(self):
        with open(self.path) as file:
            report = json.load(file)
        self.assertEqual([e.message for e in support.validator("gpu.schema.json").iter_errors(report)], [])
        return report

    def run_one(self, function, **options):
        recorder = self.recorder(**options)
        recorder.run("a.check", "?", 10, function)
        return self.read()["checks"][0]

    def test_words(self):
        def raises(error):
            def function(check):
                check.measure("value", 1, "s")
                raise error
            return function
        for function, result, why in (
                (lambda check: check.expect(True, "x"), "pass", None),
                (lambda check: check.expect(False, "x"), "fail", "x"),
                (lambda check: check.expect_equal(1, 2, "number"), "fail", "number: 1, expected 2"),
                (lambda check: check.expect_none([]), "pass", None),
                (lambda check: check.expect_none(["line"]), "fail", "line"),
                (lambda check: check.measure("value", 1.5, "s"), "measured", None),
                (lambda check: None, "measured", None),
                (raises(Skip("not here")), "skipped", "not here"),
                (raises(Fail("broken")), "fail", "broken"),
                (raises(KeyError("name")), "fail", "KeyError: 'name'")):
            check = self.run_one(function)
            with self.subTest(result=result, why=why):
                self.assertEqual((check["result"], check["why"]), (result, why))
                if result == "skipped":
                    self.assertEqual(check["values"], [])

    def test_a_failure_does_not_stop_the_rest(self):
        recorder = self.recorder()
        recorder.run("a.first", "?", 10, lambda check: check.expect(False, "x"))
        self.assertFalse(self.read()["complete"])
        recorder.run("a.second", "?", 10, lambda check: check.expect(True, "x"))
        recorder.finish()
        report = self.read()
        self.assertEqual((report["complete"], [check["result"] for check in report["checks"]]), (True, ["fail", "pass"]))
        self.assertEqual(report["counts"], {"pass": 1, "fail": 1, "skipped": 0, "measured": 0})
        self.assertIn("1 pass, 1 fail, 0 skipped, 0 measured", recorder.table()[-1])

    def test_the_time_of_a_group(self):
        recorder = self.recorder(seconds=1.01)
        left = []
        recorder.run("a.first", "?", 10, lambda check: time.sleep(0.05))
        recorder.run("a.second", "?", 10, lambda check: None)
        recorder.run("b.third", "?", 10, lambda check: left.append(check.left_seconds()))
        self.assertEqual([check["result"] for check in self.read()["checks"]], ["measured", "skipped", "measured"])
        self.assertGreater(left[0], 5)

    def test_where_nothing_can_be_checked(self):
        recorder = self.recorder()
        recorder.impossible = "no device"
        recorder.run("a.first", "?", 10, lambda check: check.expect(True, "x"))
        check, = self.read()["checks"]
        self.assertEqual((check["result"], check["why"]), ("skipped", "no device"))

    def test_only(self):
        recorder = self.recorder(only=["b"])
        for name in ("a.first", "b.second"):
            recorder.run(name, "?", 10, lambda check: None)
        self.assertEqual([check["name"] for check in self.read()["checks"]], ["b.second"])


class CommandTest(support.TestCase):
    def test_what_hangs_is_ended_with_its_children(self):
        marker = os.path.join(self.folder, "pid")
        script = f"sleep 1000 & echo $! >{marker}; wait"
        done = place.run(["sh", "-c", script], dict(os.environ), 1)
        self.assertTrue(done.late)
        self.assertIn("took too long", done.why())
        with open(marker) as file:
            child = int(file.read())
        while self.runs(child):  # until the kernel is done with it
            time.sleep(0.01)

    def runs(self, pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    def test_why(self):
        done = place.run(["sh", "-c", "echo first >&2; echo last >&2; exit 5"], dict(os.environ), 60)
        self.assertEqual((done.status, done.late, done.why()), (5, False, "sh ended with status 5: last"))


class RanksTest(support.TestCase):
    def ranks(self, count, script, *settings):
        return support.run([sys.executable, RANKS, str(count), *settings, "--", "sh", "-c", script])

    def test_environment(self):
        done = self.ranks(3, "echo $RANK $WORLD_SIZE $LOCAL_RANK $NCCL_HOSTID $OWN", "--set", "OWN=a=b")
        self.assert_success(done)
        self.assertEqual(done.stdout, "".join(f"{rank} 3 0 recvpool-rank-{rank} a=b\n" for rank in range(3)))

    def test_one_that_fails_ends_all(self):
        done = self.ranks(2, 'if [ $RANK = 1 ]; then echo bad >&2; exit 7; fi; exec sleep 1000')
        self.assertEqual((done.returncode, done.stderr), (7, "bad\n"))

    def test_a_folder_for_all(self):
        done = self.ranks(2, 'if [ $RANK = 0 ]; then echo met >{folder}/x.part; mv {folder}/x.part {folder}/x; fi; '
                          'until [ -e {folder}/x ]; do sleep 0.01; done; cat {folder}/x')
        self.assert_success(done)
        self.assertEqual(done.stdout, "met\nmet\n")


if __name__ == "__main__":
    unittest.main()
