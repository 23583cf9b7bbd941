"""Jobs that do not do the same all the time: enforcing gives the same results, and the report says what was prevented."""

import itertools
import os
import re
import unittest

import enforcing
import support
from enforcing import MIB
from support import RECVPOOL

STAGES, MICROBATCHES, BYTES = 3, 8, 2 * MIB
DEPTH = {1: 2, 2: 1}  # activations in flight by rank, 1F1B
WAYS = [["--own-stream"], ["--own-stream", "--driver-api", "--backward-thread"]]
SHAPE = ["--stages", STAGES, "--microbatches", MICROBATCHES, "--message-bytes", BYTES]


class ChangesCase(enforcing.EnforcingCase):
    def options(self, planned):
        options = ["--mode", "enforce", "--slack", 0]
        if planned:
            options += ["--plan", self.plan("--schedule", "1f1b", "--stages", STAGES, "--microbatches", MICROBATCHES,
                                            "--slack", 0, "--buffer-bytes", BYTES)]
        return options

    def each(self, *arguments, hows=(False, True)):
        """Runs with and without a plan, both ways; each is the same as the reference and gives its memory back."""
        for index, (planned, ways) in enumerate(itertools.product(hows, WAYS)):
            with self.subTest(arguments=arguments, planned=planned, ways=ways):
                full = [*SHAPE, *arguments, *ways]
                run = self.train(full, self.options(planned), seed=index + 1)
                self.check_same(run, full)
                self.assertEqual(run.counts("violated"), {})
                self.check_accounts_close(run)
                yield run, planned

    def pools(self, run, direction):
        """Class reports of that direction by rank; the last one of a rank counts."""
        return {rank: pool for rank, device in run.devices().items() for pool in device["classes"]
                if pool["direction"] == direction}

    def grown(self, run):
        return {rank: device["grown"] for rank, device in run.devices().items() if device["grown"]}

    def all_but_depth(self):
        """Growth by rank when all activations are in flight at once."""
        return {rank: MICROBATCHES - depth for rank, depth in DEPTH.items()}


class ChangesTest(ChangesCase):
    def test_schedule(self):
        for run, _ in self.each("--steps", 9, "--switch-schedule", "gpipe@4", "--switch-schedule", "1f1b@6"):
            self.assertEqual(self.grown(run), self.all_but_depth())
            self.assertEqual(run.counts("prevented"), {"early_reuse": sum(self.all_but_depth().values())})
            self.assertEqual({pool["grown"] for pool in self.pools(run, "gradient").values()}, {0})

    def test_gpipe_activations_are_never_pooled(self):
        for run, planned in self.each("--steps", 5, "--schedule", "gpipe"):
            gradients = self.pools(run, "gradient")
            if planned:  # the plan is that of 1F1B: it does not fit, and everything is as without a pool
                self.assertEqual(self.grown(run), self.all_but_depth())
                self.assertEqual(run.counts("prevented"), {"early_reuse": sum(self.all_but_depth().values())})
            else:
                self.assertEqual(self.pools(run, "activation"), {})
                self.assertEqual({(rank, pool["slots"], pool["buffers"]) for rank, pool in gradients.items()},
                                 {(0, 1, MICROBATCHES), (1, 1, MICROBATCHES)})
                self.assertEqual(run.counts("prevented"), {})

    def test_microbatches(self):
        for run, _ in self.each("--steps", 9, "--switch-microbatches", "12@4", "--switch-microbatches", "4@6"):
            self.assertEqual((run.counts("prevented"), self.grown(run)), ({}, {}))

    def test_evaluation(self):
        for run, _ in self.each("--steps", 8, "--eval-every", 3):  # an evaluation releases what only the forward reads
            self.assertEqual(self.grown(run), self.all_but_depth())
            self.assertEqual(set(run.counts("prevented")), {"early_reuse"})
        for run, planned in self.each("--steps", 6, "--eval-every", 1):
            self.assertEqual(self.grown(run), self.all_but_depth() if planned else {})
            self.assertEqual(set(run.counts("prevented")), {"early_reuse"} if planned else set())

    def test_rebuilt_stages(self):
        for run, planned in self.each("--steps", 8, "--rebuild-at", 4):
            self.assertEqual((run.counts("prevented"), self.grown(run)), ({}, {}))
            slots = {rank: pool["slots"] for rank, pool in self.pools(run, "activation").items()}
            self.assertEqual(slots, DEPTH)
            for pool in self.pools(run, "activation").values():
                self.assertEqual(pool["physical_peak_bytes"], pool["slots"] * BYTES)

    def test_recycled_blocks(self):
        for run, planned in self.each("--steps", 6, "--allocation", "cached"):
            self.assertEqual((run.counts("prevented"), self.grown(run)), ({}, {}))
            if not planned:
                self.assertEqual({device["activations"] for device in run.devices().values()}, {0})
        for run, _ in self.each("--steps", 6, "--allocation", "cached", "--segment-blocks", 4):
            self.assertEqual(run.counts("prevented"), {})
            self.assertEqual({device["saved_peak_bytes"] for device in run.devices().values()}, {0})

    def test_replayed_graphs(self):
        for run, planned in self.each("--steps", 8, "--capture-at", 5):
            for rank, device in run.devices().items():  # what the graph holds has memory of its own
                kept = sum(MICROBATCHES - pool["slots"] for pool in device["classes"])
                self.assertEqual(device["grown"], kept, f"rank {rank}")
                self.assertEqual(device["physical_peak_bytes"] - device["one_to_one_peak_bytes"], 0)
            self.assertEqual(set(run.counts("prevented")), {"unordered_reuse"})
        for run, planned in self.each("--steps", 8, "--capture-at", 5, "--eval-every", 2):
            self.assertLessEqual(set(run.counts("prevented")), {"unordered_reuse", "early_reuse"})
        for run, planned in self.each("--steps", 6, "--capture-at", 1):
            if not planned:
                self.assertEqual({device["activations"] for device in run.devices().values()}, {0})

    def test_identity_stage(self):
        for run, planned in self.each("--steps", 6, "--identity-stage", 1):
            # By the schedule the backward reads the activation as well: a message that it never reads is never let go.
            self.assertEqual(self.grown(run), {1: MICROBATCHES - DEPTH[1]} if planned else {})
            self.assertEqual(set(run.counts("prevented")), {"early_reuse"} if planned else set())
            self.assertIn(1, self.pools(run, "activation"))


