"""Every mistake that is harmless with a buffer per microbatch, made on purpose while buffers share memory: reported as what
it is, with the right buffers, microbatches and streams; prevented where it can be, and then with the same results. With the
guard switched off the same runs compute something else. Correct runs, however random, give no report at all.

E2E_SEEDS says how many random runs there are (default 24; 1,000 take about half an hour of one core), E2E_FIRST_SEED with which
they begin.
"""

import os
import re
import unittest

import enforcing
from enforcing import BROKEN_PATTERN, MIB, UNSAFE

STAGES, MICROBATCHES, STEPS, FIRST = 3, 8, 7, 4
SEEDS = int(os.environ.get("E2E_SEEDS", "4" if enforcing.SANITIZED else "24"))
FIRST_SEED = int(os.environ.get("E2E_FIRST_SEED", "1"))
CHECK = "_Z16rp_check_patternPKhPKjmm15rp_pattern_markP16rp_pattern_error"

# kind: (what the report calls it, prevented, call in the report)
EXPECTED = {
    "missing-wait": ("unordered_reuse", True, "recv"),
    "early-post": ("early_reuse", True, "recv"),
    "wrong-stream": ("unordered_reuse", True, "kernel"),
    "late-read": ("stale_access", False, "kernel"),
    "late-send": ("stale_access", False, "send"),
    "foreign-write": ("foreign_access", True, "memset"),
    "unseen-write": ("foreign_access", False, "memset"),
    "oversize": ("size_mismatch", True, "recv"),
    "double-free": ("double_free", True, None),
    "register": ("escaped_pointer", True, None),
    "ipc-export": ("escaped_pointer", True, None),
    "comm-abort": ("interrupted_step", True, None),
}
# These leave nothing wrong behind where the pool's memory is larger than the message, or where nothing is overwritten.
HARMLESS = {"oversize", "double-free", "register", "ipc-export", "comm-abort"}

HOW = ["auto", "planned"]
WAYS = [["--own-stream"], ["--driver-api", "--backward-thread"]]


def size_of(mistake):
    return 2 * MIB - (MIB >> 7 if mistake == "oversize" else 0)  # the longer one has to fit into what is really there


class MistakesCase(enforcing.EnforcingCase):
    def arguments(self, mistake, ways):
        return ["--stages", STAGES, "--microbatches", MICROBATCHES, "--steps", STEPS, "--message-bytes", size_of(mistake),
                "--mistake", mistake, "--mistake-step", FIRST, *ways]

    def options(self, how, mistake):
        if how == "auto":
            return ["--mode", "enforce", "--slack", 0]
        return ["--mode", "enforce", "--plan", self.plan("--schedule", "1f1b", "--stages", STAGES, "--microbatches",
                                                         MICROBATCHES, "--slack", 0, "--buffer-bytes", size_of(mistake))]


