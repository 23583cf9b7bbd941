"""Odd processes, and odd ways to start `recvpool attach`: what it sees is what happened, and what it says is right."""

import glob
import json
import mmap
import os
import shutil
import signal
import threading

import support
from attach_support import FORWARDING, MOCK, MOCK_WITH_PAD, PROGRAM, AttachCase, functions_of, reports_of, wait_until
from support import PROGRAMS, RECVPOOL

RECV = ("ncclRecv", 0x7F1000000000, 100, 7, 1, 0xC0FFEE, 0)
TEXT = " ".join(map(str, RECV))


def has_breakpoints(pid, path):
    """Whether the code that a process has mapped from a file differs from what is in the file."""
    with open(f"/proc/{pid}/maps") as maps:
        fields = next(line for line in maps if line.rstrip().endswith(path) and " r-xp " in line).split()
    begin, end = (int(part, 16) for part in fields[0].split("-"))
    with open(f"/proc/{pid}/mem", "rb") as memory, open(path, "rb") as file:
        memory.seek(begin)
        file.seek(int(fields[2], 16))
        code = file.read(end - begin)
        return memory.read(end - begin)[:len(code)] != code


class ForwardTest(AttachCase):
    def test_a_call_that_is_handed_on_counts_once(self):
        program = self.program()
        program.open(MOCK)  # both files are mapped, and probed, before anything is called
        program.open(FORWARDING)
        observer = self.observer("--pid", str(program.pid))
        program.do("repeat 10 " + TEXT)
        program.do("repeat 7 " + TEXT.replace("Recv", "Send"))
        program.do("repeat 5 cudaMalloc & 4096")
        program.do("repeat 4 cudaFree 0x7f0000000000")
        document = observer.stop()
        report = self.only_report(document, program.pid)
        self.assertEqual(self.counts(report), {"recv": 10, "send": 7, "alloc": 5, "free": 4})
        self.assertEqual(functions_of(document)["ncclRecv"]["calls"], 20)  # it was called twice each time



class ChosenTest(AttachCase):
    """A process that cannot be observed is an error, not an observation of nothing."""

    def refused(self, command):
        result = support.run(command)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assert_one_line(result.stderr)
        return result.stderr

    def test_the_id_of_a_thread(self):
        sleeper = threading.Event()
        thread = threading.Thread(target=sleeper.wait)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(sleeper.set)
        said = self.refused([RECVPOOL, "attach", "--pid", str(thread.native_id), "--duration", "100ms"])
        self.assertIn(f"{thread.native_id} is a thread of process {os.getpid()}", said)

    def test_itself(self):
        said = self.refused(["sh", "-c", 'exec "$0" attach --pid $$ --duration 100ms', RECVPOOL])
        self.assertIn("is recvpool attach itself", said)

    def test_a_trace_without_a_name(self):
        result = support.run([RECVPOOL, "attach", "--all", "--duration", "100ms", "--trace", ""])
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assert_one_line(result.stderr)
        self.assertIn("--trace must be", result.stderr)


