"""Which files are probed: copies, deleted and replaced ones, other mount namespaces, overlays, static linking, late
loading, and those that are refused."""

import os
import shutil
import subprocess

import support
from attach_support import (MOCK, PROGRAM, STATIC_PROGRAM, AttachCase, functions_of, libraries_of, reports_of,
                            wait_until)
from support import PROGRAMS

RECV = ("ncclRecv", 0x7F1000000000, 100, 7, 1, 0xC0FFEE, 0)


class FilesTest(AttachCase):
    def copy(self, name="libmine.so", source=MOCK):
        path = os.path.join(self.folder, name)
        shutil.copy(source, path)
        return path

    def count_receives(self, program, observer, calls=10):
        for _ in range(calls):
            program.call(*RECV)
        document = observer.stop()
        report = self.only_report(document, program.pid)
        return report["events"]["by_kind"]["recv"], document

    def test_a_private_copy(self):
        program = self.program()
        program.open(self.copy())
        self.assertEqual(self.count_receives(program, self.observer("--pid", str(program.pid)))[0], 10)

    def test_two_copies_in_one_process(self):
        program = self.program()
        program.open(self.copy("a.so"))
        program.call(*RECV)
        program.open(self.copy("b.so"))
        observer = self.observer("--pid", str(program.pid))
        program.call(*RECV)
        program.open(os.path.join(self.folder, "a.so"))
        self.assertEqual(self.count_receives(program, observer)[0], 11)

    def test_names_that_maps_escapes(self):
        odd = os.path.join(self.folder, "a b\tc\\d\né (deleted)")
        os.mkdir(odd)
        shutil.copy(MOCK, odd)
        program = self.program()
        # the program reads lines: the library is found by a link without the newline
        link = os.path.join(self.folder, "link.so")
        os.symlink(os.path.join(odd, os.path.basename(MOCK)), link)
        program.open(link)
        received, document = self.count_receives(program, self.observer("--pid", str(program.pid)))
        self.assertEqual(received, 10)
        self.assertTrue(any("é" in path for path in libraries_of(document)), libraries_of(document))

    def test_deleted(self):
        path = self.copy()
        program = self.program()
        program.open(path)
        os.unlink(path)
        self.assertEqual(self.count_receives(program, self.observer("--pid", str(program.pid)))[0], 10)

    def test_replaced(self):
        """The file at the path is another one by now: what is mapped is probed, not what is named."""
        path = self.copy()
        program = self.program()
        program.open(path)
        os.rename(self.copy("other.so"), path)
        self.assertEqual(self.count_receives(program, self.observer("--pid", str(program.pid)))[0], 10)

    def test_inside_the_program(self):
        program = self.program(STATIC_PROGRAM)
        self.assertEqual(self.count_receives(program, self.observer("--pid", str(program.pid)))[0], 10)

    def test_stripped_of_all_but_dynamic_symbols(self):
        path = self.copy()
        self.assert_success(support.run(["strip", "--strip-all", path]))
        program = self.program()
        program.open(path)
        self.assertEqual(self.count_receives(program, self.observer("--pid", str(program.pid)))[0], 10)

    def test_imported_only(self):
        program = self.program()
        program.open(MOCK)
        program.open(os.path.join(PROGRAMS, "libattach_imports.so"))
        document = self.observer("--pid", str(program.pid)).stop()
        self.assertFalse([path for path in libraries_of(document) if "imports" in path])

    def test_five_byte_nop_is_refused(self):
        program = self.program()
        path = os.path.join(PROGRAMS, "libattach_nop5.so")
        program.open(path)
        observer = self.observer("--pid", str(program.pid))
        program.call("ncclSend", 0x7F1000000000, 100, 7, 1, 0xC0FFEE, 0)
        program.do("fork call ncclSend 0 0 0 0 0 0")
        self.assertEqual(program.do("fork call ncclSend 0 0 0 0 0 0").split()[0], "0")  # alive
        received, document = self.count_receives(program, observer)
        self.assertEqual(received, 10)  # what can be probed is
        self.assertNotIn("ncclSend", functions_of(document))
        entry = libraries_of(document)[path]
        self.assertEqual(entry["state"], "probed")
        self.assertIn("five-byte nop", entry["reason"])
        self.assertIn("five-byte nop", " ".join(reports_of(document)[program.pid]["warnings"]))

    def test_loaded_later(self):
        for attempt in range(3):
            program = self.program()
            observer = self.observer("--pid", str(program.pid))
            links = observer.links()
            program.open(self.copy(f"late{attempt}.so"))
            observer.wait_for_probes(links)
            received, document = self.count_receives(program, observer)
            self.assertEqual(received, 10)

    def test_loaded_later_by_a_loader_of_its_own(self):
        """A loader that nobody has probed: the mappings are looked at again after a while."""
        loader = self.copy("ld.so", os.path.realpath("/lib64/ld-linux-x86-64.so.2"))
        program = self.program(command=[loader, PROGRAM])
        observer = self.observer("--pid", str(program.pid))
        links = observer.links()
        program.open(self.copy())
        observer.wait_for_probes(links)
        self.assertEqual(self.count_receives(program, observer)[0], 10)

    def test_damaged_and_foreign_files_are_harmless(self):
        """Files that are mapped to run code and are no libraries at all."""
        for name, content in (("zero", bytes(8192)), ("text", b"#!" * 4096),
                              ("cut", open(MOCK, "rb").read()[:6000])):
            with self.subTest(name):
                path = os.path.join(self.folder, name)
                with open(path, "wb") as file:
                    file.write(content)
                code = ("import mmap,sys\nf=open(sys.argv[1],'rb')\nm=mmap.mmap(f.fileno(),4096,mmap.MAP_PRIVATE,"
                        "mmap.PROT_READ|mmap.PROT_EXEC)\nprint('ready',flush=True)\nsys.stdin.read()")
                process = subprocess.Popen(["python3", "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self.assertEqual(process.stdout.readline(), b"ready\n")
                document = self.observer("--pid", str(process.pid)).stop()
                self.assertNotIn(path, libraries_of(document))
                process.communicate(timeout=support.TIMEOUT_SECONDS)


class NamespaceTest(AttachCase):
    def contained(self, script):
        """The program in namespaces of its own, after `script` has arranged its mounts; $1 is the folder of the test."""
        process = self.program(command=["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc",
                                        "sh", "-ec", script, "sh", self.folder])
        wait_until(lambda: self.inner(process), "the program")
        return process

    def inner(self, process):
        """Process id, out here, of the program itself."""
        children = {process.pid}
        for entry in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
            try:
                with open(f"/proc/{entry}/stat") as file:
                    name, rest = file.read().rsplit(")", 1)
            except OSError:
                continue
            if int(rest.split()[1]) in children:
                children.add(int(entry))
                if "attach_program" in name:
                    return int(entry)
        return None

    def test_own_copy_on_a_mount_of_its_own(self):
        program = self.contained('mkdir "$1/m"; mount -t tmpfs none "$1/m"; '
                                 f'cp {MOCK} "$1/m/libnccl.so"; {PROGRAM}')
        inner = self.inner(program)
        program.open(os.path.join(self.folder, "m", "libnccl.so"))
        self.assertFalse(os.path.exists(os.path.join(self.folder, "m", "libnccl.so")))
        observer = self.observer("--pid", str(inner))
        for _ in range(5):
            program.call(*RECV)
        report = self.only_report(observer.stop(), inner)
        self.assertEqual(report["events"]["by_kind"]["recv"], 5)
        self.assertEqual(report["versions"]["nccl"]["path"], os.path.join(self.folder, "m", "libnccl.so"))
        self.assertTrue(any("inside its container the process has id" in text for text in report["warnings"]))

    def test_one_file_by_two_paths_counts_once(self):
        """A program in an overlay and one outside have the same library, under different device and file numbers."""
        os.mkdir(os.path.join(self.folder, "low"))
        shutil.copy(MOCK, os.path.join(self.folder, "low", "lib.so"))
        inside = self.contained('mkdir "$1/up" "$1/merged"; mount -t tmpfs none "$1/up"; mkdir "$1/up/u" "$1/up/w"; '
                                'mount -t overlay none -o "lowerdir=$1/low,upperdir=$1/up/u,workdir=$1/up/w" "$1/merged"; '
                                f'{PROGRAM}')
        inside.open(os.path.join(self.folder, "merged", "lib.so"))
        outside = self.program()
        outside.open(os.path.join(self.folder, "low", "lib.so"))
        pids = (self.inner(inside), outside.pid)
        observer = self.observer("--pid", ",".join(map(str, pids)))
        for _ in range(10):
            inside.call(*RECV)
            outside.call(*RECV)
        document = observer.stop()
        self.check_document(document)
        reports = reports_of(document)
        self.assertEqual([reports[pid]["events"]["by_kind"]["recv"] for pid in pids], [10, 10])
        self.assertEqual(functions_of(document)["ncclRecv"]["calls"], 20)
        states = sorted(entry["state"] for path, entry in libraries_of(document).items() if path.endswith("lib.so"))
        self.assertEqual(states, ["alias", "probed"])

    def test_an_id_from_inside_is_explained(self):
        """Out here the id belongs to somebody else."""
        other = self.program()
        program = self.contained(f"echo {other.pid - 1} >/proc/sys/kernel/ns_last_pid; {PROGRAM}; true")
        inner = self.inner(program)
        with open(f"/proc/{inner}/status") as file:
            inner_id = next(line for line in file if line.startswith("NSpid")).split()[-1]
        self.assertEqual(inner_id, str(other.pid))
        program.open(MOCK)
        document = self.observer("--pid", inner_id, "--duration", "200ms").finish()
        report = self.only_report(document, other.pid)
        self.assertTrue(any(f"process {inner} (attach_program)" in text and "inside a container" in text
                            for text in report["warnings"]), report["warnings"])
