"""`recvpool run`: options, environment of the command, exit status, signals."""

import os
import signal
import subprocess
import sys

import support
from support import AGENT, RECVPOOL, run

SHOW_ENVIRONMENT = "env | grep -E '^(RECVPOOL_|CUDA_INJECTION64_PATH)' | sort"


class RunCommandTest(support.TestCase):
    def run_command(self, *arguments, **extra):
        return run([RECVPOOL, "run", *arguments], env=support.clean_environment(**extra))

    def test_options_become_variables(self):
        result = run([RECVPOOL, "run", "--mode", "observe", "--report-dir", "reports", "--interval=0.5", "--min-bytes",
                      "1MiB", "--slack", "3", "--cupti", "off", "--verbose", "--", "sh", "-c", SHOW_ENVIRONMENT],
                     cwd=self.folder)
        self.assert_success(result)
        self.assertEqual(result.stdout.splitlines(), [
            f"CUDA_INJECTION64_PATH={AGENT}", "RECVPOOL_CUPTI=off", "RECVPOOL_INTERVAL=0.5",
            "RECVPOOL_MIN_BYTES=1MiB", "RECVPOOL_MODE=observe",
            f"RECVPOOL_REPORT_DIR={os.path.realpath(self.folder)}/reports", "RECVPOOL_SLACK=3", "RECVPOOL_VERBOSE=1"])
        self.assertEqual(result.stderr, "")

    def test_options_stop_at_the_command(self):
        result = self.run_command("echo", "--slack", "-x")
        self.assertEqual((result.returncode, result.stdout), (0, "--slack -x\n"))

    def test_wrong_options_name_option_and_mend(self):
        for arguments, words in ((["--mode", "bogus"], ["--mode", "observe or off", "bogus"]),
                                 (["--interval", "0"], ["--interval", "0.05"]),
                                 (["--min-bytes", "lots"], ["--min-bytes", "64KiB"]),
                                 (["--slack", "-1"], ["--slack", "0 to 1024"]),
                                 (["--cupti", "maybe"], ["--cupti", "always or off"]),
                                 (["--report-dir", ""], ["--report-dir"]),
                                 (["--colour"], ["--colour", "--help"]),
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

    def test_another_injection_is_replaced_and_named(self):
        result = self.run_command("--", "sh", "-c", SHOW_ENVIRONMENT, CUDA_INJECTION64_PATH="/opt/nsys.so")
        self.assertEqual(result.stdout, f"CUDA_INJECTION64_PATH={AGENT}\n")
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
