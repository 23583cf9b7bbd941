"""`recvpool run`: options, environment of the command, exit status, signals."""

import os
import signal
import subprocess
import sys

import support
from support import AGENT, PROGRAMS, RECVPOOL, run

SHOW_ENVIRONMENT = "env | grep -E '^(RECVPOOL_|CUDA_INJECTION64_PATH)' | sort"


class RunCommandTest(support.TestCase):
    def run_command(self, *arguments, **extra):
        return run([RECVPOOL, "run", *arguments], env=support.clean_environment(**extra))

    def variables(self, *options):
        """Variables that the command gets, sorted; those of the run apart, since it is random."""
        result = run([RECVPOOL, "run", *options, "--", "sh", "-c", SHOW_ENVIRONMENT], cwd=self.folder)
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        lines = result.stdout.splitlines()
        runs = [line for line in lines if line.startswith("RECVPOOL_RUN=")]
        return [line for line in lines if line not in runs], runs

    def test_options_become_variables(self):
        lines, runs = self.variables("--mode", "observe", "--report-dir", "reports", "--interval=0.5", "--min-bytes", "1MiB",
                                  "--slack", "3", "--cupti", "off", "--verbose")
        self.assertEqual(lines, [
            f"CUDA_INJECTION64_PATH={AGENT}", "RECVPOOL_CUPTI=off", "RECVPOOL_INTERVAL=0.5",
            "RECVPOOL_MIN_BYTES=1MiB", "RECVPOOL_MODE=observe",
            f"RECVPOOL_REPORT_DIR={os.path.realpath(self.folder)}/reports", "RECVPOOL_SLACK=3", "RECVPOOL_VERBOSE=1"])
        self.assertEqual(len(runs), 1)

    def test_options_of_enforce_become_variables(self):
        self.make_plan()
        lines, _ = self.variables("--mode=enforce", "--plan", "plan.json", "--plan-rank", "1", "--on-violation", "abort",
                                  "--strict", "--cupti", "learn")
        self.assertEqual(lines, [
            f"CUDA_INJECTION64_PATH={AGENT}", "RECVPOOL_CUPTI=learn", "RECVPOOL_MODE=enforce",
            "RECVPOOL_ON_VIOLATION=abort", f"RECVPOOL_PLAN={os.path.realpath(self.folder)}/plan.json",
            "RECVPOOL_PLAN_RANK=1", "RECVPOOL_STRICT=1"])
        lines, _ = self.variables("--mode=enforce", "--buffer-bytes", "10MiB", "--slots=5", "--on-violation=report")
        self.assertEqual(lines, [
            f"CUDA_INJECTION64_PATH={AGENT}", "RECVPOOL_BUFFER_BYTES=10MiB", "RECVPOOL_MODE=enforce",
            "RECVPOOL_ON_VIOLATION=report", "RECVPOOL_SLOTS=5"])
        lines, _ = self.variables("--mode=enforce", "--slack=auto")
        self.assertEqual(lines, [f"CUDA_INJECTION64_PATH={AGENT}", "RECVPOOL_MODE=enforce", "RECVPOOL_SLACK=auto"])

    def test_every_run_has_a_word_of_its_own(self):
        runs = [self.variables(*options)[1] for options in (("--mode", "enforce"), ("--mode", "enforce"), (), ())]
        self.assertEqual([len(run) for run in runs], [1] * 4)
        self.assertEqual(len({run[0] for run in runs}), 4)

    def make_plan(self, *options):
        path = os.path.join(self.folder, "plan.json")
        self.assert_success(run([RECVPOOL, "plan", "--schedule", "1f1b", "--stages", "2", "--microbatches", "4",
                                 *(options or ("--buffer-bytes", "1MiB")), "--output", path]))
        return path

    def test_contradictions_stop_the_run(self):
        plan = self.make_plan()
        enforce = ("--mode", "enforce")
        for arguments, words in (((*enforce, "--plan", plan, "--buffer-bytes", "1MiB"), "--plan and --buffer-bytes exclude"),
                                 ((*enforce, "--plan", plan, "--slots", "3"), "--plan and --slots exclude"),
                                 ((*enforce, "--plan", plan, "--slack", "auto"), "--plan and --slack auto exclude"),
                                 ((*enforce, "--slots", "3"), "--slots needs --buffer-bytes"),
                                 ((*enforce, "--plan-rank", "3"), "--plan-rank needs --plan: "),
                                 (("--slots", "3"), "--slots needs --buffer-bytes and --mode enforce: of which receives?"),
                                 (("--plan-rank", "3"), "--plan-rank needs --plan and --mode enforce: a rank of which plan?"),
                                 (("--plan", plan), "--plan needs --mode enforce"),
                                 (("--strict",), "--strict needs --mode enforce"),
                                 (("--on-violation", "abort"), "--on-violation needs --mode enforce"),
                                 (("--cupti", "learn"), "--cupti learn needs --mode enforce")):
            self.assert_nothing_runs(words, *arguments)
        self.assert_nothing_runs("--slots needs --buffer-bytes", "--mode", "enforce", RECVPOOL_SLOTS="3")
        self.assert_nothing_runs("--plan and --buffer-bytes exclude", "--slots", "3", "--buffer-bytes", "1MiB",
                                 RECVPOOL_MODE="enforce", RECVPOOL_PLAN=plan)

    def assert_nothing_runs(self, words, *arguments, **environment):
        with self.subTest(words):
            result = self.run_command(*arguments, "--", "echo", "ran", **environment)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assert_one_line(result.stderr)
            self.assertIn(words, result.stderr)

    def test_what_is_no_plan_stops_the_run(self):
        enforce = ("--mode", "enforce", "--plan")
        plan = self.make_plan()
        self.assert_success(self.run_command(*enforce, plan, "--", "true"))
        self.assert_nothing_runs("plan.json: the plan has the ranks 0 to 1 and no rank 2", *enforce, plan, "--plan-rank", "2")
        self.assert_nothing_runs("none.json: cannot be read: No such file", *enforce, self.folder + "/none.json")
        self.assert_nothing_runs("must be a regular file", *enforce, self.folder)
        self.assert_nothing_runs("must be a regular file", *enforce, "/dev/stdin")
        self.assert_nothing_runs("class 0 has no size; make the plan again with --buffer-bytes", *enforce,
                                 self.make_plan("--slack", "1"))
        for text, words in (('{"schema": "other"}', "is not a plan"), ('{"schema":', "not whole JSON"),
                            ('{"schema": "recvpool.plan", "schema_version": "2.0"}', "version '2.0'"),
                            ('{"schema": "recvpool.plan", "schema_version": "1.0", "classes": []}', "lists no ranks")):
            with open(plan, "w") as file:
                file.write(text)
            self.assert_nothing_runs(words, *enforce, plan)

    def sample(self, style):
        """A command that leaves such a report, as the agent in it would."""
        return f"{PROGRAMS}/sample_report $RECVPOOL_REPORT_DIR 0 {style} now"

    def judged(self, script, mode="enforce"):
        return self.run_command("--mode", mode, "--report-dir", self.reports_dir, "--", "sh", "-c", script)

    def test_violations_are_an_exit_status(self):
        result = self.judged(self.sample("violated"))
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assert_one_line(result.stderr)
        self.assertIn("1 times in 1 process; see recvpool report " + self.reports_dir + "/", result.stderr)
        named = result.stderr.split()[-1]
        self.assertTrue(os.path.isfile(named), named)
        for report in self.read_reports():
            self.assertEqual(report["enforcement"]["totals"]["violations"], 1)
        two = self.judged(self.sample("violated") + "; " + self.sample("enforced") + "; " + self.sample("violated"))
        self.assertEqual(two.returncode, 3)
        self.assertIn("2 times in 2 processes", two.stderr)

    def test_every_report_with_violations_is_named(self):
        three = self.judged("; ".join([self.sample("violated")] * 3))
        self.assertEqual(three.returncode, 3)
        self.assert_one_line(three.stderr)
        self.assertIn("3 times in 3 processes; see recvpool report ", three.stderr)
        named = three.stderr.split(" report ")[1].split()
        self.assertEqual(named, sorted(os.path.join(self.reports_dir, name) for name in os.listdir(self.reports_dir)))
        shown = run([RECVPOOL, "report", *named])
        self.assert_success(shown)
        self.assertIn("with 3 VIOLATIONS", shown.stdout)
        eleven = self.judged("; ".join([self.sample("violated")] * 11))
        self.assert_one_line(eleven.stderr)
        self.assertIn("11 times in 11 processes", eleven.stderr)
        self.assertEqual(len(set(eleven.stderr.split(" report ")[1].split(" and ")[0].split())), 8)
        self.assertTrue(eleven.stderr.endswith(" and 3 more\n"), eleven.stderr)

    def ended(self, style, end, mode="observe", change="s/finished/running/"):
        """A command that leaves a report of a process that runs, and then ends."""
        script = f"{self.sample(style)}; sed -i {change} $RECVPOOL_REPORT_DIR/*.json; {end}"
        return self.run_command("--mode", mode, "--report-dir", self.reports_dir, "--", "sh", "-c", script)

    def test_how_a_command_was_ended_is_said(self):
        for number, word in ((signal.SIGTERM, "15 (Terminated)"), (signal.SIGINT, "2 (Interrupt)"), (signal.SIGKILL, "9 (Killed)")):
            result = self.judged(f"kill -{int(number)} $$", "observe")
            self.assertEqual((result.returncode, result.stdout), (128 + number, ""))
            self.assertEqual(result.stderr, f"recvpool run: the command was ended by signal {word}\n")

    def test_how_far_the_reports_of_what_was_ended_go(self):
        time = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ"
        rest = f"1 of 1 processes left no final report, the last is from after 4 steps, at {time}: recvpool report {self.reports_dir}\n"
        for mode in ("observe", "enforce"):
            result = self.ended("prealloc", "kill -TERM $$", mode)
            self.assertEqual(result.returncode, 128 + signal.SIGTERM)
            self.assertRegex(result.stderr, rf"\Arecvpool run: the command was ended by signal 15 \(Terminated\); {rest}\Z")
            result = self.ended("prealloc", "exit 1", mode)
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, rf"\Arecvpool run: {rest}\Z")
        result = self.ended("prealloc", "exit 143")  # as shells and launchers pass it on
        self.assertRegex(result.stderr, rf"\Arecvpool run: the command ended with status 143, as by signal 15 \(Terminated\); {rest}\Z")
        self.assertRegex(self.ended("prealloc", "exit 255").stderr, rf"\Arecvpool run: {rest}\Z")
        for end, change in (("exit 0", "s/finished/running/"), ("exit 1", "s/x/x/")):  # it is well; it says itself what was wrong
            self.assertEqual(self.ended("prealloc", end, change=change).stderr, "")

    def test_the_commands_own_failure_comes_first(self):
        result = self.judged(self.sample("violated") + "; exit 7")
        self.assertEqual(result.returncode, 7)
        self.assert_one_line(result.stderr)
        result = self.judged(self.sample("violated") + "; kill -KILL $$")
        self.assertEqual(result.returncode, 128 + signal.SIGKILL)

    def test_no_violations_no_exit_status(self):
        for style, mode in (("enforced", "enforce"), ("refused", "enforce"), ("shadow", "enforce"),
                            ("empty", "enforce"), ("violated", "observe")):
            with self.subTest(style):
                result = self.judged(self.sample(style), mode)
                self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_only_reports_of_this_run_count(self):
        # of another run, at the same time in the same folder
        result = self.judged("RECVPOOL_RUN=0123456789abcdef " + self.sample("violated"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # of none
        result = self.judged("unset RECVPOOL_RUN; " + self.sample("violated"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # of an earlier one
        self.assertEqual(self.judged(self.sample("violated")).returncode, 3)
        result = self.judged("true")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        # no folder at all
        self.assertEqual(self.run_command("--mode", "enforce", "--report-dir", "/nowhere", "--", "true").returncode, 0)

    def test_a_folder_full_of_traps_is_judged(self):
        os.mkdir(self.reports_dir)
        names = [f"{self.reports_dir}/trap-1-{9 * 10**18 + number}.json" for number in range(5)]
        os.mkfifo(names[0])
        os.mkdir(names[1])
        os.symlink("/dev/zero", names[2])
        with open(names[3], "w") as file:
            file.write("[" * 100000)
        with open(names[4], "w") as file:
            file.write('{"configuration": {"run": 5}, "enforcement": {"mode": "enforce", "totals": {"violations": 9}}}')
        with open(self.reports_dir + "/trap-1-99999999999999999999999.json", "w") as file:
            file.write("{}")
        result = self.judged("true")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.judged(self.sample("violated")).returncode, 3)

    def test_options_stop_at_the_command(self):
        result = self.run_command("echo", "--slack", "-x")
        self.assertEqual((result.returncode, result.stdout), (0, "--slack -x\n"))

    def test_wrong_options_name_option_and_mend(self):
        for arguments, words in ((["--mode", "bogus"], ["--mode", "observe, enforce or off", "bogus"]),
                                 (["--interval", "0"], ["--interval", "0.05"]),
                                 (["--min-bytes", "lots"], ["--min-bytes", "64KiB"]),
                                 (["--slack", "-1"], ["--slack", "0 to 1024"]),
                                 (["--cupti", "maybe"], ["--cupti", "always, learn or off"]),
                                 (["--report-dir", ""], ["--report-dir"]),
                                 (["--colour"], ["--colour", "--help", "(put -- before the command)"]),
                                 (["--slots", "0"], ["--slots", "1 to 65536"]),
                                 (["--plan-rank", "first"], ["--plan-rank", "whole number"]),
                                 (["--on-violation", "panic"], ["--on-violation", "report, fallback or abort"]),
                                 (["--strict=yes"], ["--strict takes no value"]),
                                 (["--verbose=1"], ["--verbose takes no value"]),
                                 (["--min-bytes", "0"], ["--min-bytes", "at least 1"]),
                                 (["-z"], ["-z", "--help"])):
            with self.subTest(arguments):
                result = self.run_command(*arguments, "--", "echo", "ran")
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assert_one_line(result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)

    def test_missing_value_and_missing_command(self):
        for arguments in (["--slack"], [], ["--"]):
            with self.subTest(arguments):
                result = self.run_command(*arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assert_one_line(result.stderr)

    def test_exit_status_passes_through(self):
        for status in (0, 1, 7, 255):
            self.assertEqual(self.run_command("--", "sh", "-c", f"exit {status}").returncode, status)
        for name in ("TERM", "KILL", "SEGV", "INT"):
            result = self.run_command("--", "sh", "-c", f"kill -{name} $$; sleep 10")
            self.assertEqual(result.returncode, 128 + getattr(signal, "SIG" + name))

    def test_a_command_that_cannot_run(self):
        plain = os.path.join(self.folder, "plain")
        with open(plain, "w") as file:
            file.write("no program")
        for command, status in (("/nonexistent/program", 127), ("no-such-program-anywhere", 127), (plain, 126)):
            result = self.run_command("--", command)
            self.assertEqual(result.returncode, status)
            self.assert_one_line(result.stderr)
            self.assertIn(command, result.stderr)

    def test_output_of_the_command_is_untouched(self):
        result = self.run_command("--", "sh", "-c", "echo out; echo err >&2")
        self.assertEqual((result.stdout, result.stderr), ("out\n", "err\n"))

    def test_injection_none_stays_off(self):
        result = self.run_command("--", "sh", "-c", SHOW_ENVIRONMENT, CUDA_INJECTION64_PATH="none")
        self.assertEqual(result.stdout, "CUDA_INJECTION64_PATH=none\n")
        self.assert_one_line(result.stderr)

    def test_a_report_folder_that_cannot_be_one(self):
        for path in ("/dev/null", __file__, __file__ + "/below"):
            result = self.run_command("--report-dir", path, "--", "touch", os.path.join(self.folder, "started"))
            self.assertEqual(result.returncode, 2, path)
            self.assert_one_line(result.stderr)
            self.assertIn("is no folder", result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "started")))

    def test_another_injection_is_replaced_and_named(self):
        result = self.run_command("--", "sh", "-c", SHOW_ENVIRONMENT, CUDA_INJECTION64_PATH="/opt/nsys.so")
        self.assertRegex(result.stdout, rf"\ACUDA_INJECTION64_PATH={AGENT}\nRECVPOOL_RUN=[0-9a-f]{{16}}\n\Z")
        self.assert_one_line(result.stderr)
        self.assertIn("/opt/nsys.so", result.stderr)
        self.assertEqual(self.run_command("--", "true", CUDA_INJECTION64_PATH=AGENT).stderr, "")

    def start(self, script):
        """Starts a Python script under recvpool run; returns the process once it has said that it is ready."""
        process = subprocess.Popen([RECVPOOL, "run", "--", sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   env=support.clean_environment(), text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_signals_are_forwarded(self):
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
                   signal.SIGWINCH]
        process = self.start(f"""
import signal, sys
numbers = {[int(n) for n in numbers]}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
for _ in numbers:
    print(signal.sigwait(numbers), flush=True)
sys.exit(5)
""")
        for number in numbers:
            process.send_signal(number)
            self.assertEqual(process.stdout.readline(), f"{int(number)}\n")
        self.assertEqual(process.wait(support.TIMEOUT_SECONDS), 5)

    def test_the_command_dies_of_a_forwarded_signal(self):
        process = self.start("print('ready', flush=True); import signal; signal.pause()")
        process.terminate()
        self.assertEqual(process.wait(support.TIMEOUT_SECONDS), 128 + signal.SIGTERM)

    def test_stop_and_continue(self):
        process = self.start("print('ready', flush=True); import sys; sys.stdin.read(); "
                             "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('back', flush=True)")
        # recvpool stops with its command ...
        pid, status = os.waitpid(process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status), status)
        # ... and wakes it when it is woken
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.stdout.readline(), "back\n")
        self.assertEqual(process.wait(support.TIMEOUT_SECONDS), 0)

    def test_ignored_sigchld_is_survived(self):
        result = run([RECVPOOL, "run", "--", "sh", "-c", "exit 9"],
                     preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(result.returncode, 9)

    def test_the_command_inherits_its_signal_mask(self):
        result = self.run_command("--", sys.executable, "-c",
                                  "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))")
        self.assertEqual(result.stdout, "0\n")

    def test_help_and_version(self):
        for arguments in (["--help"], ["run", "--help"], ["report", "--help"], ["plan", "--help"], ["help"], ["--version"]):
            result = run([RECVPOOL, *arguments])
            self.assert_success(result)
            self.assertTrue(result.stdout)
            self.assertEqual(result.stderr, "")
        self.assertEqual(run([RECVPOOL, "help"]).stdout, run([RECVPOOL, "--help"]).stdout)
        self.assertEqual(run([RECVPOOL]).returncode, 2)
        self.assertIn("no option '--frobnicate'", run([RECVPOOL, "--frobnicate"]).stderr)
        self.assertEqual(run([RECVPOOL, "frobnicate"]).returncode, 2)