class EvaluationsTest(ChangesCase):
    """Evaluations read each message once, also where stages go there and back and each message seems answered. What they
    do is no evidence for the training. E2E_SEEDS says how many random schedules there are besides those that went wrong
    before."""

    def seeds(self, known):
        count = int(os.environ.get("E2E_SEEDS", "0"))
        return sorted({*(known[:1] if enforcing.SANITIZED else known), *range(1, count + 1)})

    def check(self, arguments, options, seed):
        run = self.train(arguments, ["--mode", "enforce", "--slack", 0, *options], seed=seed)
        self.check_same(run, arguments)
        self.assertEqual(run.counts("violated"), {})
        self.check_accounts_close(run)
        return run

    def test_before_the_first_step(self):
        interleaved = ["--schedule", "interleaved_1f1b", "--stages", 2, "--microbatches", 8, "--message-bytes", BYTES]
        run = self.check([*interleaved, "--steps", 6, "--eval-first", 3], [], 1)
        for rank, device in run.devices().items():
            self.assertGreater(device["saved_peak_bytes"], 0, f"rank {rank}: {device['idle']}")
        for seed in self.seeds([10, 16]):
            with self.subTest(seed=seed):
                self.check(["--random-schedule", seed, "--message-bytes", BYTES, "--steps", 6, "--eval-first", 3], [], seed)

    def test_in_a_run_that_a_plan_is_made_of(self):
        for seed, steps in [(4843, 4), *((seed, 5) for seed in self.seeds([1, 5]))]:
            for every in (1, 2):
                with self.subTest(seed=seed, every=every):
                    arguments = ["--random-schedule", seed, "--message-bytes", BYTES, "--steps", steps, "--eval-every", every]
                    self.train(arguments, ["--mode", "observe"], seed=seed)
                    plan = self.plan("--from-report", self.reports_dir, "--slack", 0)
                    self.check(arguments, ["--plan", plan], seed)


