"""Every probed function, one by one: what its call makes of it, nesting, failures, groups, communicators, threads."""

import os
import signal
import subprocess

import support
from attach_support import MOCK, MOCK_WITH_PAD, AttachCase, functions_of, wait_until
from support import RECVPOOL

# name, arguments, kind of event, bytes
ALLOCATIONS = [
    ("cudaMalloc", ["&", 4096], 4096),
    ("cudaMallocPitch", ["&", "&1", 1000, 30], 1024 * 30),
    ("cudaMallocManaged", ["&", 8192], 8192),
    ("cudaMallocAsync", ["&", 4097, 0], 4097),
    ("cudaMallocAsync_ptsz", ["&", 4098, 0], 4098),
    ("cudaMallocFromPoolAsync", ["&", 4099, 77, 0], 4099),
    ("cudaMallocFromPoolAsync_ptsz", ["&", 5000, 77, 0], 5000),
    ("cuMemAlloc_v2", ["&", 5001], 5001),
    ("cuMemAllocPitch_v2", ["&", "&1", 512, 7, 4], 512 * 7),
    ("cuMemAllocManaged", ["&", 5002, 1], 5002),
    ("cuMemAllocAsync", ["&", 5003, 0], 5003),
    ("cuMemAllocAsync_ptsz", ["&", 5004, 0], 5004),
    ("cuMemAllocFromPoolAsync", ["&", 5005, 77, 0], 5005),
    ("cuMemAllocFromPoolAsync_ptsz", ["&", 5006, 77, 0], 5006),
    ("cuMemMap", [0x7E0000000000, 1 << 21, 0, 5, 0], 1 << 21),
]
FREES = ["cudaFree", "cudaFreeAsync", "cudaFreeAsync_ptsz", "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz",
         "cuMemUnmap"]
FLOAT32, UINT8 = 7, 1
ADDRESS, COMM = 0x7F1000000000, 0xC0FFEE


