"""The real libcudart and libnccl, without a device: calls are seen at entry and at return, with arguments and status."""

import os
import re
import subprocess
import sys

import support
from attach_support import AttachCase, functions_of

CUDA_ROOT = os.environ.get("E2E_CUDA_ROOT", "")
CODE = r"""
import ctypes, sys
cudart, nccl = (ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL) for path in sys.argv[1:])
print("ready", flush=True)
sys.stdin.readline()
P, N = ctypes.c_void_p, ctypes.c_size_t
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
statuses = []
def call(function, types, *arguments):
    function.argtypes = types
    statuses.append((function.__name__, function(*arguments)))
out, pitch = P(), N()
call(cudart.cudaMalloc, [P, N], ctypes.byref(out), 123456)
call(cudart.cudaMallocPitch, [P, P, N, N], ctypes.byref(out), ctypes.byref(pitch), 1000, 30)
call(cudart.cudaMallocAsync, [P, N, P], ctypes.byref(out), 54321, None)
call(cudart.cudaFree, [P], 0x7f1234560000)
call(nccl.ncclGroupStart, [])
call(nccl.ncclGroupEnd, [])
call(nccl.ncclSend, [P, N, ctypes.c_int, ctypes.c_int, P, P], 0x7f0000001000, 1000, 7, 3, None, None)
call(nccl.ncclRecv, [P, N, ctypes.c_int, ctypes.c_int, P, P], 0x7f0000002000, 500, 9, 2, None, None)
identifier = Id()
call(nccl.ncclCommInitRank, [P, ctypes.c_int, Id, ctypes.c_int], ctypes.byref(out), 2, identifier, 7)
print(statuses, flush=True)
sys.stdin.readline()
"""


def find(name):
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib"):
        path = os.path.join(CUDA_ROOT, folder, name)
        if CUDA_ROOT and os.path.exists(path):
            return path
    return None


class RealLibrariesTest(AttachCase):
    def setUp(self):
        super().setUp()
        self.libraries = [find("libcudart.so.13"), find("libnccl.so.2")]
        if None in self.libraries:
            self.skipTest("libcudart.so.13 and libnccl.so.2 are not on this machine")

    def observed(self, *arguments, report=True):
        """What the observer says, and the statuses that the calls returned, by name."""
        process = subprocess.Popen([sys.executable, "-c", CODE, *self.libraries], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   env=support.clean_environment(NCCL_DEBUG=None))
        try:
            self.assertEqual(process.stdout.readline(), "ready\n")
            observer = self.observer("--pid", str(process.pid), *arguments, report=report)
            process.stdin.write("go\n")
            process.stdin.flush()
            statuses = dict(eval(process.stdout.readline()))  # written by the program above
            return process.pid, observer.stop(), statuses
        finally:
            process.communicate("end\n", timeout=support.TIMEOUT_SECONDS)

    def test_arguments_and_statuses(self):
        pid, text, statuses = self.observed("--calls", report=False)
        if not statuses["cudaMalloc"]:
            self.skipTest("there is a device: these calls succeed")
        for pattern in (rf"^{pid} cudaMalloc\(0x[0-9a-f]+, 123456\) = {statuses['cudaMalloc']}$",
                        rf"^{pid} cudaMallocPitch\(0x[0-9a-f]+, 0x[0-9a-f]+, 1000, 30\) = {statuses['cudaMallocPitch']}$",
                        rf"^{pid} cudaMallocAsync\(0x[0-9a-f]+, 54321\) = {statuses['cudaMallocAsync']}$",
                        rf"^{pid} cudaFree\(0x7f1234560000\) = {statuses['cudaFree']}$",
                        rf"^{pid} ncclGroupStart\(\) = 0$", rf"^{pid} ncclGroupEnd\(\) = 0$",
                        rf"^{pid} ncclSend\(0x7f0000001000, 1000, 7, 3, 0, 0\) = {statuses['ncclSend']}$",
                        rf"^{pid} ncclRecv\(0x7f0000002000, 500, 9, 2, 0, 0\) = {statuses['ncclRecv']}$",
                        rf"^{pid} ncclCommInitRank\(0x[0-9a-f]+, 2, 7\) = {statuses['ncclCommInitRank']}$"):
            self.assertRegex(text, re.compile(pattern, re.M))

    def test_counts(self):
        pid, document, statuses = self.observed()
        report = self.only_report(document, pid)
        if statuses["cudaMalloc"] == 0:
            self.skipTest("there is a device: these calls succeed")
        self.assertEqual((statuses["ncclSend"] > 0, statuses["ncclRecv"] > 0), (True, True))  # there is no communicator
        self.assertEqual(self.counts(report), {"group_start": 1, "group_end": 1, "free": 1})
        self.assertIn("1 receives and 1 sends failed, or their group did: they are not counted", report["warnings"])
        functions = functions_of(document)
        for name, status in statuses.items():
            counted = functions[name]
            self.assertEqual((counted["calls"], counted["returns"], counted["failed"]), (1, 1, int(status != 0)), name)
            self.assertEqual(counted["last_failure"], status or None, name)
        for path in self.libraries:
            self.assertIn(os.path.realpath(path), [entry["path"] for entry in document["observer"]["libraries"]])
        self.assertRegex(report["versions"]["nccl"]["path"], "libnccl")

    def test_every_function_of_the_table_is_found(self):
        """What is not found is not in these libraries at all."""
        pid, document, _ = self.observed("--launches")
        found = {entry["path"]: entry["functions"] for entry in document["observer"]["libraries"]}
        cudart, nccl = (found[os.path.realpath(path)] for path in self.libraries)
        self.assertGreaterEqual(nccl, 18)
        self.assertGreaterEqual(cudart, 25)
