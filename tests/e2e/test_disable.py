"""The kill switch: `recvpool disable`, and the file that it puts into the report folder."""

import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import support
from support import PROGRAMS, RECVPOOL, TRAINER, run

SOMEBODY = 65534


class CommandTest(support.TestCase):
    def setUp(self):
        super().setUp()
        os.mkdir(self.reports_dir)

    def disable(self, *arguments, **options):
        return run([RECVPOOL, "disable", "--report-dir", self.reports_dir, *arguments], **options)

    def assert_refused(self, words, *arguments, status=1, **options):
        with self.subTest(words):
            before = sorted(os.listdir(self.reports_dir))
            result = self.disable(*arguments, **options)
            self.assertEqual((result.returncode, result.stdout), (status, ""))
            self.assert_one_line(result.stderr)
            self.assertIn(words, result.stderr)
            self.assertEqual(sorted(os.listdir(self.reports_dir)), before)

    def leave_report(self, pid, style="enforced", start=900, **changes):
        """A report as an agent in process `pid` of this machine would have it; returns its path without .json."""
        folder = os.path.join(self.folder, "sample")
        self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), folder, "0", style]))
        (made,) = glob.glob(folder + "/*.json")
        with open(made) as file:
            report = json.load(file)
        os.unlink(made)
        report["state"] = "running"
        report.update(changes)
        base = os.path.join(self.reports_dir, f"{re.sub('[^A-Za-z0-9._-]', '_', socket.gethostname())}-{pid}-{start}")
        with open(base + ".json", "w") as file:
            json.dump(report, file)
        return base

    def test_the_file_is_put_beside_the_report(self):
        pid = os.getpid()
        old, new = self.leave_report(pid), self.leave_report(pid, start=1000)
        self.leave_report(pid + 1, start=5000)
        result = self.disable(str(pid))
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        self.assertIn(new + ".json", result.stdout)
        self.assertTrue(os.path.isfile(new + ".disable"))
        self.assertEqual(glob.glob(self.reports_dir + "/*.disable"), [new + ".disable"])
        self.assertNotEqual(old, new)
        self.assert_success(self.disable(str(pid)))  # it is there already

    def test_the_folder_comes_from_the_environment_too(self):
        base = self.leave_report(os.getpid())
        result = run([RECVPOOL, "disable", str(os.getpid())],
                     env=support.clean_environment(RECVPOOL_REPORT_DIR=self.reports_dir))
        self.assert_success(result)
        self.assertTrue(os.path.isfile(base + ".disable"))

    def test_a_process_without_an_agent(self):
        self.assert_refused(f"process {os.getpid()} has no agent: {self.reports_dir} holds no report of it",
                            str(os.getpid()))
        child = subprocess.Popen(["true"])
        child.wait()
        self.assert_refused(f"there is no process {child.pid}", str(child.pid))
        self.leave_report(child.pid)
        self.assert_refused("it has ended", str(child.pid))

    def test_what_could_do_nothing(self):
        pid = os.getpid()
        self.leave_report(pid, mode="observe")
        self.assert_refused("it does not run in mode enforce", str(pid))
        self.leave_report(pid, state="finished")
        self.assert_refused("it has finished", str(pid))
        self.leave_report(pid, schema="other")
        self.assert_refused("its report cannot be read", str(pid))
        with open(self.leave_report(pid) + ".json", "w") as file:
            file.write('{"schema": "recv')
        self.assert_refused("its report cannot be read", str(pid))

    def test_what_the_process_would_not_believe(self):
        base = self.leave_report(os.getpid())
        os.chmod(self.reports_dir, 0o777)
        self.assert_refused("others can rename files in the report folder", str(os.getpid()))
        os.chmod(self.reports_dir, 0o755)
        os.symlink("/etc/passwd", base + ".disable")
        self.assert_refused("it is a link", str(os.getpid()))

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
    def test_another_users_process(self):
        self.leave_report(os.getpid())
        os.chmod(self.folder, 0o755)
        self.assert_refused(f"belongs to user 0 and obeys only that user and root", str(os.getpid()), user=SOMEBODY)

    def test_usage(self):
        for arguments, words in (([], "one process number"), (["1", "2"], "one process number"), (["x"], "one process number"),
                                 (["-5"], "-5"), (["0"], "one process number"), (["99999999999"], "one process number"),
                                 (["--all"], "--all")):
            self.assert_refused(words, *arguments, status=2)
        result = run([RECVPOOL, "disable", "--report-dir", "/nowhere", "1"])
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr)
        self.assertIn("/nowhere", result.stderr)
        self.assert_success(run([RECVPOOL, "disable", "--help"]))