class CallsTest(AttachCase):
    def observed(self, *arguments, library=MOCK):
        program = self.program()
        program.open(library)
        observer = self.observer("--pid", str(program.pid), *arguments)
        return program, observer

    def end(self, program, observer):
        document = observer.stop()
        return self.only_report(document, program.pid), functions_of(document)

    def test_allocations(self):
        program, observer = self.observed()
        for name, arguments, _ in ALLOCATIONS:
            self.assertEqual(program.call(name, *arguments)[0], 0)
        report, functions = self.end(program, observer)
        self.assertEqual(self.counts(report), {"alloc": len(ALLOCATIONS)})
        self.assertEqual(report["events"]["by_source"]["uprobe"], len(ALLOCATIONS))
        for name, _, _ in ALLOCATIONS:
            calls = functions[name]["calls"]
            self.assertEqual(calls, 2 if name == "cuMemAlloc_v2" else 1, name)  # once within cudaMalloc
            self.assertEqual(functions[name]["returns"], 1, name)

    def test_sizes_are_those_of_the_calls(self):
        """A receive into each allocation, one step after the other: what is held is what was allocated."""
        for name, arguments, size in ALLOCATIONS:
            with self.subTest(name):
                program, observer = self.observed("--slack", "0")
                _, address = program.call(name, *arguments)
                if name == "cuMemMap":
                    address = arguments[0]
                for _ in range(3):
                    program.call("ncclRecv", hex(address), size, UINT8, 1, hex(COMM), 0)
                report, _ = self.end(program, observer)
                channel, = report["channels"]
                self.assertEqual((channel["buffer_bytes"], channel["held_bytes"], channel["unreachable_bytes"]),
                                 (size, size, 0))

    def test_frees(self):
        program, observer = self.observed()
        for name in FREES:
            self.assertEqual(program.call(name, hex(ADDRESS), 1 << 20, 0)[0], 0)
        report, functions = self.end(program, observer)
        self.assertEqual(self.counts(report), {"free": len(FREES)})
        self.assertEqual(functions["cuMemFree_v2"]["calls"], 2)

    def test_nothing_is_made_of_failures(self):
        program, observer = self.observed()
        program.do("set attach_mock_status 2")
        for name, arguments, _ in ALLOCATIONS:
            self.assertEqual(program.call(name, *arguments)[0], 2)
        self.assertEqual(program.call("attach_mock_init", "&", 4, 1, 0)[0], 2)
        report, functions = self.end(program, observer)
        self.assertEqual(self.counts(report), {})
        for name, _, _ in ALLOCATIONS:
            self.assertEqual((functions[name]["failed"], functions[name]["last_failure"]), (1, 2), name)
        self.assertEqual(functions["ncclCommInitRank"]["failed"], 1)

    def test_transfers(self):
        program, observer = self.observed()
        for step in range(3):
            for peer in (1, 2):
                program.call("ncclRecv", hex(ADDRESS + peer * 8192), 100, FLOAT32, peer, hex(COMM), 0x5000)
            program.call("ncclSend", hex(ADDRESS), 100, FLOAT32, 3, hex(COMM), 0)
        report, functions = self.end(program, observer)
        self.assertEqual(self.counts(report), {"recv": 6, "send": 3})
        self.assertEqual(sorted((c["peer"], c["buffer_bytes"], c["communicator"]) for c in report["channels"]),
                         [(1, 400, hex(COMM)), (2, 400, hex(COMM))])
        self.assertEqual({l["post_stream"] for c in report["channels"] for l in c["lifetimes"]}, {"0x5000"})
        self.assertEqual(functions["ncclRecv"]["returns"], 6)  # a weak alias of pncclRecv: one place, one count
        self.assertNotIn("pncclRecv", functions)

    def receive(self, program, status=0):
        program.do(f"set attach_mock_status {status}")
        self.assertEqual(program.call("ncclRecv", hex(ADDRESS), 100, FLOAT32, 1, hex(COMM), 0)[0], status)
        program.do("set attach_mock_status 0")

    def end_group(self, program, status=0, end=("ncclGroupEnd",)):
        program.do(f"set attach_mock_status {status}")
        self.assertEqual(program.call(*end)[0], status)
        program.do("set attach_mock_status 0")

    def failed(self, report):
        words = "receives and {} sends failed, or their group did: they are not counted"
        return [int(text.split()[0]) for text in report["warnings"] if words.format(0) in text]

    def test_transfers_that_fail_are_none(self):
        program, observer = self.observed()
        for status in (0, 2, 0, 5, 7):  # 7: a communicator that does not block goes on by itself
            self.receive(program, status)
        report, functions = self.end(program, observer)
        self.assertEqual((self.counts(report), self.failed(report)), ({"recv": 3}, [2]))
        self.assertEqual((functions["ncclRecv"]["calls"], functions["ncclRecv"]["failed"]), (5, 3))

    def test_a_group_that_fails_has_no_transfers(self):
        program, observer = self.observed()
        for status, transfers in ((0, 2), (3, 3), (7, 1)):
            program.call("ncclGroupStart")
            program.call("ncclGroupStart")
            for _ in range(transfers):
                self.receive(program)
            self.end_group(program)  # the inner one
            self.end_group(program, status)
        for info in (0, 0x1000):  # tells what it would take, and launches nothing where it can tell it
            program.call("ncclGroupStart")
            self.receive(program)
            self.end_group(program, 0, ("ncclGroupSimulateEnd", info))
        self.receive(program)
        report, _ = self.end(program, observer)
        self.assertEqual(self.counts(report), {"recv": 2 + 1 + 1 + 1, "group_start": 5, "group_end": 5})
        self.assertEqual(self.failed(report), [3 + 1])

    def test_a_group_that_has_not_ended(self):
        """Whether its transfers happen is not known."""
        program, observer = self.observed()
        self.receive(program)
        program.call("ncclGroupStart")
        self.receive(program)
        report, _ = self.end(program, observer)
        self.assertEqual((self.counts(report), self.failed(report)), ({"recv": 1, "group_start": 1}, []))

    def test_every_data_type(self):
        widths = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1]
        program, observer = self.observed()
        for step in range(2):
            for code in range(len(widths)):
                program.call("ncclRecv", hex(ADDRESS + code * 65536), 1000, code, code, hex(COMM), 0)
        report, _ = self.end(program, observer)
        self.assertEqual({c["peer"]: c["buffer_bytes"] for c in report["channels"]},
                         {code: 1000 * width for code, width in enumerate(widths)})

    def test_groups_are_outermost(self):
        program, observer = self.observed()
        for _ in range(3):
            program.call("ncclGroupStart")
        for _ in range(3):
            program.call("ncclGroupEnd")
        program.call("ncclGroupEnd")  # one too many, as after attaching inside a group
        program.call("ncclGroupStart")
        program.call("ncclGroupEnd")
        report, _ = self.end(program, observer)
        self.assertEqual(self.counts(report), {"group_start": 2, "group_end": 2})

    def test_communicators(self):
        identifier = bytes((7 * i + 1) % 256 for i in range(128))
        expected = 0xCBF29CE484222325
        for byte in identifier:
            expected = (expected ^ byte) * 0x100000001B3 % 2**64
        program, observer = self.observed()
        made = [program.call("attach_mock_init", "&", 8, 3, how)[1] for how in range(3)]
        self.assertEqual(program.call("ncclCommInitAll", "&", 4, 0)[0], 0)
        parent = made[0]
        split = [program.call("ncclCommSplit", hex(parent), colour, 0, "&", 0)[1] for colour in (1, 1, 2)]
        for comm, end in zip(made, ("ncclCommDestroy", "ncclCommAbort", "ncclCommDestroy")):
            program.call(end, hex(comm))
        report, _ = self.end(program, observer)
        self.assertEqual(self.counts(report), {"comm_init": 3 + 4 + 3, "comm_destroy": 3})
        by_handle = {c["communicator"]: c for c in report["communicators"]}
        for comm in made:
            self.assertEqual((by_handle[hex(comm)]["communicator_id"], by_handle[hex(comm)]["rank"],
                              by_handle[hex(comm)]["ranks"]), (hex(expected), 3, 8))
        ids = {by_handle[hex(comm)]["communicator_id"] for comm in split}
        self.assertEqual(len(ids), 3)  # how often and by which colour the parent was split tells them apart
        ranks = sorted(c["rank"] for c in report["communicators"] if c["ranks"] == 4)
        self.assertEqual(ranks, [0, 1, 2, 3])

    def test_threads_do_not_mix(self):
        program, observer = self.observed()
        program.do("threads 8 500 cudaMalloc & 4096")
        program.do(f"threads 8 500 ncclRecv {hex(ADDRESS)} 64 {UINT8} 1 {hex(COMM)} 0")
        report, functions = self.end(program, observer)
        self.assertEqual((functions["cudaMalloc"]["calls"], functions["cudaMalloc"]["returns"]), (4000, 4000))
        self.assertEqual(functions["cuMemAlloc_v2"]["returns"], 0)  # all of them nested
        self.assertEqual(self.counts(report), {"alloc": 4000, "recv": 4000})

    def test_a_landing_pad_is_stepped_over(self):
        program, observer = self.observed(library=MOCK_WITH_PAD)
        program.call("cudaMalloc", "&", 4096)
        program.call("ncclRecv", hex(ADDRESS), 100, FLOAT32, 1, hex(COMM), 0)
        report, functions = self.end(program, observer)
        self.assertEqual(self.counts(report), {"alloc": 1, "recv": 1})
        self.assertEqual(functions["ncclRecv"]["returns"], 1)

    def test_calls_are_shown_with_arguments_and_status(self):
        program = self.program()
        program.open(MOCK)
        observer = self.observer("--pid", str(program.pid), "--calls", report=False)
        program.do("set attach_mock_status 100")
        program.call("cudaMalloc", "&", 12345)
        program.call("ncclRecv", hex(ADDRESS), 100, FLOAT32, 1, hex(COMM), 0x7f5500000000)
        text = observer.stop()
        self.assertRegex(text, rf"(?m)^{program.pid} cudaMalloc\(0x[0-9a-f]+, 12345\) = 100$")
        self.assertRegex(text, rf"(?m)^{program.pid} ncclRecv\(0x{ADDRESS:x}, 100, 7, 1, {COMM}, 0x7f5500000000\) = 100$")