class ReportedTest(MistakesCase):
    def check_conflict(self, mistake, conflict, lines, record):
        """The side that the mistake is about is one that the trainer says it did; the other one a receive of the trainer's."""
        call = EXPECTED[mistake][2]
        name = lines[0]["side"] if call else "earlier"  # what has no call of a kind is named by the receive before it
        told = {(line["address"], line["microbatch"], line["step"]): line for line in lines}
        side = conflict[name]
        step = FIRST if not call and side["step"] == FIRST - 1 else side["step"]  # the step's own receive is still to come
        line = told.get((side["address"], side["microbatch"], step))
        self.assertIsNotNone(line, f"{mistake}: {side} is none of {sorted(told)}")
        if call and line["stream"] != "0x0":
            self.assertEqual(side["stream"], line["stream"], mistake)
        if call:
            self.assertEqual(side["call"], call, mistake)
        if call == "kernel":
            self.assertEqual(side["function"], CHECK)
        own = call is None or mistake in ("oversize", "late-read", "late-send")
        self.assertTrue(own or conflict["later"]["address"] != conflict["earlier"]["address"], mistake)
        received = {(entry["address"], entry["microbatch"]) for entry in record.lifetimes}
        for name in ("earlier", "later") if call else ("earlier",):
            self.assertIn((conflict[name]["address"], conflict[name]["microbatch"]), received, f"{mistake} {name}")

    def check_report(self, run, mistake):
        kind, prevented, _ = EXPECTED[mistake]
        which = {True: "prevented", False: "violated"}[prevented]
        other = {True: "violated", False: "prevented"}[prevented]
        self.assertEqual(set(run.counts(which)), {kind}, mistake)
        self.assertEqual(run.counts(other), {}, mistake)
        found = run.conflicts(kind, prevented)
        self.assertTrue(found, mistake)
        for rank, conflict in found:
            record = run.records.get(rank)
            if record is None:
                continue  # the rank found wrong data and ended without its summary
            lines = record.mistakes
            self.assertTrue(lines, f"{mistake}: rank {rank} made none")
            if mistake != "comm-abort":
                self.check_conflict(mistake, conflict, lines, record)

    def check(self, mistake, how, ways, seed):
        kind, prevented, _ = EXPECTED[mistake]
        arguments = self.arguments(mistake, ways)
        run = self.train(arguments, self.options(how, mistake), seed=seed, expect=0 if prevented else None)
        self.check_report(run, mistake)
        if prevented:
            self.check_same(run, arguments)
            self.check_accounts_close(run)
        else:  # what is gone is gone: the trainer sees it too, and the status says so
            self.assertEqual(run.status, BROKEN_PATTERN)
            self.assertIn("broken pattern", run.stderr)

    def test_each_by_name(self):
        for index, mistake in enumerate(EXPECTED):
            for how in HOW:
                ways = WAYS[index % 2] if how == "auto" else WAYS[(index + 1) % 2]
                with self.subTest(mistake=mistake, how=how, ways=ways):
                    self.check(mistake, how, ways, seed=index + 1)


class ShadowTest(MistakesCase):
    """Observed only, the report says of each mistake what enforcing does about it."""

    def test_each_is_told_as_enforcing_deals_with_it(self):
        # Memory that is freed twice is none that sharing would have a part in: the driver refuses it.
        for index, (mistake, (kind, prevented, _)) in enumerate(EXPECTED.items()):
            with self.subTest(mistake=mistake):
                run = self.train(self.arguments(mistake, WAYS[index % 2]), ["--mode", "observe", "--slack", 0],
                                 seed=index + 1)
                found = {True: run.counts("prevented"), False: run.counts("violated")}
                self.assertEqual(set(found[prevented]), {kind} - {"double_free"})
                self.assertEqual(found[not prevented], {})


class IdleTest(MistakesCase):
    def test_the_reason_is_that_of_the_allocations(self):
        """Messages of a size that fits, in allocations that do not: of no rank may it be said that too few steps were seen."""
        arguments = ["--stages", STAGES, "--microbatches", MICROBATCHES, "--steps", STEPS, "--message-bytes", 2 * MIB, "--mistake", "oversize",
                     "--mistake-step", FIRST]
        run = self.train(arguments, ["--mode", "enforce"])
        for rank, device in run.devices().items():
            self.assertEqual(device["idle"]["reason"], "rounding", f"rank {rank}")
            self.assertIn("rounded up to a multiple of 2 MiB, ", device["idle"]["text"])
            (size,) = re.findall("--buffer-bytes ([0-9]+KiB) all of that size", device["idle"]["text"])
        run = self.train(arguments, ["--mode", "enforce", "--buffer-bytes", size])
        for rank, device in run.devices().items():
            self.assertGreater(device["activations"], 0, f"rank {rank}")


