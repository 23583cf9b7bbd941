"""A recvpool without attach: built where what it needs is missing, it says so; everything else is as ever."""

import json
import os

import support
from support import SOURCE, run

UNAVAILABLE = 4


class MissingTest(support.TestCase):
    def build(self, *options):
        folder = os.path.join(self.folder, "build")
        configured = run(["cmake", "-G", "Ninja", "-S", SOURCE, "-B", folder, "-DRECVPOOL_TESTS=OFF", *options])
        self.assert_success(configured)
        self.assertIn("recvpool attach is left out", configured.stdout)
        self.assert_success(run(["cmake", "--build", folder, "--target", "recvpool"], timeout=600))
        return os.path.join(folder, "agent", "recvpool")

    def check(self, recvpool, words):
        attach = run([recvpool, "attach", "--pid", "1"])
        self.assertEqual((attach.returncode, attach.stdout), (UNAVAILABLE, ""))
        self.assert_one_line(attach.stderr)
        self.assertIn("built without it", attach.stderr)
        self.assertIn(words, attach.stderr)
        doctor = run([recvpool, "doctor", "--json"])
        document = json.loads(doctor.stdout)
        support.validator("doctor.schema.json").validate(document)
        self.assertEqual((doctor.returncode, document["attach_works"]), (UNAVAILABLE, False))
        finding = next(entry for entry in document["findings"] if entry["name"] == "attach")
        self.assertIn(words, finding["text"])
        self.assertIn("libbpf-dev", finding["mend"])
        self.assert_success(run([recvpool, "plan", "--schedule", "1f1b", "--stages", "4", "--microbatches", "8"]))

    def test_tools_are_missing(self):
        self.check(self.build("-DRECVPOOL_BPF_CLANG=", "-DRECVPOOL_BPFTOOL="), "clang, bpftool not found")

    def test_switched_off(self):
        self.check(self.build("-DRECVPOOL_ATTACH=OFF"), "switched off")