class StartedOddlyTest(AttachCase):
    def observed(self):
        program = self.program()
        program.open(MOCK)
        return program

    def test_nohup(self):
        """Whoever started it so that a hang-up is ignored wants it to go on."""
        program = self.observed()
        observer = self.observer("--pid", str(program.pid), prefix=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
        with open(f"/proc/{observer.process.pid}/status") as status:
            ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn:"))
        self.assertTrue(ignored & 1 << signal.SIGHUP - 1)
        observer.process.send_signal(signal.SIGHUP)
        program.call(*RECV)
        program.close()
        self.assertEqual(self.counts(self.only_report(observer.finish(), program.pid)), {"recv": 1})

    def test_closed_streams(self):
        """What would be said there does not end up in a file; that the table was not written is an error."""
        program = self.observed()
        trace = os.path.join(self.folder, "trace.json")
        for closed in ("<&- >&-", "<&- >&- 2>&-"):
            with self.subTest(closed):
                result = support.run(["sh", "-c", f'exec "$@" {closed}', "sh", RECVPOOL, "attach", "--pid", str(program.pid),
                                      "--duration", "100ms", "--trace", trace])
                self.assertEqual(result.returncode, 1)
                self.assertEqual("cannot write to stdout" in result.stderr, "2>&-" not in closed)
                with open(trace) as file:
                    json.load(file)

    def test_a_low_limit_of_open_files(self):
        """A limit that can be raised is."""
        program = self.observed()
        observer = self.observer("--pid", str(program.pid), prefix=["prlimit", "--nofile=20:4096"])
        program.call(*RECV)
        self.assertEqual(self.counts(self.only_report(observer.stop(), program.pid)), {"recv": 1})

    def test_too_few_open_files(self):
        """One that cannot is named."""
        program = self.observed()
        for limit in range(10, 24):
            result = support.run(["prlimit", f"--nofile={limit}:{limit}", RECVPOOL, "attach", "--json", "--pid",
                                  str(program.pid), "--duration", "1ms"])
            with self.subTest(limit, said=result.stderr):
                if result.returncode == 0:
                    self.assertIn("observing 1 process:", result.stderr)
                else:
                    self.assertEqual(result.stdout, "")
                    self.assertIn("too many files are open", result.stderr)


class EndTest(AttachCase):
    def open_many(self, program):
        """Libraries to be probed: taking the probes out takes a while."""
        paths = [os.path.join(self.folder, f"lib{number}.so") for number in range(12)]
        for path in paths:
            shutil.copy(MOCK, path)
            program.open(path)
        return paths

    def test_a_second_interrupt_leaves_nothing(self):
        program = self.program()
        self.open_many(program)
        folder = os.path.join(self.folder, "written")
        os.mkdir(folder)
        observer = self.observer("--pid", str(program.pid), "--trace", os.path.join(folder, "trace.json"), report=False)
        links = observer.links()
        self.assertEqual(len(os.listdir(folder)), 1)  # it is being written
        observer.process.send_signal(signal.SIGINT)
        wait_until(lambda: observer.links() < links, "the first probes to be taken out")
        observer.process.send_signal(signal.SIGSTOP)
        self.assertGreater(observer.links(), 0)  # it has not come to the end
        observer.process.send_signal(signal.SIGINT)
        observer.process.send_signal(signal.SIGCONT)
        self.assertEqual(observer.process.wait(timeout=support.TIMEOUT_SECONDS), -signal.SIGINT)
        self.assertEqual(os.listdir(folder), [])

    def test_what_happens_after_it_is_not_told(self):
        """Taking the probes out takes a while; a process that ends meanwhile did so unseen, as what it called then."""
        program = self.program()
        paths = self.open_many(program)
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        observer.process.send_signal(signal.SIGINT)
        wait_until(lambda: not all(has_breakpoints(program.pid, path) for path in paths), "the first probes to be taken out")
        program.call(*RECV)
        program.close()
        report = self.only_report(observer.finish(), program.pid)
        self.assertEqual((self.counts(report), report["state"]), ({"recv": 1}, "running"))


class GoneTooSoonTest(AttachCase):
    def test_what_called_nccl_had_it(self):
        """A child that is over before anybody can look at what it has mapped."""
        program = self.program()
        program.open(MOCK)
        observer = self.observer("--pid", str(program.pid))
        observer.process.send_signal(signal.SIGSTOP)
        program.do("fork call " + TEXT)
        observer.process.send_signal(signal.SIGCONT)
        report, = reports_of(observer.stop()).values()
        self.assertEqual((self.counts(report), report["warnings"]), ({"recv": 1}, []))


class MainThreadTest(AttachCase):
    def test_it_ends_before_the_others(self):
        """The process goes on without it: in /proc its maps are empty then, and those of the others are not."""
        program = self.program(env=support.clean_environment(RANK="3", WORLD_SIZE="8"))
        program.open(MOCK)
        self.assertEqual(program.do("leave"), "ok")

        def has_left():
            with open(f"/proc/{program.pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        wait_until(has_left, "the main thread to end")
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        report = self.only_report(observer.stop(), program.pid)
        self.assertEqual((self.counts(report), report["process"]["rank"]), ({"recv": 1}, 3))


class FilesThatChangeTest(AttachCase):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.folder, "rp_changes")
        self.library = os.path.join(self.folder, "libchanges.so")
        shutil.copy(PROGRAM, self.path)

    def write(self, source):
        """Into the file that is there, if there is one: it stays the same one."""
        shutil.copyfile(source, self.library)

    def observed(self):
        return self.observer("--comm", os.path.basename(self.path), "--report-dir", self.reports_dir, "--interval", "50ms")

    def opened(self, path=None):
        program = self.program(self.path)
        program.open(path or self.library)
        return program

    def wait_for_probes(self, program, comm=0xC0FFEE):
        """Calls until a call is seen."""
        def is_seen():
            program.call("ncclRecv", hex(0x7F1000000000), 100, 7, 1, hex(comm), 0)
            for path in glob.glob(os.path.join(self.reports_dir, f"*-{program.pid}-*.json")):
                with open(path) as file:
                    return hex(comm) in [entry["communicator"] for entry in json.load(file)["communicators"]]
            return False
        wait_until(is_seen, f"process {program.pid} to be seen")

    def test_what_was_nothing_becomes_nccl(self):
        """The number of a file that was looked at and left alone comes to stand for another one."""
        self.write(os.path.join(PROGRAMS, "libattach_imports.so"))
        self.observed()
        first = self.opened()
        for comm, name in ((0xA000, "one.so"), (0xB000, "two.so")):  # the look that finds the second comes after another
            path = os.path.join(self.folder, name)
            shutil.copy(MOCK, path)
            first.open(path)
            self.wait_for_probes(first, comm)
        first.close()
        self.write(MOCK)
        self.wait_for_probes(self.opened())

    def test_a_library_that_is_written_to(self):
        """Probes at the places of the old code would break the new one."""
        self.write(MOCK)
        self.observed()
        first = self.opened()
        self.wait_for_probes(first)
        first.close()
        self.write(MOCK_WITH_PAD)

        def is_untouched():
            with open(self.library, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE,
                                                             mmap.PROT_READ | mmap.PROT_EXEC) as memory:
                return memory[:] == file.read()
        wait_until(is_untouched, "the probes to be taken out")
        self.wait_for_probes(self.opened())

    def test_the_first_process_of_a_library_is_warned_of(self):
        """Its first calls can be over before the probes are in place; those of the next are not."""
        self.write(MOCK)
        observer = self.observed()
        programs = []
        for _ in range(2):
            programs.append(self.opened())
            self.wait_for_probes(programs[-1])
        reports = reports_of(observer.stop())
        said = [[text for text in reports[program.pid]["warnings"] if "may be missing" in text] for program in programs]
        words = f"{self.library} was loaded before its probes were in place: its first calls may be missing"
        self.assertEqual(said, [[words], []])