class UndecidedTest(AttachCase):
    def test_no_number_where_nothing_is_decided(self):
        """Less than two steps were seen: neither how deep the buffers are nor what could be saved is known."""
        program = self.program()
        program.open(MOCK)
        path = os.path.join(self.folder, "said")
        with open(path, "w") as out:
            observer = subprocess.Popen([RECVPOOL, "attach", "--pid", str(program.pid), "--min-bytes", "1", "--launches",
                                         "--interval", "50ms"], stdout=out, stderr=subprocess.PIPE, text=True)
        self.addCleanup(observer.stderr.close)
        self.addCleanup(observer.wait)
        self.addCleanup(observer.kill)
        self.assertIn("observing", observer.stderr.readline())
        for number in range(3):
            program.call("ncclRecv", hex(ADDRESS + number * 8192), 2048, UINT8, 1, hex(COMM), 0)

        def said():
            with open(path) as file:
                return file.read()
        wait_until(lambda: " 3 receives" in said(), "a line of the observer")
        observer.send_signal(signal.SIGINT)
        self.assertEqual(observer.wait(timeout=support.TIMEOUT_SECONDS), 0)
        line = next(line for line in said().splitlines() if " 3 receives" in line)
        self.assertTrue(line.endswith(" 3 buffers of 6.0 KiB, undecided yet"), line)
        row = next(line for line in said().splitlines() if line.endswith("too_few_steps"))
        self.assertRegex(row, r" 1 +3 +- +- +2\.0 KiB +6\.0 KiB +- +-  too_few_steps$")
        self.assertRegex(said(), r"(?m)^total +6\.0 KiB +- +-$")
        self.assertIn("\n=> undecided: fewer than two complete steps were seen on some channels.\n", said())