class LookalikesTest(ChangesCase):
    """Memory of a receive buffer's size that is none, touched first by a library whose calls cannot be interposed."""

    def test_learned(self):
        for where, touch in itertools.product(("before", "between", "after", "activations"), ("now", "late")):
            for run, _ in self.each("--steps", 5, "--lookalike", where, "--lookalike-touch", touch, hows=(False,)):
                self.assertEqual(run.counts("prevented"), {})
                for rank, pool in self.pools(run, "activation").items():
                    self.assertEqual((pool["slots"], pool["buffers"]), (DEPTH[rank], MICROBATCHES))

    def reasons(self, device):
        return {reason["reason"] for reason in device["reasons"]}

    def test_planned(self):
        """Weights and activations everywhere, in bursts of their own and amid the receive buffers, as few as one and more than
        there are slots: until the first receive all have memory, and afterwards what is received into shares K slots."""
        places = ("before", "between", "after", "activations", "before,between,after,activations")
        for (where, touch), count in zip(itertools.product(places, ("now", "late")), itertools.cycle((1, 2, 12))):
            touched = ["--lookalike", where, "--lookalike-touch", touch, "--lookalike-count", count]
            for run, _ in self.each("--steps", 5, *touched, hows=(True,)):
                self.assertEqual((run.counts("prevented"), self.grown(run)), ({}, {}))
                for rank, device in run.devices().items():
                    self.assertIn("calls_unstoppable", self.reasons(device))
                    self.assertNotIn("memory_short", self.reasons(device))
                    sharing = sum(MICROBATCHES - pool["slots"] for pool in device["classes"])
                    self.assertEqual(device["saved_peak_bytes"], sharing * BYTES, f"rank {rank}")
                for rank, pool in self.pools(run, "activation").items():
                    self.assertEqual(pool["physical_peak_bytes"], DEPTH[rank] * BYTES)

    def test_the_report_says_that_the_peak_is_not_lowered(self):
        arguments = [*SHAPE, "--own-stream", "--steps", 5]
        said = "but did not lower the peak: "
        for more, planned, wanted in (([], True, False), ([], False, True), (["--lookalike", "before", "--lookalike-count", 2], True, True)):
            with self.subTest(more=more, planned=planned):
                run = self.train([*arguments, *more], self.options(planned))
                held = sum(device["physical_peak_bytes"] for device in run.devices().values())
                text = support.run([RECVPOOL, "report", self.reports_dir]).stdout
                self.assertRegex(text, "=> sharing saved [1-9]")
                self.assertEqual(f"{said}{held / MIB:.1f} MiB were held at most" in text, wanted, text)
                self.assertEqual(said in text, wanted)
                first, second = text.split("ratio\n")
                stages = [[line.split()[at] for line in part.splitlines() if re.match("[0-9]+ +[^ ]+:[0-9]+ ", line)]
                          for part, at in ((first, 3), (second, 4))]
                self.assertEqual(sorted(stages[0]), sorted(stages[1]))
                self.assertEqual(set(stages[0]) == {"0"}, not planned)

    def test_planned_where_the_device_is_too_small_without(self):
        """Out of memory as it is. By a plan it trains, though a library that cannot be stopped writes what is allocated right
        behind the receive buffers."""
        for where, count in (("before", 2), ("after", 1), ("after", 2), ("activations", 2)):
            arguments = [*SHAPE, "--own-stream", "--steps", 5, "--lookalike", where, "--lookalike-count", count]
            small = {"RPSIM_DEVICE_BYTES": str(24 * MIB)}
            with self.subTest(where=where, count=count):
                stock = self.train(arguments, expect=None, **small)
                self.assertNotEqual(stock.status, 0)
                self.assertIn("out of memory", stock.stderr)
                run = self.train(arguments, self.options(True), **small)
                self.check_same(run, arguments)
                self.assertEqual((run.counts("violated"), self.grown(run)), ({}, {}))
                self.assertIn("memory_short", self.reasons(run.device(1)))
                self.check_accounts_close(run)


class ConclusionsTest(ChangesCase):
    """What the report says follows from it all."""

    def concluded(self, arguments, options):
        run = self.train(arguments, options)
        self.check_same(run, arguments)
        return run, support.run([RECVPOOL, "report", self.reports_dir]).stdout

    def test_a_plan_of_another_schedule(self):
        arguments = ["--stages", 2, "--microbatches", 6, "--steps", 4, "--message-bytes", BYTES]
        plan = self.plan("--schedule", "gpipe", "--stages", 2, "--microbatches", 6, "--buffer-bytes", BYTES, "--slack", 0)
        run, text = self.concluded(arguments, ["--mode", "enforce", "--plan", plan])
        self.assertIn("The plan is of another schedule than this run has", text)
        run, text = self.concluded([*arguments, "--schedule", "gpipe"], ["--mode", "enforce", "--plan", plan])
        self.assertIn("Nothing to do: memory is shared in 1 of 2 processes, and others have nothing to gain", text)

    def test_headroom_that_takes_it_all(self):
        arguments = ["--stages", 2, "--microbatches", 6, "--steps", 4, "--message-bytes", BYTES]
        run, text = self.concluded(arguments, ["--mode", "enforce", "--headroom", "1TiB"])
        self.assertEqual({device["saved_peak_bytes"] for device in run.devices().values()}, {0})
        self.assertIn("Run it with less --headroom, or without enforce", text)

    def test_buffers_that_were_rebuilt_are_not_counted_twice(self):
        arguments = ["--stages", 3, "--microbatches", 8, "--steps", 8, "--message-bytes", BYTES, "--rebuild-at", 4]
        _, text = self.concluded(arguments, ["--mode", "observe"])
        self.assertRegex(text, "=> pooling would save [1-9][0-9.]* MiB of the [0-9.]+ MiB held for receive buffers\\.\n")


