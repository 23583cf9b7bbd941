"""What `cmake --install` leaves works from wherever it is moved to."""

import glob
import os
import shutil

import support
from support import BUILD, run


class InstallTest(support.TestCase):
    def setUp(self):
        super().setUp()
        self.prefix = os.path.join(self.folder, "first")
        self.assert_success(run(["cmake", "--install", BUILD, "--prefix", self.prefix]))

    def injected(self, prefix):
        result = run([os.path.join(prefix, "bin", "recvpool"), "run", "--", "printenv", "CUDA_INJECTION64_PATH"])
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        return result.stdout.strip()

    def test_files(self):
        library, = glob.glob(os.path.join(self.prefix, "lib*", "**", "librecvpool.so"), recursive=True)
        self.assertEqual(self.injected(self.prefix), os.path.realpath(library))
        for name in ("include/recvpool/event.h", "include/recvpool/status.h",
                     "share/recvpool/schema/report.schema.json", "share/recvpool/schema/job.schema.json",
                     "share/recvpool/grafana/fleet.json", "share/recvpool/prometheus/recvpool.rules.yml", "share/recvpool/ROLLOUT.md",
                     "share/bash-completion/completions/recvpool"):
            self.assertTrue(os.path.exists(os.path.join(self.prefix, name)), name)
        self.assertFalse(glob.glob(os.path.join(self.prefix, "lib*", "**", "libcuda*"), recursive=True))

    def test_no_test_program_is_installed(self):
        self.assertEqual(sorted(os.listdir(self.prefix)), ["bin", "include", "lib", "share"])

    def test_a_moved_install_works(self):
        moved = os.path.join(self.folder, "moved")
        shutil.move(self.prefix, moved)
        self.assertTrue(self.injected(moved).startswith(os.path.realpath(moved)))

    def test_a_missing_library_is_one_line(self):
        for library in glob.glob(os.path.join(self.prefix, "lib*", "**", "librecvpool.so"), recursive=True):
            os.remove(library)
        result = run([os.path.join(self.prefix, "bin", "recvpool"), "run", "--", "echo", "ran"])
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assert_one_line(result.stderr)
        self.assertIn("librecvpool.so", result.stderr)
