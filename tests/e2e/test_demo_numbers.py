"""The numbers of the demonstration: 4 stages, 16 microbatches."""

import json
import os
import re
import shutil

import enforcing
import support
from support import RECVPOOL, TRAINER, clean_environment, run


class DemoNumbersTest(support.TestCase):
    def test_the_demo_builds_what_it_runs_and_no_more(self):
        if not os.path.exists(os.path.join(support.BUILD, "build.ninja")):
            self.skipTest("only Ninja tells what a target consists of")
        commands = run(["ninja", "-C", support.BUILD, "-t", "commands", "demo"])
        self.assert_success(commands)
        for name in ("agent/recvpool ", "agent/librecvpool.so ", "tests/trainer/rp_trainer ", "simlib/libcuda.so", "simlib/libcudart.so",
                     "simlib/libnccl.so", "simlib/libcupti.so"):
            self.assertRegex(commands.stdout, f"-o {name}")
        for part in ("tests/unit", "tests/e2e", "tests/bench", "tests/fuzz"):
            self.assertNotIn(f" -o {part}", commands.stdout)

    def job(self, *options):
        self.assert_success(run(
            [RECVPOOL, "run", "--report-dir", self.reports_dir, "--", TRAINER, "--stages", "4", "--microbatches", "16",
             "--steps", "4", "--message-bytes", "1MiB", *options], env=support.simulated()))
        self.read_reports()
        result = run([RECVPOOL, "report", "--json", self.reports_dir])
        self.assert_success(result)
        document = json.loads(result.stdout)
        support.validator("job.schema.json").validate(document)
        self.assertEqual(len(document["jobs"]), 1)
        return document["jobs"][0]

    def depths(self, job, direction):
        """{rank: (N, D)}"""
        return {process["process"]["rank"]: (channel["buffers"], channel["depth"])
                for process in job["processes"] for channel in process["channels"]
                if channel["direction"] == direction}

    def test_1f1b(self):
        job = self.job("--schedule", "1f1b")
        self.assertEqual(self.depths(job, "activation"), {1: (16, 3), 2: (16, 2), 3: (16, 1)})
        self.assertEqual(self.depths(job, "gradient"), {0: (16, 1), 1: (16, 1), 2: (16, 1)})
        mib = 1 << 20
        self.assertEqual(job["totals"], {"held_bytes": 6 * 16 * mib, "needed_bytes": (3 + 2 + 1 + 3) * mib,
                                         "would_save_bytes": (11 + 12 + 13 + 3 * 13) * mib, "enforcement": None})
        self.assertIn("pooling would save 75.0 MiB of the 96.0 MiB", job["conclusion"])

    def test_gpipe(self):
        job = self.job("--schedule", "gpipe")
        self.assertEqual(self.depths(job, "activation"), {1: (16, 16), 2: (16, 16), 3: (16, 16)})
        self.assertEqual(self.depths(job, "gradient"), {0: (16, 1), 1: (16, 1), 2: (16, 1)})
        self.assertIn("on activations with D = N there is nothing to save", job["conclusion"])

    def test_cached(self):
        """Steps are none where each use of a block counts as one: no row has more in use at once than buffers."""
        job = self.job("--allocation", "cached")
        self.assertEqual(job["totals"]["would_save_bytes"], 0)
        rows = re.findall(r"(?m)^\d+ +\S+:\d+ +[a-z]+ +\d+ +\d+ +(\d+) +(\S+) ", run([RECVPOOL, "report", self.reports_dir]).stdout)
        self.assertGreater(len(rows), 5)
        for buffers, depth in rows:
            self.assertTrue(depth == "-" or int(depth.split("-")[-1]) <= int(buffers), rows)

    def test_just_in_time(self):
        job = self.job("--allocation", "just_in_time")
        self.assertEqual(job["totals"]["would_save_bytes"], 0)
        self.assertIn("nothing to pool", job["conclusion"])


