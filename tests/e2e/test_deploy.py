"""Units and manifests: their commands are ones that recvpool takes, and they give no more rights than they say."""

import glob
import json
import os
import re
import shutil
import unittest

import support
from support import RECVPOOL, SOURCE, run

FOLDER = os.path.join(SOURCE, "dashboards", "deploy")
COMMAND = "/usr/local/bin/recvpool"


def read(path):
    with open(path) as file:
        return file.read()


class DeployTest(support.TestCase):
    def units(self):
        found = sorted(glob.glob(os.path.join(FOLDER, "*.service")))
        self.assertEqual(len(found), 2)
        return found

    def assert_is_taken(self, words):
        """Options come before --help, so one that is not known is noticed."""
        self.assert_success(run([RECVPOOL, *words, "--help"]))

    def test_commands_are_taken(self):
        lines = [line for path in self.units() for line in re.findall(r"^#?\s*ExecStart=(/.*)$", read(path), re.M)]
        self.assertEqual(len(lines), 3)
        for line in lines:
            words = line.split()
            self.assertEqual(words[0], COMMAND)
            self.assert_is_taken(words[1:])

    def test_commands_of_containers_are_taken(self):
        commands = [json.loads(text) for text in re.findall(r"command: (\[.*\])", read(os.path.join(FOLDER, "kubernetes.yaml")))]
        taken = 0
        for words in commands:
            if words[:2] == ["/bin/sh", "-c"]:
                words = words[2].removeprefix("exec ").removesuffix(" >/dev/null").split()
            if words[0] == COMMAND:
                self.assert_is_taken(words[1:])
                taken += 1
        self.assertEqual(taken, 2)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze on this machine")
    def test_systemd_finds_nothing_wrong(self):
        for path in self.units():
            copy = os.path.join(self.folder, os.path.basename(path))
            with open(copy, "w") as file:
                file.write(read(path).replace(COMMAND, RECVPOOL))
            result = run(["systemd-analyze", "verify", copy])
            self.assertNotIn(os.path.basename(path), result.stderr)
            self.assert_success(result)
            result = run(["systemd-analyze", "security", "--offline=yes", copy])
            exposure = re.search(r"exposure level for \S+: ([\d.]+)", result.stdout)
            self.assertTrue(exposure, result.stdout + result.stderr)
            self.assertLess(float(exposure[1]), 2 if "serve" in path else 5)

    def test_manifests(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("this Python has no yaml (Debian: python3-yaml)")
        documents = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(read(os.path.join(FOLDER, "kubernetes.yaml")))}
        self.assertEqual(len(documents), 5)
        for (kind, _), document in documents.items():
            if kind != "DaemonSet":
                continue
            pod = document["spec"]["template"]["spec"]
            labels = document["spec"]["template"]["metadata"]["labels"]
            self.assertEqual(document["spec"]["selector"]["matchLabels"], labels)
            for container in pod["containers"] + pod.get("initContainers", []):
                rights = container["securityContext"]
                self.assertEqual(rights["capabilities"]["drop"], ["ALL"])
                self.assertTrue(rights["readOnlyRootFilesystem"])
                self.assertNotIn("privileged", rights)
                mounts = {mount["name"] for mount in container["volumeMounts"]}
                self.assertTrue(mounts <= {volume["name"] for volume in pod["volumes"]})
        (serve,) = documents["DaemonSet", "recvpool-serve"]["spec"]["template"]["spec"]["containers"]
        self.assertTrue(serve["volumeMounts"][0]["readOnly"])
        self.assertNotIn("add", serve["securityContext"]["capabilities"])
