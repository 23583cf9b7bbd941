"""recvpool doctor: what it finds here, and what it says where something is missing."""

import json
import os
import shutil
import unittest

import support
from attach_support import BUILT, reason_to_skip
from support import PROGRAMS, RECVPOOL, SIMLIB

FAILURE, UNAVAILABLE = "failure", 4


class DoctorCase(support.TestCase):
    def ask(self, prefix=(), **environment):
        """The document, its findings by name, and the exit status."""
        result = support.run([*prefix, RECVPOOL, "doctor", "--json"], env=support.clean_environment(**environment))
        self.assertEqual(result.stderr, "")
        document = json.loads(result.stdout)
        errors = [error.message for error in support.validator("doctor.schema.json").iter_errors(document)]
        self.assertEqual(errors, [])
        self.assertEqual(result.returncode, 0 if document["run_works"] and document["attach_works"] else UNAVAILABLE)
        found = {}
        for finding in document["findings"]:
            found.setdefault(finding["name"], finding)
        return document, found

    def simulated(self):
        if not os.path.exists(os.path.join(SIMLIB, "libcuda.so.1")):
            self.skipTest("there is no simulated device")
        return {"LD_LIBRARY_PATH": SIMLIB}


class DoctorTest(DoctorCase):
    def test_run_works_on_the_simulated_device(self):
        document, found = self.ask(**self.simulated())
        self.assertTrue(document["run_works"], document)
        self.assertEqual({found[name]["status"] for name in ("driver", "devices", "runtime", "cupti", "nccl", "cuda_versions",
                                                             "injection", "agent")}, {"ok"})
        self.assertIn("CUDA 13.", found["driver"]["text"])
        self.assertIn("Simulated", found["devices"]["text"])
        self.assertIn("2.28.9", found["nccl"]["text"])

    def test_no_driver(self):
        document, found = self.ask(LD_LIBRARY_PATH=None)
        if found["driver"]["status"] == "ok":
            self.skipTest("this machine has a driver")
        self.assertFalse(document["run_works"])
        self.assertIn("install the NVIDIA driver", found["driver"]["mend"])

    def test_no_device(self):
        _, found = self.ask(**self.simulated(), RPSIM_DEVICES="0")
        if found["devices"]["status"] == "ok":
            self.skipTest("the simulator always has a device")
        self.assertEqual(found["devices"]["status"], FAILURE)

    def test_others_in_the_same_place(self):
        for name, value, status, words in (
                ("CUDA_INJECTION64_PATH", "/opt/nsys/libToolsInjection64.so", "warning", "/opt/nsys/"),
                ("CUDA_INJECTION64_PATH", "none", FAILURE, "switches the agent off"),
                ("LD_PRELOAD", "/nonexistent/libnsys-tool.so", "warning", "libnsys-tool.so"),
                ("NCCL_PROFILER_PLUGIN", "inspector", "warning", "inspector")):
            with self.subTest(name):
                environment = {name: value}
                result = support.run([RECVPOOL, "doctor", "--json"],
                                     env=support.clean_environment(**self.simulated(), **environment))
                finding = next(f for f in json.loads(result.stdout)["findings"] if f["name"] == "injection")
                self.assertEqual(finding["status"], status)
                self.assertIn(words, finding["text"])
                self.assertTrue(finding["mend"])

    def test_a_path_that_is_no_text(self):
        """The sentence around it is kept."""
        _, found = self.ask(CUDA_INJECTION64_PATH=os.fsdecode(b"/opt/\xff/libtool.so"))
        self.assertEqual(found["injection"]["text"], "CUDA_INJECTION64_PATH names another tool: /opt/?/libtool.so")

    def test_text(self):
        result = support.run([RECVPOOL, "doctor"], env=support.clean_environment(**self.simulated()))
        self.assertRegex(result.stdout, r"(?m)^  ok       driver +CUDA 13\.\d+")
        self.assertRegex(result.stdout, r"(?m)^=> run: works here; attach: (works here|cannot work here)$")
        self.assertEqual(result.stderr, "")

    def test_wrong_usage(self):
        for arguments in (["--nonsense"], ["more"]):
            result = support.run([RECVPOOL, "doctor", *arguments])
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assert_one_line(result.stderr)

    def test_help_tells_its_status(self):
        self.assertIn(f", {UNAVAILABLE} where one cannot", support.run([RECVPOOL, "doctor", "--help"]).stdout)

    def test_without_attach_it_says_so(self):
        if BUILT:
            self.skipTest("this recvpool has attach")
        document, found = self.ask()
        self.assertFalse(document["attach_works"])
        self.assertIn("built without attach", found["attach"]["text"])
        result = support.run([RECVPOOL, "attach", "--pid", "1"])
        self.assertEqual(result.returncode, UNAVAILABLE)
        self.assert_one_line(result.stderr)
        self.assertIn("was built without it", result.stderr)


