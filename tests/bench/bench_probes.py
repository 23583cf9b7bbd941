"""What a probe costs the process that is observed, beside a probe that does nothing on the same function: processor time
per call as the kernel counts it, in turn, the median over the rounds. Needs root.

    bench_probes.py BUILD_FOLDER [--rounds N] [--calls N]
"""
import argparse
import os
import signal
import statistics
import subprocess
import sys


class Program:
    """tests/e2e/attach_program with the mock library."""

    def __init__(self, build):
        folder = os.path.join(build, "tests", "e2e")
        self.library = os.path.join(folder, "libattach_mock.so")
        self.process = subprocess.Popen([os.path.join(folder, "attach_program")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        self.process.stdout.readline()
        self.do("open " + self.library)

    def do(self, line):
        self.process.stdin.write(line + "\n")
        return self.process.stdout.readline()

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def nanoseconds(self, calls, call):
        before = self.processor_seconds()
        self.do(f"repeat {calls} {call}")
        return (self.processor_seconds() - before) * 1e9 / calls


class Held:
    """A command that is ready when it says so, and ended afterwards."""

    def __init__(self, command, word, stream):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        line = getattr(self.process, stream).readline()
        if word not in line:
            sys.exit(line + self.process.stderr.read())

    def end(self, with_signal):
        self.process.send_signal(with_signal)
        self.process.communicate()


CALLS = [("transfer", "ncclSend 0x7f1000000000 100 7 1 0xc0ffee 0"), ("group begin", "ncclGroupStart"),
         ("allocation", "cuMemAlloc_v2 & 4096"), ("free", "cuMemFree_v2 0x7f0000000000")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=300000)
    options = parser.parse_args()
    program = Program(options.build)
    empty = [os.path.join(options.build, "tests", "bench", "bench_probes"), program.library]
    recvpool = [os.path.join(options.build, "agent", "recvpool"), "attach", "--json", "--pid", str(program.process.pid)]
    measured = {name: ([], []) for name, _ in CALLS}
    for _ in range(options.rounds):
        for which, (command, word, stream, ending) in enumerate(((empty, "ready", "stdout", signal.SIGTERM),
                                                                 (recvpool, "observing", "stderr", signal.SIGINT))):
            held = Held(command, word, stream)
            for name, call in CALLS:
                measured[name][which].append(program.nanoseconds(options.calls, call))
            held.end(ending)
    print(f"{'entry and return of a':<24} {'empty':>8} {'recvpool':>10} {'ratio':>7}   target 1.5")
    for name, (base, own) in measured.items():
        ratio = statistics.median(b / a for a, b in zip(base, own))
        print(f"{name:<24} {statistics.median(base):>5.0f} ns {statistics.median(own):>7.0f} ns {ratio:>7.2f}")
    program.process.stdin.close()


if __name__ == "__main__":
    main()