class OtherScheduleTest(ChangesCase):
    """A plan on paper, of the schedule that the job runs or of another, for ranks that send each other everything: a send
    that answers a message looks like one that passes another on. Nothing may be taken for done that is not."""
    SCHEDULES = {"interleaved_1f1b": ["--stages", 4, "--ranks", 2], "looped_bfs": ["--stages", 4, "--ranks", 2],
                 "1f1b": ["--stages", 2]}

    def test_two_ranks(self):
        some = [4] if enforcing.SANITIZED else [4, 8]
        for microbatches, planned, slack in itertools.product(some, self.SCHEDULES, (0, 2)):
            plan = self.plan("--schedule", planned, *self.SCHEDULES[planned], "--microbatches", microbatches, "--buffer-bytes", BYTES,
                             "--slack", slack)
            for schedule, allocation in itertools.product(("interleaved_1f1b", "looped_bfs"), ("preallocated", "cached", "just_in_time")):
                with self.subTest(planned=planned, schedule=schedule, allocation=allocation, microbatches=microbatches, slack=slack):
                    arguments = ["--stages", 2, "--chunks", 2, "--schedule", schedule, "--microbatches", microbatches,
                                 "--message-bytes", BYTES, "--allocation", allocation, "--steps", 4]
                    run = self.train(arguments, ["--mode", "enforce", "--plan", plan])
                    self.check_same(run, arguments)
                    self.assertEqual((run.counts("violated"), run.counts("prevented")), ({}, {}))
                    self.assertEqual(sum(device["conflicts"]["unclear"]["count"] for device in run.devices().values()), 0)

    def test_cached_blocks_of_longer_pipelines(self):
        plan = self.plan("--schedule", "1f1b", "--stages", 4, "--microbatches", 8, "--buffer-bytes", BYTES, "--slack", 0)
        for schedule in ("1f1b", "gpipe"):
            arguments = ["--stages", 4, "--schedule", schedule, "--microbatches", 8, "--message-bytes", BYTES,
                         "--allocation", "cached", "--steps", 4]
            run = self.train(arguments, ["--mode", "enforce", "--plan", plan])
            self.check_same(run, arguments)
            self.assertEqual((run.counts("violated"), run.counts("prevented")), ({}, {}))


class GiveBackTest(enforcing.EnforcingCase):
    """With --cupti learn others get CUPTI's subscription once memory is shared, if all uses can be seen without."""

    def cupti(self, *extra):
        arguments = ["--stages", 2, "--microbatches", 8, "--steps", 40, "--message-bytes", 2 * enforcing.MIB, *extra]
        run = self.train(arguments, ["--mode", "enforce", "--cupti", "learn", "--interval", "0.1"])
        self.check_same(run, arguments)
        self.assertEqual((run.counts("prevented"), run.counts("violated")), ({}, {}))
        found = [entry for report in run.reports.values() for entry in report["evidence"] if entry["name"] == "cupti"]
        warnings = [text for report in run.reports.values() for text in report["warnings"]]
        return [entry["active"] for entry in found], warnings

    def test_where_all_calls_can_be_hooked(self):
        self.assertEqual(self.cupti(), ([False, False], []))

    def test_not_where_a_library_is_seen_through_it_only(self):
        active, warnings = self.cupti("--lookalike", "activations")
        self.assertEqual(active, [True, True])
        self.assertEqual(len(warnings), 2)
        self.assertTrue(all(text.startswith("learn: CUPTI is kept") for text in warnings), warnings)


if __name__ == "__main__":
    unittest.main()
