"""The installed library, found by pkg-config and by CMake, and its headers in C and C++."""

import glob
import os
import shlex
import shutil

import support
from support import BUILD, SOURCE, run

FLAGS = {"address": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"]}.get(
    os.environ.get("E2E_SANITIZE", ""), [])
EXPECTED = """\
activation: 8 buffers in 4 slots, 33554432 bytes saved: 0 1 2 3 0 1 2 3
gradient: 8 buffers in 2 slots, 50331648 bytes saved: 0 1 0 1 0 1 0 1
"""


class PackageTest(support.TestCase):
    def setUp(self):
        super().setUp()
        # Moved after the install: nothing in the package may name the folder it was installed to.
        first, self.prefix = os.path.join(self.folder, "first"), os.path.join(self.folder, "moved")
        self.assert_success(run(["cmake", "--install", BUILD, "--prefix", first]))
        shutil.move(first, self.prefix)
        self.example = os.path.join(SOURCE, "tests", "package")

    def assert_example_runs(self, program):
        result = run([program])
        self.assert_success(result)
        self.assertEqual(result.stdout, EXPECTED)

    def test_pkg_config(self):
        folder = os.path.dirname(glob.glob(os.path.join(self.prefix, "lib*", "**", "recvpool.pc"), recursive=True)[0])
        flags = run(["pkg-config", "--cflags", "--libs", "recvpool"], env=support.clean_environment(PKG_CONFIG_PATH=folder))
        self.assert_success(flags)
        program = os.path.join(self.folder, "example")
        self.assert_success(run(["cc", "-std=c17", "-Wall", "-Wextra", "-Werror", os.path.join(self.example, "example.c"),
                                 "-o", program, *shlex.split(flags.stdout), *FLAGS]))
        self.assert_example_runs(program)

    def test_cmake_package(self):
        build = os.path.join(self.folder, "build")
        self.assert_success(run(["cmake", "-G", "Ninja", "-S", self.example, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                                 f"-DCMAKE_EXE_LINKER_FLAGS={' '.join(FLAGS)}", f"-DCMAKE_C_FLAGS={' '.join(FLAGS)}"]))
        self.assert_success(run(["cmake", "--build", build]))
        self.assert_example_runs(os.path.join(build, "example"))

    def test_every_header_stands_alone(self):
        include = os.path.join(self.prefix, "include")
        headers = sorted(os.listdir(os.path.join(include, "recvpool")))
        self.assertIn("plan.h", headers)
        for header in headers:
            for compiler, standard, language in (("cc", "-std=c17", "c"), ("c++", "-std=c++17", "c++")):
                with self.subTest(header=header, language=language):
                    source = os.path.join(self.folder, "one." + language)
                    with open(source, "w") as file:
                        file.write(f"#include <recvpool/{header}>\n#include <recvpool/{header}>\n")
                    self.assert_success(run([compiler, standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", language,
                                             "-I", include, source]))
