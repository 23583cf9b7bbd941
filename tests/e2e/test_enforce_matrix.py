"""Enforcing changes nothing that a job computes, and holds K slots for N buffers: over schedules, stages, microbatches,
slack, with and without a plan, recomputation, backward threads, both APIs and streams, and sizes that do and do not fill
the device's granularity.

By default every three settings are tried together at least once (under a sanitizer every two); E2E_FULL=1 tries them all
(864 runs and as many without the agent; E2E_PART=I/N does the I-th of N parts).
"""

import itertools
import json
import os
import random
import unittest

import enforcing
from enforcing import MIB, mapped

STEPS = 5

SETTINGS = {
    "schedule": [("1f1b", 1), ("interleaved_1f1b", 2), ("interleaved_1f1b", 4)],
    "stages": [2, 4],
    "microbatches": [4, 8, 16],
    "slack": [0, 1, 2],
    "planned": [False, True],
    "recompute": [False, True],
    "thread": [False, True],
    "driver": [False, True],
    "own_stream": [False, True],
    "bytes": [1 * MIB, 2 * MIB, 3 * MIB - 4],
}
FULL = [name for name in SETTINGS if name not in ("own_stream", "bytes")]  # these two go round with the rest


def covering(strength):
    """Few combinations in which all values of any `strength` settings meet: each next one is the best of some random ones."""
    names, choose = list(SETTINGS), random.Random(1)
    missing = {tuple(zip(some, values)) for some in itertools.combinations(names, strength)
               for values in itertools.product(*(range(len(SETTINGS[name])) for name in some))}
    while missing:
        fixed = dict(choose.choice(sorted(missing)))
        best, met = None, set()
        for _ in range(40):
            tried = {name: fixed.get(name, choose.randrange(len(SETTINGS[name]))) for name in names}
            meets = {t for t in (tuple((name, tried[name]) for name in some)
                                 for some in itertools.combinations(names, strength)) if t in missing}
            if len(meets) > len(met):
                best, met = tried, meets
        missing -= met
        yield {name: SETTINGS[name][best[name]] for name in names}


