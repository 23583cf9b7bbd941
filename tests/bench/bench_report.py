"""What merging many reports takes, for each report: `recvpool report` on folders of growing size; and what `recvpool serve` takes
to answer.

    python bench_report.py BUILD_FOLDER [RECVPOOL]

Reports are made from one of tests/e2e/sample_report, with ranks, processes and communicators of a job of that size; RECVPOOL is
another command to measure instead.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

COUNTS = (64, 1024, 4096, 16384)
SERVED = (64, 1024)
RANKS_OF_A_PIPELINE = 8
ANSWERS = 21
LARGE = 19  # times the receives of the sample: a report of 110 KiB
LOOKS = ((64, 0), (4096, 0), (4096, 64), (16384, 0), (16384, 64))


def fill(folder, build, count, times=1):
    """Files of `count` ranks, with so many times the receives in a step; returns their bytes together."""
    sample = os.path.join(build, "tests", "e2e", "sample_report")
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sample, made, "0", "prealloc"], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(made, os.listdir(made)[0])) as file:
            report = json.load(file)
    report["process"].update(rank="@RANK@", pid="@PID@")
    for channel in report["channels"]:
        channel["lifetimes"] *= times
    report["communicators"][0]["communicator_id"] = "@COMMUNICATOR@"
    text, size = json.dumps(report, indent=1), 0
    for rank in range(count):
        own = text.replace('"@RANK@"', str(rank)).replace('"@PID@"', str(1000 + rank))
        own = own.replace("@COMMUNICATOR@", hex(0x1000 + rank // RANKS_OF_A_PIPELINE))
        with open(os.path.join(folder, f"host-{1000 + rank}-1.json"), "w") as file:
            size += file.write(own)
    return size


def measure(command):
    """Seconds, processor seconds and peak bytes of one run."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        begin = time.monotonic()
        status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = [time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, status]
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        seconds, processor, peak, status = json.load(file)
    os.waitpid(child, 0)
    assert status == 0, command
    return seconds, processor, peak


def best(command, rounds=3):
    runs = [measure(command) for _ in range(rounds)]
    return tuple(min(run[i] for run in runs) for i in range(3))


def serve(recvpool, build, count):
    """Prints how long answers take with so many processes in the folder."""
    with tempfile.TemporaryDirectory() as folder:
        fill(folder, build, count)
        server = subprocess.Popen([recvpool, "serve", "--listen", "127.0.0.1:0", "--report-dir", folder, "--keep", str(2**31 - 1)],
                                  stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().split(" at ")[1].strip()
            while len(json.load(urllib.request.urlopen(url + "api/v1/processes"))["processes"]) < count:
                time.sleep(0.1)
            for path in ("metrics", "api/v1/job"):
                times, size = [], 0
                for _ in range(ANSWERS):
                    begin = time.monotonic()
                    size = len(urllib.request.urlopen(url + path).read())
                    times.append(time.monotonic() - begin)
                print(f"{count:8} {size / 2**20:6.1f} /{path:12} {1e3 * sorted(times)[ANSWERS // 2]:8.1f} ms, median of {ANSWERS}")
        finally:
            server.terminate()
            server.wait()


def processor_seconds(process):
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def look(recvpool, build, count, changed):
    """Prints what a look at the folder takes when so many of the files have changed since the last one."""
    with tempfile.TemporaryDirectory() as folder:
        size = fill(folder, build, count, LARGE)
        server = subprocess.Popen([recvpool, "serve", "--listen", "127.0.0.1:0", "--report-dir", folder, "--keep", str(2**31 - 1)],
                                  stdout=subprocess.PIPE, text=True)

        def looked():
            try:
                return json.load(urllib.request.urlopen(url + "healthz"))["last_look_unix_seconds"]
            except urllib.error.HTTPError:
                return 0  # not yet

        def next_look():
            before = looked()
            while looked() == before:
                time.sleep(0.02)
        try:
            url = server.stdout.readline().split(" at ")[1].strip()
            while not looked():
                time.sleep(0.1)
            first, looks = processor_seconds(server), 5
            for _ in range(looks):
                next_look()
                for name in sorted(os.listdir(folder))[:changed]:
                    os.utime(os.path.join(folder, name))
            used = processor_seconds(server) - first
            print(f"{count:8} {size / 2**20:6.0f} {changed:8} {first:12.2f} s {used / looks:10.3f} s")
        finally:
            server.terminate()
            server.wait()


def main():
    build = sys.argv[1]
    recvpool = sys.argv[2] if len(sys.argv) > 2 else os.path.join(build, "agent", "recvpool")
    print(f"{'reports':>8} {'MiB':>6} {'output':>6} {'seconds':>8} {'us a report, processor':>23} {'peak MiB':>9}")
    each = {}
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            size = fill(folder, build, count)
            for output in ("table", "json"):
                command = [recvpool, "report", *(["--json"] if output == "json" else []), folder]
                seconds, processor, peak = best(command)
                each[count, output] = processor / count
                print(f"{count:8} {size / 2**20:6.0f} {output:>6} {seconds:8.2f} {1e6 * processor / count:23.0f} {peak / 2**20:9.0f}")
    for output in ("table", "json"):
        print(f"{output}: a report among 16384 takes {each[16384, output] / each[1024, output]:.2f} of what one among 1024 takes")
    print(f"\n{'processes':>9} {'MiB':>6} answer")
    for count in SERVED:
        serve(recvpool, build, count)
    print(f"\n{'reports':>8} {'MiB':>6} {'changed':>8} {'first look':>14} {'each later':>12}   processor, recvpool serve")
    for count, changed in LOOKS:
        look(recvpool, build, count, changed)


if __name__ == "__main__":
    main()
