"""A million hits: none is lost without being counted."""

import os
import signal

from attach_support import MOCK, AttachCase, functions_of, wait_until

HITS = 1000000
SEND = "ncclSend 0x7f1000000000 100 7 1 0xc0ffee 0"


class LoadTest(AttachCase):
    def observe(self, command, *arguments):
        """Document and report of the program that did `command`, and the nanoseconds per call."""
        program = self.program()
        program.open(MOCK)
        observer = self.observer("--pid", str(program.pid), *arguments)
        pause = float(program.do(command))
        document = observer.stop()
        return document, self.only_report(document, program.pid), pause

    def check_all_counted(self, document, report, hits=HITS):
        functions = functions_of(document)
        dropped = functions["ncclSend"]["dropped"]
        self.assertEqual(functions["ncclSend"]["calls"], hits)
        self.assertEqual(report["events"]["by_kind"]["send"] + dropped, hits)
        self.assertEqual(report["events"]["dropped"]["events"], dropped)
        self.assertEqual(sum(document["observer"]["dropped_by_cpu"]), sum(f["dropped"] for f in functions.values()))
        self.assertEqual(set(functions) - {"ncclSend", "(processes)"}, set())
        self.assertEqual(len(document["observer"]["dropped_by_cpu"]), os.cpu_count())
        return dropped

    def test_default_buffer(self):
        document, report, pause = self.observe(f"repeat {HITS} {SEND}")
        dropped = self.check_all_counted(document, report)
        print(f"{HITS} hits at {pause:.0f} ns each, {dropped} lost, the observer took "
              f"{document['observer']['processor_seconds']:.2f} s of processor time ... ", end="", flush=True)
        # a buffer of 16 MiB holds a tenth of a second of this; where the observer is kept from running longer than
        # that, what does not fit is counted
        self.assertLess(dropped, HITS / 2)

    def test_several_threads(self):
        document, report, _ = self.observe(f"threads 4 {HITS // 4} {SEND}")
        self.check_all_counted(document, report)

    def test_a_buffer_that_is_too_small(self):
        document, report, _ = self.observe(f"threads 2 {HITS // 10} {SEND}", "--buffer", "4KiB")
        dropped = self.check_all_counted(document, report, HITS // 5)
        self.assertGreater(dropped, 0)
        self.assertEqual(document["observer"]["buffer_bytes"], 4096)
        self.assertTrue(any("found no room" in text for text in report["warnings"]), report["warnings"])

    def test_what_a_process_lost_is_known_after_its_end(self):
        for paused in (False, True):
            with self.subTest(paused=paused):
                program = self.program()
                program.open(MOCK)
                observer = self.observer("--pid", str(program.pid), "--buffer", "4KiB")
                if paused:  # it reads nothing: the end finds no room in the buffer either
                    observer.process.send_signal(signal.SIGSTOP)
                program.do(f"repeat {HITS // 10} {SEND}")
                program.close()
                observer.process.send_signal(signal.SIGCONT)
                document = observer.finish()
                report = self.only_report(document, program.pid)
                self.assertGreater(self.check_all_counted(document, report, HITS // 10), 0)

    def test_what_a_program_lost_is_its_own_and_not_the_next_one_s(self):
        program = self.program()
        program.open(MOCK)
        observer = self.observer("--pid", str(program.pid), "--buffer", "4KiB")
        observer.process.send_signal(signal.SIGSTOP)
        program.do(f"repeat 1000 {SEND}")
        self.assertEqual(program.do("exec"), "ready")  # finds no room in the buffer
        program.open(MOCK)
        observer.process.send_signal(signal.SIGCONT)
        wait_until(observer.sleeps, "the observer to have read everything")
        for _ in range(5):
            program.do(f"repeat 1 {SEND}")
        document = observer.stop()
        self.check_document(document)
        found = {}
        for job in document["jobs"]:
            for report in job["processes"]:
                self.assertEqual(report["process"]["pid"], program.pid)
                found[report["state"]] = (report["events"]["by_kind"]["send"], report["events"]["dropped"]["events"])
        self.assertEqual(sum(found["finished"]), 1000)
        self.assertGreater(found["finished"][1], 0)
        self.assertEqual(found["running"], (5, 0))