def everything():
    for index, values in enumerate(itertools.product(*(SETTINGS[name] for name in FULL))):
        combination = dict(zip(FULL, values))
        for name in set(SETTINGS) - set(FULL):
            combination[name] = SETTINGS[name][index * 7 // 3 % len(SETTINGS[name])]
        yield combination


def combinations():
    if not os.environ.get("E2E_FULL"):
        return list(covering(2 if enforcing.SANITIZED else 3))
    part, parts = map(int, os.environ.get("E2E_PART", "1/1").split("/"))
    return list(everything())[part - 1::parts]


class MatrixTest(enforcing.EnforcingCase):
    def arguments(self, c):
        name, chunks = c["schedule"]
        return (["--schedule", name, "--stages", c["stages"], "--chunks", chunks, "--microbatches", c["microbatches"],
                 "--steps", STEPS, "--message-bytes", c["bytes"]]
                + ["--recompute"] * c["recompute"] + ["--backward-thread"] * c["thread"] + ["--driver-api"] * c["driver"]
                + ["--own-stream"] * c["own_stream"])

    def options(self, c):
        options = ["--mode", "enforce", "--slack", c["slack"]]
        if not c["planned"]:  # sizes that rounding makes much larger have to be named
            return options + (["--buffer-bytes", c["bytes"]] if c["bytes"] != mapped(c["bytes"]) else [])
        name, chunks = c["schedule"]
        return options + ["--plan", self.plan("--schedule", name, "--stages", c["stages"] * chunks, "--ranks", c["stages"],
                                              "--microbatches", c["microbatches"], "--slack", c["slack"],
                                              "--buffer-bytes", c["bytes"])]

    def gain(self, c, record):
        """What sharing takes off what all buffers of the rank hold, with rounding."""
        slots = [min(channel["depth_per_step"][-1] + c["slack"], c["microbatches"]) for channel in record.channels]
        return len(slots) * c["microbatches"] * c["bytes"] - sum(slots) * mapped(c["bytes"])

    def check_classes(self, c, record, device, where):
        """K slots for each channel that has more buffers than that, and only for those. Gives the bytes saved."""
        wanted, saved = {}, 0
        if c["planned"] and self.gain(c, record) <= 0 and c["bytes"] != mapped(c["bytes"]):
            self.assertEqual({pool["buffers"] for pool in device["classes"]}, {0}, where)
            self.assertEqual(device["idle"]["reason"], "rounding", where)
            return 0
        for channel in record.channels:
            depth = channel["depth_per_step"][-1]
            slots = min(depth + c["slack"], c["microbatches"])
            if slots == c["microbatches"] and not c["planned"]:
                continue
            wanted[(channel["direction"], channel["stage_ordinal"])] = (
                depth, slots, c["microbatches"], slots * mapped(c["bytes"]), c["microbatches"] * mapped(c["bytes"]))
            saved += (c["microbatches"] - slots) * mapped(c["bytes"])
        stages = sorted({channel["stage"] for channel in record.channels})
        found = {}
        for pool in device["classes"]:
            ordinal = pool["stage"] if not c["planned"] else pool["stage"] // c["stages"]
            found[(pool["direction"], ordinal)] = (
                pool["depth"] if pool["depth"] is not None else wanted[(pool["direction"], ordinal)][0], pool["slots"],
                pool["buffers"], pool["physical_peak_bytes"], pool["one_to_one_peak_bytes"])
        self.assertEqual(found, wanted, f"{where}, stages {stages}")
        return saved

    def check_measured(self, c, stock, pooled, saved, where):
        """What the device itself holds less, where the buffers would have been as large without the pool."""
        if c["bytes"] != mapped(c["bytes"]):
            return
        held = {name: run.summary["held_bytes"] for name, run in (("stock", stock), ("pooled", pooled))}
        self.assertEqual(held["stock"] - held["pooled"], saved, where)

    def check(self, c, seed):
        arguments = self.arguments(c)
        stock = self.train(arguments, seed=seed)
        pooled = self.train(arguments, self.options(c), seed=seed)
        if c["stages"] == 2 and c["schedule"][1] > 1:
            c = dict(c, planned=False)  # both neighbours are one rank: only a run tells when a message is done with
        self.assertEqual(pooled.computed, stock.computed)
        self.check_quiet(pooled)
        self.assertEqual(sorted(pooled.reports), list(range(c["stages"])))
        for rank, record in pooled.records.items():
            saved = self.check_classes(c, record, pooled.device(rank), f"rank {rank}")
            self.check_measured(c, stock.records[rank], record, saved, f"rank {rank}")
        self.check_accounts_close(pooled)

    def test_all(self):
        tried = combinations()
        for index, combination in enumerate(tried):
            with self.subTest(**combination, seed=index + 1):
                self.check(combination, index + 1)
        print(f"{len(tried)} combinations", flush=True)


class GranularityTest(enforcing.EnforcingCase):
    """Who shares with whom, by a plan on paper: all that a rank receives, all of a direction, or a stage alone. Messages of
    one class are then of stages that read them differently often."""

    def check(self, schedule, granularity, slack, seed):
        arguments = ["--schedule", schedule, "--stages", 3, "--chunks", 2, "--microbatches", 6, "--steps", 3,
                     "--message-bytes", 2 * MIB]
        path = self.plan("--schedule", schedule, "--stages", 6, "--ranks", 3, "--microbatches", 6, "--buffer-bytes", 2 * MIB,
                         "--granularity", granularity, "--slack", slack)
        with open(path) as file:
            planned = json.load(file)
        stock = self.train(arguments, seed=seed)
        pooled = self.train(arguments, ["--mode", "enforce", "--plan", path], seed=seed)
        self.assertEqual(pooled.computed, stock.computed)
        self.check_quiet(pooled)
        self.check_accounts_close(pooled)
        for rank, record in pooled.records.items():
            own = [pool for pool in planned["classes"] if pool["rank"] == rank]
            found = [(pool["slots"], pool["buffers"], pool["physical_peak_bytes"])
                     for pool in pooled.device(rank)["classes"]]
            self.assertEqual(sorted(found), sorted((pool["slots"], pool["buffers"], pool["slots"] * 2 * MIB) for pool in own))
            saved = sum(pool["buffers"] - pool["slots"] for pool in own) * 2 * MIB
            self.assertEqual(stock.records[rank].summary["held_bytes"] - record.summary["held_bytes"], saved, f"rank {rank}")

    def test_all(self):
        for seed, case in enumerate([("interleaved_1f1b", "direction", 0), ("interleaved_1f1b", "rank", 2),
                                     ("looped_bfs", "direction", 2), ("looped_bfs", "rank", 0)], 1):
            with self.subTest(case=case, seed=seed):
                self.check(*case, seed)


class CoveringTest(unittest.TestCase):
    def test_any_three_meet(self):
        tried = list(covering(3))
        for some in itertools.combinations(SETTINGS, 3):
            met = {tuple(str(c[name]) for name in some) for c in tried}
            wanted = 1
            for name in some:
                wanted *= len(SETTINGS[name])
            self.assertEqual(len(met), wanted, some)
        self.assertLess(len(tried), 80)
