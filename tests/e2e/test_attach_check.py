"""The cross-check: what the agent in a process says is held against what the probes saw."""

import glob
import json
import os
import shutil
import signal
import subprocess
import time

import support
import test_attach
from attach_support import FORWARDING, MOCK, AttachCase, reports_of, wait_until
from support import RECVPOOL, TRAINER

RECV = ("ncclRecv", 0x7F1000000000, 100, 7, 1, 0xC0FFEE, 0)


class AgentTest(test_attach.TrainerCase):
    """The real agent, sharing memory for real."""

    def observed(self, *options):
        holder = self.hold_libraries()
        command = [RECVPOOL, "run", "--mode", "enforce", "--interval", "0.1", "--report-dir", self.reports_dir, *options,
                   "--", TRAINER, "--stages", "2", "--microbatches", "8", "--steps", "60", "--message-bytes", "4MiB"]
        job = subprocess.Popen(["sh", "-c", 'read line; exec "$@"', "sh", *command], env=support.simulated(),
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        observer = self.observer("--pid", f"{job.pid},{holder.pid}")
        _, errors = job.communicate("go\n", timeout=support.TIMEOUT_SECONDS)
        self.assertEqual((job.returncode, errors), (0, ""))
        document = observer.stop()
        self.check_document(document)
        self.assertEqual(observer.errors, "")
        for report in self.read_reports():
            self.assertGreater(report["enforcement"]["totals"]["saved_peak_bytes"], 0)
        return document["observer"]["cross_checks"]

    def test_sharing_after_two_steps(self):
        checks = self.observed()
        # Transfers and memory of two ranks at the end; how many reports fall between two looks is the machine's affair.
        self.assertGreaterEqual(checks["compared"], 4)
        self.assertEqual(checks["differences"], 0)

    def test_sharing_from_the_first_step(self):
        plan = os.path.join(self.folder, "plan.json")
        self.assert_success(support.run([RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "2", "--microbatches", "8",
                                         "--slack", "1", "--buffer-bytes", "4MiB", "--output", plan]))
        checks = self.observed("--plan", plan)
        self.assertGreaterEqual(checks["compared"], 4)
        self.assertEqual(checks["differences"], 0)


class SharingTest(test_attach.RunningCase):
    """A job with the agent in it: where that shares memory there is nothing left to gain."""

    def start(self, mode, *options, shares=True):
        """A job that goes on for long, once its agents have written what they do, and the file that it says its steps in."""
        said = os.path.join(self.folder, "said")
        with open(said, "w") as out:
            job = subprocess.Popen([RECVPOOL, "run", "--mode", mode, "--interval", "0.1", "--report-dir", self.reports_dir,
                                    "--", TRAINER, "--stages", "2", "--message-bytes", "4MiB", "--steps", "100000",
                                    *options], env=support.simulated(), stdout=out, stderr=subprocess.DEVNULL)

        def end():
            job.terminate()
            job.wait(timeout=support.TIMEOUT_SECONDS)
        self.addCleanup(end)

        def ready():
            found = self.read_reports() if os.path.isdir(self.reports_dir) else []
            devices = [device for report in found for device in report["enforcement"]["devices"]]
            return len(found) == 2 and (mode == "observe" or [d["active"] for d in devices] == [shares] * 2)
        wait_until(ready, "the agents to share")
        return job, said

    def observe(self, job, said, *arguments, report=True):
        observer = self.observer("--pid", str(job.pid), *arguments, report=report)
        self.wait_for_steps(said, 20)
        return observer.stop()

    def test_what_is_shared_already(self):
        job, said = self.start("enforce")
        document = self.observe(job, said)
        self.check_document(document)
        for pid, report in reports_of(document).items():
            inside, = [r for r in self.read_reports() if r["process"]["pid"] == pid]
            mine, theirs = report["enforcement"], inside["enforcement"]
            for name in ("physical_bytes", "physical_peak_bytes", "one_to_one_peak_bytes", "saved_peak_bytes"):
                self.assertEqual(mine["totals"][name], theirs["totals"][name], name)
            self.assertEqual(mine["totals"]["physical_bytes"], 3 * 4 << 20)
            self.assertTrue(any("an agent in the process enforces" in text for text in report["warnings"]))
        answer, = document["jobs"]
        self.assertRegex(answer["conclusion"], r"^sharing saved 40\.0 MiB of the 64\.0 MiB ")
        self.assertRegex(answer["next_step"], "^Nothing to do: memory is shared")

    def test_what_is_shown_of_it(self):
        job, said = self.start("enforce")
        text = self.observe(job, said, "--interval", "50ms", report=False)
        lines = [line for line in text.splitlines() if " receives (" in line]
        self.assertTrue(lines)
        self.assertEqual({line.split(", ")[-1] for line in lines}, {"shared by the agent: 12.0 MiB held for 32.0 MiB"})
        self.assertIn("\n=> sharing saved 40.0 MiB of the 64.0 MiB that these receive buffers would hold", text)
        self.assertNotIn("--mode enforce", text)

    def test_an_agent_that_enforces_and_has_nothing_to_share(self):
        job, said = self.start("enforce", "--allocation", "just_in_time", shares=False)
        text = self.observe(job, said, "--interval", "50ms", report=False)
        lines = [line for line in text.splitlines() if " receives (" in line]
        self.assertEqual({line.split(", ")[-1] for line in lines}, {"the agent enforces and shares nothing yet"})
        self.assertNotIn("sharing saved", text)
        self.assertNotIn("--mode enforce", text)

    def test_an_agent_that_only_observes(self):
        job, said = self.start("observe")
        document = self.observe(job, said)
        answer, = document["jobs"]
        self.assertRegex(answer["conclusion"], "^pooling would save about 20")
        self.assertIn("--mode enforce", answer["next_step"])
        for report in reports_of(document).values():
            self.assertIsNone(report["enforcement"])
            self.assertEqual([text for text in report["warnings"] if "agent" in text], [])

    def test_an_agent_whose_report_is_gone(self):
        """It was there before anybody looked: whether it shares cannot be told."""
        job, said = self.start("enforce")
        os.rename(self.reports_dir, self.reports_dir + ".moved")
        with open(self.reports_dir, "w"):
            pass  # no folder can be made there
        for report in reports_of(self.observe(job, said)).values():
            self.assertIsNone(report["enforcement"])
            told = [text for text in report["warnings"] if "whether memory is shared already is not known" in text]
            self.assertEqual(len(told), 1, report["warnings"])
            self.assertIn(self.reports_dir, told[0])


class GraphTest(test_attach.TrainerCase):
    def test_what_a_graph_receives_is_no_call(self):
        """The agent counts it, and the probes cannot."""
        inside, outside, document = self.both(["--schedule", "1f1b", "--stages", "2", "--microbatches", "4", "--capture-at",
                                               "2", "--own-stream"], steps=6)
        for pid, report in inside.items():
            self.assertGreater(report["events"]["by_kind"]["recv"], outside[pid]["events"]["by_kind"]["recv"])
        self.assertEqual(document["observer"]["cross_checks"]["differences"], 0)


class LyingAgentTest(AttachCase):
    """A library with the agent's name, and reports of its own making."""

    def told(self, receives, physical_bytes=0, one_to_one_bytes=0, made=3, predecessor=False, held=True, state="finished",
             failed=0):
        """The observer's process, document and words about a process that made `made` receives, of which the last `failed`
        did. With `predecessor` the report is of the program that the process was before; without `held` the process is the
        first that maps the library."""
        library = os.path.join(self.folder, "librecvpool.so")
        shutil.copy(MOCK, library)
        os.makedirs(self.reports_dir, exist_ok=True)
        environment = support.clean_environment(RECVPOOL_REPORT_DIR=self.reports_dir)
        program, holder = self.program(env=environment), self.program()
        if held:
            holder.open(library)  # so that it is probed before the first call
        observer = self.observer("--pid", f"{program.pid},{holder.pid}")
        start = time.monotonic_ns()
        self.assertEqual(program.do("exec"), "ready")  # observed from its beginning
        program.open(library)
        links = observer.links()
        holder.open(shutil.copy(MOCK, os.path.join(self.folder, "other.so")))
        observer.wait_for_probes(links)  # it looks at everybody's mappings, the program's before
        holder.close()
        for number in range(made):
            program.do(f"set attach_mock_status {5 if number >= made - failed else 0}")
            program.call(*RECV)
        start = start if predecessor else time.monotonic_ns()
        report = {"state": state, "written_monotonic_ns": start,
                  "events": {"by_kind": {"recv": receives, "send": 0}},
                  "enforcement": {"mode": "enforce", "devices": [{"physical_bytes": physical_bytes,
                                                                  "one_to_one_bytes": one_to_one_bytes}]}}
        name = f"host-{program.pid}-{start}.json"
        with open(os.path.join(self.reports_dir, "." + name), "w") as file:
            json.dump(report, file)
        os.rename(os.path.join(self.reports_dir, "." + name), os.path.join(self.reports_dir, name))
        program.close()
        out, errors = observer.process.communicate(timeout=support.TIMEOUT_SECONDS)
        document = json.loads(out)
        self.check_document(document)
        self.assertEqual(observer.process.returncode, int(document["observer"]["cross_checks"]["differences"] > 0))
        warnings = [text for report in reports_of(document).values() for text in report["warnings"]]
        return document["observer"]["cross_checks"], errors, warnings

    def test_the_truth(self):
        checks, errors, warnings = self.told(3)
        self.assertEqual(checks, {"compared": 2, "differences": 0})
        self.assertEqual((errors, [text for text in warnings if "cross-check" in text]), ("", []))

    def test_calls_that_failed(self):
        """The agent counts them, before they are made; for the probes they are no transfers."""
        checks, errors, warnings = self.told(3, failed=2)
        self.assertEqual((checks, errors), ({"compared": 2, "differences": 0}, ""))
        self.assertIn("2 receives and 0 sends failed", " ".join(warnings))

    def test_the_program_before(self):
        checks, errors, _ = self.told(2, predecessor=True)
        self.assertEqual((checks, errors), ({"compared": 0, "differences": 0}, ""))

    def test_probes_that_came_late_accuse_nobody(self):
        checks, errors, warnings = self.told(4, held=False)
        self.assertEqual((checks, errors), ({"compared": 0, "differences": 0}, ""))
        self.assertIn("its first calls may be missing", " ".join(warnings))

    def agents(self, count, *arguments):
        """Processes with a library that has the agent's name and makes memory, observed from their beginning."""
        for name, source in (("librecvpool.so", FORWARDING), ("libattach_mock.so", MOCK)):
            shutil.copy(source, os.path.join(self.folder, name))
        os.makedirs(self.reports_dir)
        environment = support.clean_environment(RECVPOOL_REPORT_DIR=self.reports_dir)
        programs, holder = [self.program(env=environment) for _ in range(count)], self.program()
        for name in ("librecvpool.so", "libattach_mock.so"):  # both are probed before they are called
            holder.open(os.path.join(self.folder, name))
        observer = self.observer("--pid", ",".join(str(program.pid) for program in [*programs, holder]), *arguments)
        holder.close()
        for program in programs:
            self.assertEqual(program.do("exec"), "ready")
        return programs, observer

    def report_memory(self, program, physical_bytes, receives=0, padding=""):
        start = time.monotonic_ns()
        report = {"state": "finished", "written_monotonic_ns": start, "events": {"by_kind": {"recv": receives, "send": 0}},
                  "enforcement": {"mode": "enforce", "devices": [{"physical_bytes": physical_bytes, "one_to_one_bytes": 0}]},
                  "padding": padding}
        name = f"host-{program.pid}-{start}.json"
        with open(os.path.join(self.reports_dir, "." + name), "w") as file:
            json.dump(report, file)
        os.rename(os.path.join(self.reports_dir, "." + name), os.path.join(self.reports_dir, name))

    def test_the_agent_is_known_before_its_first_call_is_counted(self):
        """It is loaded and makes memory at once, and all of that is read from the buffer in one go."""
        own = os.path.join(self.folder, "own")
        (program,), observer = self.agents(1, "--report-dir", own, "--interval", "50ms")
        observer.process.send_signal(signal.SIGSTOP)
        program.open(os.path.join(self.folder, "librecvpool.so"))
        self.assertEqual(program.call("agent_create", "&", 4096)[0], 0)
        program.call(*RECV)
        observer.process.send_signal(signal.SIGCONT)
        wait_until(lambda: glob.glob(os.path.join(own, f"*-{program.pid}-*.json")), "the receive to be counted")
        self.report_memory(program, 4096, receives=1)
        program.close()
        self.assertEqual(observer.finish()["observer"]["cross_checks"], {"compared": 2, "differences": 0})

    def test_what_was_not_read_yet_is_not_missed(self):
        """Looking at one process can take so long that another one's calls and report come meanwhile."""
        (slow, other), observer = self.agents(2)
        for program in (slow, other):
            program.open(os.path.join(self.folder, "librecvpool.so"))
            self.assertEqual(program.call("agent_create", "&", 4096)[0], 0)
        self.report_memory(slow, 4096, padding="x" * 40000000)
        for made in range(2, 30):
            self.assertEqual(other.call("agent_create", "&", 4096)[0], 0)
            self.report_memory(other, 4096 * made)
            time.sleep(0.1)  # so that some fall into that time
        self.assertEqual(observer.stop()["observer"]["cross_checks"]["differences"], 0)

    def test_sharing_that_only_the_calls_tell_of(self):
        """Without a report: by the memory that was made for the addresses that were reserved."""
        (program,), observer = self.agents(1)
        program.open(os.path.join(self.folder, "librecvpool.so"))
        self.assertEqual(program.call("agent_reserve", "&", 32 << 20)[0], 0)
        self.assertEqual(program.call("agent_create", "&", 12 << 20)[0], 0)
        for _ in range(3):
            program.call(*RECV)
        document = observer.stop()
        self.check_document(document)
        report = reports_of(document)[program.pid]
        totals = report["enforcement"]["totals"]
        self.assertEqual((totals["physical_bytes"], totals["one_to_one_bytes"], totals["saved_bytes"]),
                         (12 << 20, 32 << 20, 20 << 20))
        answer = next(job for job in document["jobs"] if report in job["processes"])
        self.assertRegex(answer["conclusion"], r"^sharing saved 20\.0 MiB of the 32\.0 MiB ")
        self.assertRegex(answer["next_step"], "^Nothing to gain: memory is shared already; what was unsafe")

    def test_one_report_in_the_middle_of_a_change_is_none(self):
        checks, errors, _ = self.told(3, 4096, 8192, state="running")
        self.assertEqual((checks, errors), ({"compared": 1, "differences": 0}, ""))

    def check_lie(self, words, *arguments):
        checks, errors, warnings = self.told(*arguments)
        self.assertEqual(checks, {"compared": 2, "differences": 1})
        self.assert_one_line(errors)
        self.assertIn("cross-check failed: " + words, errors)
        self.assertIn("cross-check failed: " + words, " ".join(warnings))

    def test_a_transfer_too_many(self):
        self.check_lie("the agent says that it saw 4 receives and 0 sends; the probes saw 3 and 0", 4)

    def test_a_transfer_too_few(self):
        self.check_lie("the agent says that it saw 2 receives", 2)

    def test_memory_that_was_never_made(self):
        self.check_lie("the agent says that receive buffers of 8192 bytes hold 4096 bytes", 3, 4096, 8192)

    def test_reports_that_are_none(self):
        os.makedirs(self.reports_dir)
        for name, content in (("host-1-1.json", "{"), ("host-2.json", "[]"), ("x", ""), (".host-3-3.json", "{}")):
            with open(os.path.join(self.reports_dir, name), "w") as file:
                file.write(content)
        checks, _, _ = self.told(3)
        self.assertEqual(checks["differences"], 0)