class OutOfMemoryTest(enforcing.EnforcingCase):
    """A device between what is needed with shared receive buffers and what is needed without."""

    DEVICE_BYTES = str(48 * enforcing.MIB)
    JOB = ["--stages", 4, "--microbatches", 16, "--steps", 4, "--message-bytes", 2 * enforcing.MIB]

    def test_shared_buffers_fit(self):
        large = self.train(self.JOB)
        alone = self.train(self.JOB, expect=None, RPSIM_DEVICE_BYTES=self.DEVICE_BYTES)
        self.assertNotEqual(alone.status, 0)
        self.assertIn("out of memory (cudaErrorMemoryAllocation)", alone.stderr)
        plan = self.plan("--schedule", "1f1b", "--stages", 4, "--microbatches", 16, "--buffer-bytes", 2 * enforcing.MIB)
        shared = self.train(self.JOB, ["--mode", "enforce", "--plan", plan], RPSIM_DEVICE_BYTES=self.DEVICE_BYTES)
        self.assertEqual(shared.computed, large.computed)
        self.check_quiet(shared)
        for rank, report in shared.reports.items():
            totals = report["enforcement"]["totals"]
            slots = sum(pool["slots"] for pool in shared.device(rank)["classes"])
            self.assertEqual(totals["minimum_bytes"], slots * 2 * enforcing.MIB)
            self.assertEqual(sum(pool["physical_peak_bytes"] for pool in shared.device(rank)["classes"]),
                             totals["minimum_bytes"], "no more than the least possible")


class DemoScriptTest(support.TestCase):
    """What tests/demo.sh shows: it can be pasted, and README shows the same."""

    COMMAND = re.compile(r"^\$ (.*)$", re.M)

    shown = {}

    def demo(self, *options):
        """What is shown, run once."""
        if options not in self.shown:
            self.shown[options] = self.run_demo(*options)
        return self.shown[options]

    def run_demo(self, *options):
        environment = clean_environment(DEMO_BUILD=support.BUILD, RECVPOOL_CMAKE_OPTIONS="")
        result = run(["bash", os.path.join(support.SOURCE, "tests", "demo.sh"), *options], env=environment, cwd=self.folder)
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        self.assertNotIn("note: RECVPOOL", result.stdout)
        return result.stdout

    def test_what_is_shown_can_be_pasted(self):
        shown = self.demo()
        commands = self.COMMAND.findall(shown)
        self.assertEqual(len(commands), 8, shown)
        for name in ("demo-observed", "demo-enforced"):
            shutil.rmtree(os.path.join(support.BUILD, name), ignore_errors=True)
        pasted = run(["bash", "-c", "\n".join(commands)], env=clean_environment(), cwd=self.folder)
        self.assertEqual(pasted.returncode, 0, pasted.stderr)
        for line in shown.splitlines():
            if re.match(r"step|rank \d parameters|parameters|=> |\d +\S+:\d+ ", line) and "bit for bit" not in line:
                line = enforcing.computed(line)  # what a pool holds at most is not told here
                self.assertIn(plain(line), map(plain, enforcing.computed(pasted.stdout).splitlines()))
        self.assertIn("out of memory", pasted.stderr)

    def test_options_are_handed_on(self):
        shown = self.demo("--schedule", "gpipe")
        self.assertIn("--message-bytes 1MiB --schedule gpipe\n", shown)
        self.assertIn(" unbounded_depth\n", shown)
        self.assertNotIn("out of memory", shown)

    def test_readme_shows_what_it_shows(self):
        """Commands and tables, but for what differs from machine to machine; README's build is the one in the source folder."""
        with open(os.path.join(support.SOURCE, "README.md")) as file:
            block = re.search(r"^`bash tests/demo\.sh` shows first$(.*?)^## ", file.read(), re.S | re.M)[1]
        shown = self.demo() + self.demo("--schedule", "gpipe")
        shown = {plain(line.replace(support.BUILD, "build/default").replace('"build/default', '"$PWD/build/default')
                       .replace(":build/default", ":$PWD/build/default")) for line in shown.splitlines()}
        wanted = [line.strip() for line in block.splitlines() if re.match(r"    (\$ |rank|step|parameters|total|poolable:|unbounded_depth:|\d )", line)]
        self.assertGreater(len(wanted), 30)
        for line in wanted:
            self.assertIn(plain(line), shown)


def plain(line):
    """Without host, process, and the widths that follow from them."""
    return re.sub(r" +", " ", re.sub(r"\S+:\d+ ", "PROCESS ", line)).strip()
