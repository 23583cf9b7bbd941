"""Where the build finds the CUDA headers: toolkits, both layouts of the wheels, mixtures, and what it says without any."""

import os
import re

import support
from support import SOURCE, run

CORE = ["cuda.h", "cuda_runtime_api.h", "crt/host_defines.h", "cupti.h", "generated_cuda_meta.h"]
OTHER = ["nvtx3/nvToolsExt.h", "nv/target", "cudaProfiler.h"]
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(headers NONE)
include("{source}/cupti/cmake/RecvpoolCuda.cmake")
get_target_property(folders recvpool_cuda_headers INTERFACE_INCLUDE_DIRECTORIES)
message(STATUS "ROOT=${{RECVPOOL_CUDA_ROOT}}")
message(STATUS "FOLDERS=${{folders}}")
"""


class CudaHeadersTest(support.TestCase):
    def setUp(self):
        super().setUp()
        self.site = os.path.join(self.folder, "lib", "site-packages")
        self.python = os.path.join(self.folder, "python")
        os.makedirs(os.path.join(self.folder, "project"))
        with open(os.path.join(self.folder, "project", "CMakeLists.txt"), "w") as file:
            file.write(PROJECT.format(source=SOURCE))
        with open(self.python, "w") as file:
            file.write(f"#!/bin/sh\necho '{self.site}'\n")
        os.chmod(self.python, 0o755)

    def put(self, folder, *headers):
        for header in headers:
            path = os.path.join(self.folder, folder, header)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            open(path, "w").close()
        return os.path.join(self.folder, folder)

    def configure(self, *options, toolkit=False, **environment):
        environment = support.clean_environment(**{"CUDA_HOME": None, **environment})
        result = run(["cmake", "-G", "Ninja", "-S", os.path.join(self.folder, "project"), "-B", os.path.join(self.folder, "build"),
                      f"-DRECVPOOL_PYTHON={self.python}", f"-DRECVPOOL_IGNORE_TOOLKIT={'OFF' if toolkit else 'ON'}",
                      *options], env=environment)
        root = [line[8:] for line in result.stdout.splitlines() if line.startswith("-- ROOT=")]
        folders = [line[11:].split(";") for line in result.stdout.splitlines() if line.startswith("-- FOLDERS=")]
        return result, root[0] if root else None, folders[0] if folders else None

    def test_toolkit_by_cuda_home(self):
        include = self.put("toolkit/include", *CORE, "nccl.h", *OTHER)
        _, root, folders = self.configure(toolkit=True, CUDA_HOME=self.folder + "/toolkit")
        self.assertEqual((root, folders), (self.folder + "/toolkit", [include]))

    def test_toolkit_with_cupti_aside_and_nccl_from_a_wheel(self):
        include = self.put("toolkit/include", *CORE[:3], *OTHER)
        cupti = self.put("toolkit/extras/CUPTI/include", *CORE[3:])
        nccl = self.put("lib/site-packages/nvidia/nccl/include", "nccl.h")
        _, _, folders = self.configure(toolkit=True, CUDA_HOME=self.folder + "/toolkit")
        self.assertEqual(folders, [include, cupti, nccl])

    def test_named_root_wins(self):
        self.put("toolkit/include", *CORE, "nccl.h", *OTHER)
        include = self.put("other/include", *CORE, "nccl.h", *OTHER)
        _, _, folders = self.configure(f"-DRECVPOOL_CUDA_ROOT={self.folder}/other", toolkit=True,
                                       CUDA_HOME=self.folder + "/toolkit")
        self.assertEqual(folders, [include])

    def test_wheels_of_cuda_13(self):
        include = self.put("lib/site-packages/nvidia/cu13/include", *CORE, *OTHER)
        nccl = self.put("lib/site-packages/nvidia/nccl/include", "nccl.h")
        _, root, folders = self.configure()
        self.assertEqual((root, folders), (os.path.dirname(include), [include, nccl]))

    def test_wheels_of_cuda_12(self):
        folder = "lib/site-packages/nvidia/"
        expected = [self.put(folder + "cuda_runtime/include", *CORE[:2]), self.put(folder + "cuda_nvcc/include", CORE[2]),
                    self.put(folder + "cuda_cupti/include", *CORE[3:]), self.put(folder + "nccl/include", "nccl.h"),
                    self.put(folder + "nvtx/include", "nvtx3/nvToolsExt.h"),
                    self.put(folder + "cuda_cccl/include", "nv/target"),
                    self.put(folder + "cuda_profiler_api/include", "cudaProfiler.h")]
        _, _, folders = self.configure()
        self.assertEqual(folders, expected)

    def test_cccl_below_the_other_headers(self):
        include = self.put("toolkit/include", *CORE, "nccl.h", "nvtx3/nvToolsExt.h", "cudaProfiler.h")
        cccl = self.put("toolkit/include/cccl", "nv/target")
        _, _, folders = self.configure(toolkit=True, CUDA_HOME=self.folder + "/toolkit")
        self.assertEqual(folders, [include, cccl])

    def test_wheels_in_the_build_folder_come_first(self):
        for site in ("lib/site-packages", "build/cuda-wheels"):
            self.put(site + "/nvidia/cu13/include", *CORE, *OTHER, "nccl.h")
        _, root, _ = self.configure()
        self.assertEqual(root, self.folder + "/build/cuda-wheels/nvidia/cu13")

    def test_without_any_it_says_what_to_install(self):
        result, _, _ = self.configure()
        self.assertNotEqual(result.returncode, 0)
        # tests/packages.sh recognises this failure by these words
        self.assertIn("recvpool needs the headers of", result.stderr)
        for word in ("CUDA_HOME", "pip install", "tests/run.sh"):
            self.assertIn(word, result.stderr)
        # every wheel of the one list, quoted: the version is a pattern, and the folder may hold blanks
        with open(os.path.join(SOURCE, "tests", "packages.sh")) as file:
            wheels = re.search(r"recvpool_wheels=\((.*?)\)", file.read(), re.DOTALL).group(1).split()
        self.assertGreaterEqual(len(wheels), 7)
        for wheel in wheels:
            self.assertIn(wheel, result.stderr)
        self.assertIn(f"--target '{self.folder}/build/cuda-wheels'", " ".join(result.stderr.split()))

    def test_half_an_installation_is_named(self):
        self.put("lib/site-packages/nvidia/cu13/include", *CORE[:3])
        result, _, _ = self.configure()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("lacks cupti.h generated_cuda_meta.h", " ".join(result.stderr.split()))