class PerfLinksTest(AttachCase):
    """Through perf events, which kernels without multi-uprobe links have. Taking these out takes seconds."""

    def test_entries_and_returns(self):
        program = self.program()
        program.open(MOCK)
        observer = self.observer("--pid", str(program.pid), "--links", "perf")
        for name, arguments, _ in ALLOCATIONS:
            program.call(name, *arguments)
        for name in FREES:
            program.call(name, hex(ADDRESS), 1 << 20, 0)
        for _ in range(3):
            program.call("ncclRecv", hex(ADDRESS), 100, FLOAT32, 1, hex(COMM), 0)
        program.do("set attach_mock_status 5")
        program.call("cudaMalloc", "&", 4096)
        document = observer.stop()
        report, functions = self.only_report(document, program.pid), functions_of(document)
        self.assertEqual(document["observer"]["links"], "perf_event")
        self.assertEqual(self.counts(report), {"alloc": len(ALLOCATIONS), "free": len(FREES), "recv": 3})
        self.assertEqual((functions["cudaMalloc"]["returns"], functions["cudaMalloc"]["last_failure"]), (2, 5))
        self.assertEqual(functions["ncclRecv"]["returns"], 3)


class LinksTest(AttachCase):
    def test_multi_links_are_used_where_the_kernel_has_them(self):
        program = self.program()
        version = tuple(map(int, os.uname().release.split(".")[:2]))
        document = self.observer("--pid", str(program.pid)).stop()
        self.assertEqual(document["observer"]["links"], "uprobe_multi" if version >= (6, 6) else "perf_event")
