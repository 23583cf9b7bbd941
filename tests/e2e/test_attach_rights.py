"""What is missing is named: capabilities one by one, another user's processes, BTF, lockdown, seccomp, namespaces."""

import os
import shutil

import support
from attach_support import MOCK, AttachCase, reports_of
from support import PROGRAMS, RECVPOOL

RECV = ("ncclRecv", 0x7F1000000000, 100, 7, 1, 0xC0FFEE, 0)
NOBODY = 65534
UNAVAILABLE = 4
DENY = os.path.join(PROGRAMS, "attach_deny")
PROG_LOAD, LINK_CREATE, EPERM, E2BIG, EACCES = 5, 28, 1, 7, 13


def as_nobody(*capabilities):
    names = ",".join("+" + name for name in capabilities)
    return ["setpriv", f"--reuid={NOBODY}", "--clear-groups",
            *([f"--inh-caps={names}", f"--ambient-caps={names}"] if names else [])]


class RightsTest(AttachCase):
    def attach(self, *arguments, prefix=(), status=UNAVAILABLE):
        result = support.run([*prefix, RECVPOOL, "attach", "--duration", "100ms", *arguments])
        self.assertEqual(result.returncode, status, result.stderr)
        if status:
            self.assertEqual(result.stdout, "")
            self.assertNotIn("EPERM", result.stderr)
            self.assertNotIn("RLIMIT_MEMLOCK", result.stderr)
        return result

    def nobodys_program(self):
        program = self.program(command=as_nobody() + [os.path.join(PROGRAMS, "attach_program")])
        program.open(MOCK)
        return program

    def test_each_capability_is_named(self):
        program = self.nobodys_program()
        for capabilities, said in (((), "CAP_BPF and CAP_PERFMON missing"), (("bpf",), "CAP_PERFMON missing"),
                                   (("perfmon",), "CAP_BPF missing"), (("sys_ptrace",), "CAP_BPF and CAP_PERFMON missing")):
            with self.subTest(capabilities):
                result = self.attach("--pid", str(program.pid), prefix=as_nobody(*capabilities))
                self.assert_one_line(result.stderr)
                self.assertIn(said, result.stderr)
                self.assertIn("setcap cap_bpf,cap_perfmon", result.stderr)

    def test_two_capabilities_are_enough(self):
        if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 6):
            self.skipTest("this kernel has no multi-uprobe links")
        program = self.nobodys_program()
        observer = self.observer("--pid", str(program.pid), prefix=as_nobody("bpf", "perfmon"))
        program.call(*RECV)
        report = self.only_report(observer.stop(), program.pid)
        self.assertEqual(report["events"]["by_kind"]["recv"], 1)

    def test_perf_events_want_more(self):
        program = self.nobodys_program()
        result = self.attach("--pid", str(program.pid), "--links", "perf", prefix=as_nobody("bpf", "perfmon"))
        self.assert_one_line(result.stderr)
        self.assertIn("CAP_SYS_ADMIN is missing", result.stderr)

    def test_files_that_only_others_can_read(self):
        folder = os.path.join(self.folder, "private")
        os.mkdir(folder, 0o700)
        path = os.path.join(folder, "libnccl.so")
        shutil.copy(MOCK, path)
        program = self.program()
        program.open(path)
        for capabilities, received in ((("bpf", "perfmon"), 0), (("bpf", "perfmon", "sys_ptrace", "dac_read_search"), 1)):
            with self.subTest(capabilities):
                observer = self.observer("--pid", str(program.pid), prefix=as_nobody(*capabilities))
                program.call(*RECV)
                report = self.only_report(observer.stop(), program.pid)
                self.assertEqual(report["events"]["by_kind"]["recv"], received)
                told = [text for text in report["warnings"] if path in text and "CAP_SYS_PTRACE" in text]
                self.assertEqual(len(told), 1 - received, report["warnings"])

    def test_seccomp(self):
        result = self.attach("--pid", "1", prefix=[DENY, "-1", str(EPERM)])
        self.assert_one_line(result.stderr)
        self.assertIn("a seccomp filter forbids bpf()", result.stderr)

    def test_lockdown(self):
        """The kernel refuses, and says that it is locked down."""
        script = ('mount -t tmpfs none /sys/kernel/security; echo "none integrity [confidentiality]" '
                  '>/sys/kernel/security/lockdown; exec "$@"')
        result = self.attach("--pid", "1", prefix=["unshare", "--mount", "sh", "-ec", script, "sh", DENY, "-1", str(EPERM)])
        self.assert_one_line(result.stderr)
        self.assertIn("the kernel is locked down (confidentiality mode)", result.stderr)

    def test_no_description_of_types(self):
        result = self.attach("--pid", "1", prefix=["unshare", "--mount", "sh", "-ec",
                                                   'mount -t tmpfs none /sys/kernel/btf; exec "$@"', "sh"])
        self.assert_one_line(result.stderr)
        self.assertIn("/sys/kernel/btf/vmlinux", result.stderr)
        self.assertNotIn("No such process", result.stderr)

    def test_refused_programs_are_named(self):
        result = self.attach("--pid", str(os.getpid()), prefix=[DENY, str(LINK_CREATE), str(EACCES)])
        self.assertIn("the kernel refuses a program", result.stderr)
        self.assertIn("prog 'rp_fork'", result.stderr)

    def test_container_without_the_hosts_process_ids(self):
        result = self.attach("--pid", "1", prefix=["unshare", "--pid", "--fork", "--mount-proc"])
        self.assert_one_line(result.stderr)
        self.assertIn("hostPID", result.stderr)

    def test_nothing_is_left_half_done(self):
        """After a refusal the program runs on as before."""
        program = self.nobodys_program()
        self.attach("--pid", str(program.pid), "--links", "perf", prefix=as_nobody("bpf", "perfmon"))
        self.assertEqual(program.call(*RECV)[0], 0)
        document = self.observer("--pid", str(program.pid)).stop()
        self.assertEqual(list(reports_of(document)), [program.pid])