class OddLibraryTest(DoctorCase):
    """A library that does more than answer spoils nothing but its own findings."""

    LIBRARIES = {"driver": ("libcuda.so.1", "cuDriverGetVersion"), "runtime": ("libcudart.so.13", "cudaRuntimeGetVersion"),
                 "cupti": ("libcupti.so.13", "cuptiGetVersion"), "nccl": ("libnccl.so.2", "ncclGetVersion")}

    def odd(self, name, how, *arguments, function=None):
        """The findings of that name, all others by name, and the document, where one library behaves like that."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        file, asked = self.LIBRARIES[name]
        shutil.copy(os.path.join(PROGRAMS, "libdoctor_odd.so"), os.path.join(folder, file))
        path = folder + ":" + self.simulated()["LD_LIBRARY_PATH"]
        result = support.run([RECVPOOL, "doctor", "--json", *arguments],
                             env=support.clean_environment(LD_LIBRARY_PATH=path, ODD=how, ODD_FUNCTION=function or asked))
        self.assertEqual(result.stderr, "")
        document = json.loads(result.stdout)
        self.assertEqual([error.message for error in support.validator("doctor.schema.json").iter_errors(document)], [])
        own = [finding for finding in document["findings"] if finding["name"] == name]
        others = {finding["name"]: finding["status"] for finding in document["findings"] if finding["name"] != name}
        return own, others, document

    def test_one_that_prints(self):
        for name, (file, function) in self.LIBRARIES.items():
            with self.subTest(name):
                (printed, version), others, document = self.odd(name, "print")
                self.assertEqual((printed["status"], version["status"]), ("warning", "ok"))
                self.assertRegex(printed["text"], rf'/{file}: \w+ printed when it was asked \(\d+ bytes\): ' +
                                 rf'{{"hello": "from {function}"}}$')
                self.assertEqual((others["cuda_versions"], document["run_works"]), ("ok", True))

    def test_one_that_prints_much(self):
        (printed, version), _, _ = self.odd("driver", "much")
        self.assertRegex(printed["text"], r"printed when it was asked \(\d{6,} bytes\): line 0$")
        self.assertEqual(version["status"], "ok")

    def test_one_that_crashes(self):
        for name, (file, function) in self.LIBRARIES.items():
            with self.subTest(name):
                (crashed,), others, document = self.odd(name, "crash")
                self.assertEqual(crashed["status"], FAILURE if name in ("driver", "cupti") else "warning")
                self.assertIn(f"/{file}: {function} crashed when it was asked (signal 11, Segmentation fault)",
                              crashed["text"])
                self.assertTrue(crashed["mend"])
                self.assertEqual({others[other] for other in self.LIBRARIES if other != name}, {"ok"})
                self.assertEqual(document["run_works"], name not in ("driver", "cupti"))

    def test_what_was_found_before_is_kept(self):
        (crashed, version), others, _ = self.odd("driver", "crash", function="cuInit")
        self.assertIn("cuInit crashed", crashed["text"])
        self.assertIn("CUDA 13.0", version["text"])
        self.assertNotIn("devices", others)

    def test_one_that_ends_the_process(self):
        (ended,), _, _ = self.odd("driver", "exit")
        self.assertIn("cuDriverGetVersion ended the process when it was asked (status 7)", ended["text"])

    def test_one_that_does_not_answer(self):
        (silent,), others, document = self.odd("driver", "hang", "--timeout", "1")
        self.assertIn("cuDriverGetVersion did not answer within 1 s", silent["text"])
        self.assertIn("--timeout", silent["mend"])
        self.assertEqual((others["nccl"], document["run_works"]), ("ok", False))

    def test_one_that_leaves_a_child_behind(self):
        (version,), others, _ = self.odd("driver", "leave", "--timeout", "5")
        self.assertEqual((version["status"], others["nccl"]), ("ok", "ok"))

    def test_wrong_times(self):
        for text in ("0", "-1", "1.5", "3601", "x", ""):
            result = support.run([RECVPOOL, "doctor", "--timeout", text])
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assert_one_line(result.stderr)
            self.assertIn("--timeout must be", result.stderr)


class KernelTest(DoctorCase):
    def setUp(self):
        super().setUp()
        if reason_to_skip():
            self.skipTest(reason_to_skip())

    def test_attach_works_here(self):
        document, found = self.ask()
        self.assertTrue(document["attach_works"], document)
        for name in ("kernel", "btf", "cap_bpf", "cap_perfmon", "cap_sys_ptrace", "cap_dac_read_search", "memlock",
                     "programs"):
            self.assertEqual(found[name]["status"], "ok", found[name])

    def test_each_capability_is_named(self):
        nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
        for capabilities, missing in (((), {"cap_bpf", "cap_perfmon"}), (("bpf",), {"cap_perfmon"}),
                                      (("perfmon",), {"cap_bpf"}), (("bpf", "perfmon"), set())):
            with self.subTest(capabilities):
                names = ",".join("+" + name for name in capabilities)
                prefix = nobody + ([f"--inh-caps={names}", f"--ambient-caps={names}"] if names else [])
                document, found = self.ask(prefix)
                failed = {name for name, finding in found.items()
                          if finding["status"] == FAILURE and finding["concerns"] == "attach"}
                self.assertEqual(failed, missing | ({"programs"} if missing else set()))
                self.assertEqual(document["attach_works"], not missing)
                for name in missing:
                    self.assertIn(name.upper(), found[name]["text"])
                    self.assertIn("setcap", found[name]["mend"])
                self.assertEqual(found["cap_sys_ptrace"]["status"], "warning")

    def test_the_report_folder_that_is_named(self):
        file = os.path.join(self.folder, "file")
        with open(file, "w"):
            pass
        for folder, status in ((self.folder, "ok"), (file, "warning"), (os.path.join(file, "below"), "warning")):
            _, found = self.ask(RECVPOOL_REPORT_DIR=folder)
            self.assertEqual(found["reports"]["status"], status)
            self.assertIn(folder, found["reports"]["text"])

    def test_no_report_folder(self):
        _, found = self.ask(["setpriv", "--reuid=65534", "--clear-groups"], XDG_RUNTIME_DIR=self.folder)
        self.assertEqual(found["reports"]["status"], "warning")
        self.assertIn("--report-dir", found["reports"]["mend"])

    def test_lockdown(self):
        for text, status in (("none [integrity] confidentiality", "ok"), ("[none] integrity confidentiality", "ok"),
                             ("none integrity [confidentiality]", "warning"), ("something else", "note")):
            with self.subTest(text):
                script = (f'mount -t tmpfs none /sys/kernel/security; echo "{text}" >/sys/kernel/security/lockdown; '
                          'exec "$@"')
                _, found = self.ask(["unshare", "--mount", "sh", "-ec", script, "sh"])
                self.assertEqual(found["lockdown"]["status"], status)

    def test_no_description_of_types(self):
        document, found = self.ask(["unshare", "--mount", "sh", "-ec",
                                    'mount -t tmpfs none /sys/kernel/btf; exec "$@"', "sh"])
        self.assertEqual((found["btf"]["status"], document["attach_works"]), (FAILURE, False))

    def test_container(self):
        document, found = self.ask(["unshare", "--pid", "--fork", "--mount-proc"])
        self.assertEqual((found["pid_namespace"]["status"], document["attach_works"]), (FAILURE, False))

    def test_user_namespace(self):
        """Its root has all capabilities, and none of them counts."""
        document, found = self.ask(["unshare", "--user", "--map-root-user"])
        self.assertEqual((found["user_namespace"]["status"], document["attach_works"]), (FAILURE, False))
        self.assertIn("user namespace", found["programs"]["text"])

    @unittest.skipIf(os.environ.get("E2E_SANITIZE"), "a sanitizer reads /proc itself")
    def test_no_proc(self):
        document, found = self.ask(["unshare", "--mount", "sh", "-ec", 'mount -t tmpfs none /proc; exec "$@"', "sh"])
        self.assertEqual((found["proc"]["status"], document["attach_works"]), (FAILURE, False))
        self.assertIn("/proc", found["programs"]["text"])
        self.assertNotIn("cap_bpf", found)

    def test_seccomp(self):
        document, found = self.ask([os.path.join(PROGRAMS, "attach_deny"), "-1", "1"])
        self.assertEqual((found["seccomp"]["status"], found["programs"]["status"]), ("warning", FAILURE))
        self.assertIn("seccomp", found["programs"]["text"])

    def test_memory_limit(self):
        _, found = self.ask(["prlimit", "--memlock=65536:65536"])
        self.assertIn("65536 bytes", found["memlock"]["text"])