@unittest.skipUnless(support.has_trainer(), "no trainer in this build")
class JobTest(support.TestCase):
    """A running job: two ranks that share memory, until they are told not to."""

    def command(self, steps):
        return [RECVPOOL, "run", "--mode", "enforce", "--interval", "0.05", "--report-dir", self.reports_dir, "--", TRAINER,
                "--stages", "2", "--microbatches", "8", "--message-bytes", "4MiB", "--steps", str(steps)]

    def end_all_of(self, process):
        """Also what it started, if it is still there."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def start(self):
        process = subprocess.Popen(self.command(1000000), env=support.simulated(), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(self.end_all_of, process)
        self.wait_for(lambda reports: len(reports) == 2 and all(self.device(r).get("active") for r in reports))

    def device(self, report):
        devices = (report["enforcement"] or {}).get("devices")
        return devices[0] if devices else {}

    def wait_for(self, condition):
        """Until the reports are as wanted; they are rewritten every few milliseconds."""
        end = time.monotonic() + support.TIMEOUT_SECONDS
        while True:
            reports = sorted(self.read_reports(), key=lambda r: r["process"]["rank"] or 0)
            if condition(reports):
                return reports
            self.assertLess(time.monotonic(), end, [self.device(r) for r in reports])
            time.sleep(0.1)

    def base_of(self, report):
        (path,) = glob.glob(f"{self.reports_dir}/*-{report['process']['pid']}-*.json")
        return path[: -len(".json")]

    def switched_off(self, report):
        off = report["enforcement"]["switched_off"]
        return off is not None and off["took_effect_monotonic_ns"] is not None

    def test_disable_ends_sharing_in_one_process(self):
        self.start()
        pid = self.read_reports()[0]["process"]["pid"]
        self.assert_success(run([RECVPOOL, "disable", "--report-dir", self.reports_dir, str(pid)]))
        reports = self.wait_for(lambda reports: any(self.switched_off(r) for r in reports))
        for report in reports:
            device = self.device(report)
            self.assertEqual(self.switched_off(report), report["process"]["pid"] == pid)
            self.assertEqual(device["active"], report["process"]["pid"] != pid)
            if report["process"]["pid"] != pid:
                continue
            off = report["enforcement"]["switched_off"]
            self.assertEqual(off["file"], os.path.basename(self.base_of(report)) + ".disable")
            self.assertGreaterEqual(off["took_effect_monotonic_ns"], off["seen_monotonic_ns"])
            self.assertEqual(device["idle"]["reason"], "switched_off")
            self.assertEqual(device["buffers_bound"], 0)
            self.assertEqual(device["physical_bytes"], device["one_to_one_bytes"])
        steps = {r["process"]["rank"]: self.device(r)["steps"] for r in reports}
        self.wait_for(lambda later: all(self.device(r)["steps"] > steps[r["process"]["rank"]] + 2 for r in later))

    def test_a_device_that_is_used_later(self):
        go = os.path.join(self.folder, "go")
        for options in ([], ["--plan", self.plan(), "--plan-rank", "1"]):
            with self.subTest(options):
                program = os.path.join(PROGRAMS, "enforce_program")
                process = subprocess.Popen([RECVPOOL, "run", "--mode", "enforce", "--interval", "0.05", "--report-dir",
                                            self.reports_dir, *options, "--", program, "second_device"],
                                           env=support.simulated(RPSIM_DEVICES="2", GO=go), stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
                self.addCleanup(process.wait)
                self.addCleanup(self.end_all_of, process)
                self.wait_for(lambda reports: reports and self.device(reports[0]).get("active"))
                with open(self.reports_dir + "/disable", "w"):
                    pass
                self.wait_for(lambda reports: self.switched_off(reports[0]))
                with open(go, "w"):
                    pass
                self.assertEqual(process.wait(support.TIMEOUT_SECONDS), 0)
                (report,) = self.read_reports()
                later = report["enforcement"]["devices"][1]
                self.assertEqual((later["receives"], later["activations"], later["saved_peak_bytes"]), (48, 0, 0))
                self.assertEqual(later["idle"]["reason"], "switched_off")
                os.remove(go)
                shutil.rmtree(self.reports_dir)

    def plan(self):
        path = os.path.join(self.folder, "plan.json")
        self.assert_success(run([RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "2", "--microbatches", "8", "--slack",
                                 "1", "--buffer-bytes", "2MiB", "--output", path]))
        return path

    def test_where_the_device_has_no_room(self):
        plan = os.path.join(self.folder, "plan.json")
        self.assert_success(run([RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "4", "--microbatches", "16", "--buffer-bytes",
                                 "2MiB", "--output", plan]))
        command = [RECVPOOL, "run", "--mode", "enforce", "--plan", plan, "--interval", "0.05", "--report-dir", self.reports_dir, "--",
                   TRAINER, "--stages", "4", "--microbatches", "16", "--message-bytes", "2MiB", "--steps", "400"]
        process = subprocess.Popen(command, env=support.simulated(RPSIM_DEVICE_BYTES=str(48 << 20)), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(self.end_all_of, process)
        self.wait_for(lambda reports: len(reports) == 4 and all(self.device(r).get("active") for r in reports))
        with open(self.reports_dir + "/disable", "w"):
            pass
        self.wait_for(lambda reports: all(self.switched_off(r) or self.device(r).get("fallbacks") for r in reports))
        self.assertEqual(process.wait(support.TIMEOUT_SECONDS), 0)
        reports = sorted(self.read_reports(), key=lambda report: report["process"]["rank"])
        self.assertEqual([self.switched_off(report) for report in reports], [True, False, False, True])
        text = run([RECVPOOL, "report", self.reports_dir]).stdout
        self.assertIn("; sharing was switched off (switched_off) in 2 of 4 processes, and 2 went on sharing: the device has no room for "
                      "their buffers.\n", text)
        self.assertEqual(text.count(", shared until the buffers were freed: the device had no room for all of them\n"), 2)

    def test_a_file_for_all_processes(self):
        self.start()
        with open(self.reports_dir + "/disable", "w"):
            pass
        reports = self.wait_for(lambda reports: all(self.switched_off(r) for r in reports))
        self.assertEqual({r["enforcement"]["switched_off"]["file"] for r in reports}, {"disable"})

    def test_what_is_not_believed_changes_nothing(self):
        self.start()
        os.symlink("/etc/passwd", self.reports_dir + "/disable")
        reports = self.wait_for(lambda reports: all(r["warnings"] for r in reports))
        for report in reports:
            self.assertEqual(report["warnings"], ["disable is not honoured: it is a link"])
            self.assertIsNone(report["enforcement"]["switched_off"])
            self.assertTrue(self.device(report)["active"])
        if os.geteuid() != 0:
            return
        base = self.base_of(reports[0])
        with open(base + ".disable", "w"):
            os.chown(base + ".disable", SOMEBODY, SOMEBODY)
        steps = self.device(reports[0])["steps"]
        reports = self.wait_for(lambda later: self.device(later[0])["steps"] > steps + 20)
        self.assertTrue(self.device(reports[0])["active"])

    def test_a_file_that_was_there_before(self):
        os.mkdir(self.reports_dir)
        with open(self.reports_dir + "/disable", "w"):
            pass
        result = run(self.command(12), env=support.simulated())
        self.assert_success(result)
        alone = run(self.command(12)[self.command(12).index(TRAINER):], env=support.simulated())
        self.assertEqual(re.findall("parameters .*", result.stdout.splitlines()[-1]),
                         re.findall("parameters .*", alone.stdout.splitlines()[-1]))
        for report in self.read_reports():
            self.assertIsNotNone(report["enforcement"]["switched_off"])
            self.assertFalse(self.device(report)["active"])
