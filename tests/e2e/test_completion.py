"""Every subcommand lists all its options with --help, and bash completes them."""

import os
import re
import subprocess

import support
from support import RECVPOOL, SOURCE, run

SCRIPT = os.path.join(SOURCE, "agent", "completion.bash")
# Files whose tables of long options belong to a subcommand.
TABLES = {"report": ("cmd_report.c",), "serve": ("cmd_serve.c",), "disable": ("cmd_disable.c",), "plan": ("plan_args.c",),
          "doctor": ("cmd_doctor.c",), "attach": ("cmd_attach.c",), "run": ()}


class CompletionTest(support.TestCase):
    def complete(self, *words):
        """What bash offers for the last of `words`."""
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _recvpool; printf "%s\\n" "${COMPREPLY[@]}"'
        result = run(["bash", "-c", script, "bash", SCRIPT, RECVPOOL, *words])
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def subcommands(self):
        return [word for word in self.complete("") if not word.startswith("-")]

    def test_subcommands(self):
        self.assertTrue({"run", "report", "disable", "doctor", "plan"} <= set(self.subcommands()))
        self.assertEqual(self.complete("rep"), ["report"])
        self.assertEqual(self.complete("--v"), ["--version"])
        self.assertEqual(self.complete("x"), [])

    def test_help_lists_every_option(self):
        for name in self.subcommands():
            if run([RECVPOOL, name, "--help"]).returncode != 0:
                continue  # attach, where it could not be built
            with self.subTest(name):
                offered = self.complete(name, "--")
                self.assertIn("--help", offered)
                self.assertEqual(len(set(offered)), len(offered))
                for file in TABLES[name]:
                    with open(os.path.join(SOURCE, "agent", file)) as text:
                        known = re.findall(r'\{"([a-z-]+)", (?:no|required|optional)_argument', text.read())
                    self.assertEqual(sorted(offered), sorted(f"--{option}" for option in known))

    def test_options_and_files(self):
        self.assertEqual(self.complete("report", "--h"), ["--html", "--help"])
        self.assertEqual(self.complete("report", "some"), [])
        self.assertEqual(self.complete("run", "--verbose", "--", "ls", "--"), [])
        self.assertEqual(self.complete("nothing", "--"), [])
        self.assertNotIn("--mode", self.complete("report", "--"))

    # All options with values that are fixed; one of them may need others beside it.
    VALUES = {("run", "--mode"): ["observe", "enforce", "off"], ("run", "--on-violation"): ["report", "fallback", "abort"],
              ("run", "--cupti"): ["always", "learn", "off"], ("run", "--slack"): ["auto"], ("report", "--color"): ["always", "never", "auto"],
              ("plan", "--granularity"): ["stage", "direction", "rank"],
              ("plan", "--schedule"): ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"], ("attach", "--links"): ["multi", "perf", "auto"]}

    def test_values(self):
        for (name, option), values in self.VALUES.items():
            if run([RECVPOOL, name, "--help"]).returncode != 0:
                continue  # attach, where it could not be built
            with self.subTest(name, option=option):
                self.assertEqual(self.complete(name, option, "="), values)
                self.assertEqual(self.complete(name, option, "=", values[-1][:3]), [v for v in values if v.startswith(values[-1][:3])])
                if option == "--color":  # its value may be left out, and so is only taken behind a "="
                    self.assertEqual(self.complete(name, option, ""), [])
                else:
                    self.assertEqual(self.complete(name, option, ""), values)
                    self.assertEqual(self.complete(name, option, values[0][:2]), [v for v in values if v.startswith(values[0][:2])])
                for value in values:
                    self.assert_success(run([RECVPOOL, name, f"{option}={value}", "--help"]))
                last = ["--stages=2", "--microbatches=2"] if option == "--schedule" else ["--help"]
                self.assertNotEqual(run([RECVPOOL, name, f"{option}=nonsense", *last]).returncode, 0)

    def test_no_other_option_has_values(self):
        for name in self.subcommands():
            for option in self.complete(name, "--"):
                if (name, option) not in self.VALUES:
                    self.assertEqual(self.complete(name, option, ""), [], (name, option))
        self.assertEqual(self.complete("run", "--mode", "observe", "--", "--mode", ""), [])
        self.assertEqual(self.complete("run", "nothing", ""), [])
        self.assertEqual(self.complete("run", "--.*", ""), [])

    def test_bash_takes_the_script(self):
        result = subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
