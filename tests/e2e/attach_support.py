"""What the tests of `recvpool attach` need: whether they can run here, programs to observe, observing them."""

import json
import os
import selectors
import signal
import subprocess
import time
import unittest

import support
from support import BUILD, PROGRAMS, RECVPOOL

PROGRAM = os.path.join(PROGRAMS, "attach_program")
STATIC_PROGRAM = os.path.join(PROGRAMS, "attach_program_static")
MOCK = os.path.join(PROGRAMS, "libattach_mock.so")
FORWARDING = os.path.join(PROGRAMS, "libattach_forward.so")  # hands on to MOCK
MOCK_WITH_PAD = os.path.join(PROGRAMS, "libattach_mock_pad.so")
BUILT = os.path.exists(os.path.join(BUILD, "bpf", "recvpool.skel.h"))


def reason_to_skip():
    """Why nothing can be observed on this machine, or None."""
    if not BUILT:
        return "recvpool was built without attach"
    if os.geteuid() != 0:
        return "observing needs root"
    if not os.path.exists("/sys/kernel/btf/vmlinux"):
        return "the kernel does not describe its types"
    return None


def wait_until(condition, what, seconds=support.TIMEOUT_SECONDS):
    """Polls 100 times a second, up to `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.01)


class Program:
    """attach_program: takes one command per line and answers with a line."""

    def __init__(self, path=PROGRAM, command=None, env=None):
        self.process = subprocess.Popen(command or [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        bufsize=1, env=env)
        assert self.process.stdout.readline() == "ready\n"

    @property
    def pid(self):
        return self.process.pid

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"{line}: the program ended with {self.process.wait()}"
        return answer.strip()

    def open(self, path):
        answer = self.do("open " + path)
        assert answer == "ok", answer

    def call(self, name, *arguments):
        """Status and the first output word."""
        answer = self.do(" ".join(["call", name, *map(str, arguments)])).split()
        assert len(answer) == 2, (name, answer)
        return int(answer[0]), int(answer[1], 0)

    def repeat(self, count, name, *arguments):
        return float(self.do(" ".join(["repeat", str(count), name, *map(str, arguments)])))

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(timeout=support.TIMEOUT_SECONDS)
        self.process.stdout.close()


class Observer:
    """`recvpool attach --json`, from the moment at which it observes."""

    def __init__(self, *arguments, env=None, prefix=(), wait=True, report=True):
        self.report = report
        form = ["--json"] if report else []
        self.process = subprocess.Popen([*prefix, RECVPOOL, "attach", *form, "--min-bytes", "1", *arguments],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                        text=True, errors="backslashreplace", env=env or support.clean_environment())
        self.said = self.process.stderr.readline() if wait else ""
        assert not wait or "observing" in self.said, self.said + self.process.stderr.read()

    def sleeps(self):
        """Whether it has read everything and waits for more."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            return file.read().rsplit(")")[1].split()[0] == "S"

    def links(self):
        """How many attachments of probes it holds."""
        folder, count = f"/proc/{self.process.pid}/fd", 0
        for name in os.listdir(folder):
            try:
                count += any(kind in os.readlink(os.path.join(folder, name)) for kind in ("bpf_link", "perf_event"))
            except FileNotFoundError:
                pass
        return count

    def wait_for_probes(self, links):
        """Until it has attached to more than it held when it had `links`."""
        wait_until(lambda: self.links() > links and self.sleeps(), "probes in what has been loaded")

    def stop(self, with_signal=signal.SIGINT):
        """Ends it and returns the document (or the text)."""
        self.process.send_signal(with_signal)
        return self.finish()

    def finish(self, seconds=support.TIMEOUT_SECONDS):
        out, self.errors = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, (self.process.returncode, self.errors, out[-2000:])
        return json.loads(out) if self.report else out


def reports_of(document):
    """Reports by process id."""
    return {report["process"]["pid"]: report for job in document["jobs"] for report in job["processes"]}


def functions_of(document):
    """Counts by name of function."""
    return {entry["function"]: entry for entry in document["observer"]["functions"]}


def libraries_of(document):
    return {entry["path"]: entry for entry in document["observer"]["libraries"]}


class AttachCase(support.TestCase):
    """Skips where nothing can be observed, and ends what a test started."""

    def setUp(self):
        super().setUp()
        reason = reason_to_skip()
        if reason:
            self.skipTest(reason)

    def program(self, *arguments, **options):
        program = Program(*arguments, **options)
        self.addCleanup(program.close)
        return program

    def observer(self, *arguments, **options):
        observer = Observer(*arguments, **options)

        def end():
            if observer.process.poll() is None:
                observer.process.kill()
            observer.process.communicate()
        self.addCleanup(end)
        return observer

    def check_document(self, document):
        errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}"
                  for e in support.validator("job.schema.json").iter_errors(document)]
        self.assertEqual(errors, [])

    def only_report(self, document, pid):
        self.check_document(document)
        reports = reports_of(document)
        self.assertEqual(list(reports), [pid])
        return reports[pid]

    def counts(self, report):
        """Events by kind that were seen at all."""
        return {kind: count for kind, count in report["events"]["by_kind"].items() if count}


def links_and_maps():
    """Numbers of BPF links, maps and programs in the kernel, as bpftool counts them; None without bpftool."""
    counts = []
    for kind in ("link", "map", "prog"):
        try:
            result = support.run(["bpftool", "-j", kind, "list"])
        except FileNotFoundError:
            return None
        counts.append(len(json.loads(result.stdout or "[]")))
    return counts
