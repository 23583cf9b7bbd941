"""The carried build: it has all it needs but CUDA, asks for no newer C library than Ubuntu 24.04's, and starts where it was
unpacked, with nothing of this machine but the C library."""

import json
import os
import re
import shutil
import unittest

import libraries
import support
from support import BUILD, SIMLIB, SOURCE

PACK = os.path.join(SOURCE, "tests", "gpu", "pack.sh")
GLIBC = (2, 39)  # of Ubuntu 24.04
PROGRAMS = ("bin/recvpool", "libexec/gpu_memory", "libexec/gpu_coherence", "libexec/gpu_callbacks", "libexec/gpu_transfers",
            "libexec/bench_calls", "libexec/rp_trainer_cuda", "libexec/rp_trainer_cuda_static", "libexec/rp_trainer_reference")


@unittest.skipUnless(os.path.exists(os.path.join(BUILD, "tests", "trainer", "rp_trainer_cuda")),
                     "there is no build for CUDA here: no nvcc, or a sanitizer's")
class PackedTest(support.TestCase):
    def setUp(self):
        super().setUp()
        archive = os.path.join(self.folder, "gpu.tar.gz")
        self.assert_success(support.run([PACK, BUILD, archive]))
        # A few MiB: what travels to such a machine is limited.
        self.assertLess(os.path.getsize(archive), 32 << 20)
        place = os.path.join(self.folder, "elsewhere")
        os.mkdir(place)
        self.assert_success(support.run(["tar", "-C", place, "-xzf", archive]))
        self.root = os.path.join(place, "recvpool-gpu")

    def run_clean(self, *command, **variables):
        """With no environment but a path."""
        return support.run(list(command), env={"PATH": "/usr/bin:/bin", **variables}, cwd="/")

    def test_libraries(self):
        files = list(libraries.elf_files(self.root))
        relative = {os.path.relpath(path, self.root) for path in files}
        self.assertLessEqual(set(PROGRAMS) | {"lib/librecvpool.so", "libexec/librp_hidden_calls.so"}, relative)
        carried = set(os.listdir(os.path.join(self.root, "lib")))
        for path in files:
            with self.subTest(os.path.relpath(path, self.root)):
                self.assertEqual(set(libraries.needed(path)) - libraries.SYSTEM - libraries.CUDA - carried, set())
                versions = libraries.glibc_versions(path)
                self.assertTrue(versions)
                self.assertLessEqual(max(versions), GLIBC)
                found = re.findall(r"(?:RPATH|RUNPATH)\).*\[(.*)\]", libraries.read(path, "-d"))
                for folder in ":".join(found).split(":") if found else []:
                    self.assertTrue(folder.startswith("$ORIGIN"), found)

    def exported(self, library):
        """{symbol: versions} of a library, from its path."""
        found = {}
        for name, version in re.findall(r"^ *\d+: \S+ +\d+ \S+ +(?:GLOBAL|WEAK) +\S+ +(?!UND)\S+ (\w+)@*(\S*)$",
                                        libraries.read(library, "--dyn-syms"), re.MULTILINE):
            found.setdefault(name, set()).add(version)
        return found

    def test_the_real_libraries_have_all_that_is_asked_for(self):
        """They were linked with the simulated ones: what a real one lacks would show on the machine with the GPU only."""
        root = os.environ["E2E_CUDA_ROOT"]
        places = [os.path.join(root, folder) for folder in ("lib64", "lib64/stubs", "lib")]
        found = {}
        for name in ("libcuda.so", "libcudart.so.13", "libnccl.so.2"):
            path = next((os.path.join(place, name) for place in places if os.path.exists(os.path.join(place, name))), None)
            if not path:
                self.skipTest(f"there is no {name} here")
            found.update(self.exported(path))
        self.assertGreater(len(found), 500)
        asked = 0
        for program in PROGRAMS + ("lib/librecvpool.so", "libexec/librp_hidden_calls.so"):
            text = libraries.read(os.path.join(self.root, program), "--dyn-syms")
            for binding, name, version in re.findall(r" (GLOBAL|WEAK) +DEFAULT +UND (\w+)@?(\S*)", text):
                if not re.match("cu[A-Z]|cuda|nccl|__cuda", name) or binding == "WEAK":
                    continue
                asked += 1
                with self.subTest(program=program, symbol=name):
                    self.assertIn(name, found)
                    self.assertIn(version, found[name] | {""})
        self.assertGreater(asked, 100)

    def test_kernels_compile(self):
        """Those that the driver compiles there."""
        ptxas = os.path.join(os.environ["E2E_CUDA_ROOT"], "bin", "ptxas")
        if not os.path.exists(ptxas):
            self.skipTest("there is no ptxas here")
        for which, target in (("all", "sm_75"), ("all", "sm_90"), ("early", "sm_90")):
            text = support.run([os.path.join(BUILD, "tests", "gpu", "gpu_memory"), "kernels", which],
                               env=support.simulated())
            self.assert_success(text)
            path = os.path.join(self.folder, "kernels.ptx")
            with open(path, "w") as file:
                file.write(text.stdout)
            self.assert_success(support.run([ptxas, f"-arch={target}", path, "-o", path + ".cubin"]))

    def test_the_loader_finds_them_there(self):
        """Not on this machine, where they are installed too."""
        for program in PROGRAMS:
            result = self.run_clean(os.path.join(self.root, program), LD_TRACE_LOADED_OBJECTS="1")
            for name, path in re.findall(r"^\s*(\S+) => (\S+)", result.stdout, re.MULTILINE):
                with self.subTest(program=program, library=name):
                    if name in libraries.CUDA and path == "not":
                        continue  # not found here
                    self.assertTrue(name in libraries.SYSTEM | libraries.CUDA or path.startswith(os.path.dirname(self.root)), path)

    def simulate(self, *only):
        out = os.path.join(self.folder, "out")
        result = self.run_clean(os.path.join(self.root, "tests", "gpu", "run.sh"), "--simulate", "--simlib", SIMLIB, "--out", out,
                                *(word for name in only for word in ("--only", name)))
        with open(os.path.join(out, "gpu-report.json")) as file:
            report = json.load(file)
        self.assertEqual(list(support.validator("gpu.schema.json").iter_errors(report)), [])
        return report, result

    def test_it_starts_elsewhere(self):
        """On the simulated device, the programs that were packed."""
        report, result = self.simulate("attach.doctor", "nccl.together", "attach.runtime_api", "enforce.memory", "questions",
                                       "costs.launch_miss")
        results = {check["name"]: check["result"] for check in report["checks"]}
        self.assertEqual({name for name, word in results.items() if word in ("fail", "skipped")}, set(), result.stdout)
        self.assertEqual((results["enforce.memory.planned"], results["costs.launch_miss"]), ("pass", "measured"))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_in_an_empty_root(self):
        """A folder tree with the C library, the archive and nothing else."""
        root = os.path.join(self.folder, "root")
        loader, library_folder = os.path.join(root, "lib64"), os.path.join(root, "lib", "x86_64-linux-gnu")
        os.makedirs(loader)
        os.makedirs(library_folder)
        os.makedirs(os.path.join(root, "proc"))  # by which the loader learns where a program lies
        known = libraries.places()
        for name in libraries.SYSTEM - {"libgcc_s.so.1", "libstdc++.so.6", "libresolv.so.2"}:
            is_loader = name.startswith("ld-")
            shutil.copy(os.path.realpath(f"/lib64/{name}" if is_loader else known[name]),
                        os.path.join(loader if is_loader else library_folder, name))
        shutil.copytree(self.root, os.path.join(root, "recvpool-gpu"))
        for program, words, status in (("bin/recvpool", ["--version"], 0), ("bin/recvpool", ["run", "--", "/nothing"], 127),
                                       ("libexec/rp_trainer_reference", ["--stages", "2"], 0)):
            result = self.run_clean("unshare", "--map-root-user", "--mount", "sh", "-c",
                                    'mount --rbind /proc "$0/proc" && exec /sbin/chroot "$0" "$@"', root,
                                    f"/recvpool-gpu/{program}", *words)
            if re.match("(unshare|mount|/sbin/chroot): ", result.stderr):
                self.skipTest(f"a root of one's own is not allowed here: {result.stderr.strip()}")
            self.assertEqual(result.returncode, status, result.stderr)


if __name__ == "__main__":
    unittest.main()