class UnguardedTest(MistakesCase):
    """The harness proves something: without the guard the same seeds go wrong."""

    def test_each_corrupts(self):
        for index, mistake in enumerate(sorted(set(EXPECTED) - HARMLESS)):
            with self.subTest(mistake):
                arguments = self.arguments(mistake, WAYS[0])
                wrong, expected = 0, self.reference(arguments)
                for seed in range(1, 4):
                    run = self.train(arguments, self.options("auto", mistake), seed=seed, expect=None,
                                     RECVPOOL_TEST_UNGUARDED="1")
                    wrong += run.computed != expected
                    self.assertNotEqual(run.status, 0)
                self.assertGreater(wrong, 0)

    def test_a_correct_run_does_not(self):
        arguments = ["--stages", STAGES, "--microbatches", MICROBATCHES, "--steps", STEPS, "--message-bytes", 2 * MIB]
        run = self.train(arguments, self.options("auto", "missing-wait"), RECVPOOL_TEST_UNGUARDED="1")
        self.check_same(run, arguments)
        self.assertEqual((run.counts("prevented"), run.counts("violated")), ({}, {}))


class PolicyTest(MistakesCase):
    """What a violation leads to."""

    def test_status_of_a_run_that_went_on(self):
        # A read that is only late does no harm to what is computed: only its own check fails, and that is not looked at
        # where the data of the step is thrown away; so take the policies by what they report.
        for policy, fallbacks in (("report", 0), ("fallback", 1)):
            with self.subTest(policy):
                arguments = self.arguments("late-send", WAYS[0])
                options = [*self.options("auto", "late-send"), "--on-violation", policy]
                run = self.train(arguments, options, expect=UNSAFE, launcher=("sh", "-c", '"$@" || true', "sh"))
                self.assertIn("stale_access", run.counts("violated"))
                for _, device in run.devices().items():
                    self.assertLessEqual(device["fallbacks"], fallbacks)

    def test_every_mistake_under_every_policy(self):
        """The default is what all other tests have. What is prevented is no violation: no policy minds it."""
        for index, (mistake, (kind, prevented, _)) in enumerate(EXPECTED.items()):
            for policy in ("abort",) if prevented else ("report", "abort", "fallback"):
                with self.subTest(mistake=mistake, policy=policy):
                    arguments = self.arguments(mistake, WAYS[index % 2])
                    run = self.train(arguments, [*self.options("auto", mistake), "--on-violation", policy], seed=index + 1,
                                     expect=0 if prevented else None)
                    self.assertIn(kind, run.counts("prevented" if prevented else "violated"))
                    told = "RECVPOOL_ON_VIOLATION=abort" in run.stderr
                    self.assertEqual(told, policy == "abort" and not prevented, run.stderr)
                    suspect = "results since then are suspect" in run.stderr
                    self.assertEqual(suspect, policy != "abort" and not prevented, run.stderr)
                    if prevented:
                        self.check_same(run, arguments)
                        self.assertEqual(run.counts("violated"), {})
                    else:
                        self.assertNotEqual(run.status, 0)
                        if policy != "fallback":
                            self.assertEqual(sum(device["fallbacks"] for device in run.devices().values()), 0)

    def test_abort(self):
        run = self.train(self.arguments("late-read", WAYS[0]), [*self.options("auto", "late-read"), "--on-violation", "abort"],
                         expect=None)
        self.assertNotEqual(run.status, 0)
        self.assertIn("stale_access", run.counts("violated"))


class NoFalseAlarmTest(enforcing.EnforcingCase):
    """Correct programs of every kind: in shadow, learned, and by the plan of an earlier run."""

    def quiet(self, arguments, options, seed):
        run = self.train(arguments, options, seed=seed)
        self.check_same(run, arguments)
        self.check_quiet(run)
        return run

    def check(self, seed):
        arguments = ["--random-schedule", seed, "--steps", 5, "--message-bytes", [2 * MIB - 4096, 2 * MIB][seed % 2]]
        arguments += ["--driver-api"] * (seed // 2 % 2)
        options = ["--slack", seed // 4 % 3]
        if seed % 5 == 0:
            self.quiet(arguments, ["--mode", "observe"], seed)
            options += ["--plan", self.plan("--from-report", self.reports_dir, "--slack", seed // 4 % 3)]
        run = self.quiet(arguments, ["--mode", "enforce", *options], seed)
        self.check_accounts_close(run)

    def test_random_runs(self):
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            with self.subTest(seed=seed):
                self.check(seed)


if __name__ == "__main__":
    unittest.main()
