#!/usr/bin/env python3
"""Trains with the pipeline and compares, bit for bit, with the reference that has no pipeline.

Usage: test_trainer.py TRAINER REFERENCE [unittest arguments]
"""
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

TRAINER, REFERENCE = sys.argv[1:3]
BROKEN_PATTERN = 3
NAMED = ["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"]

# Compute-only, V placement (stages 0 and 3 on rank 0, 1 and 2 on rank 1), backward split into input and weight parts.
SPLIT_V = "\n".join(
    [
        ",".join([f"{s}F{m}" for s in (0, 3) for m in range(4)] + ["3I0", "3I1", "3W0", "3I2", "3W1", "3I3"]
                 + ["3W2", "3W3"] + [f"0{k}{m}" for m in range(4) for k in "IW"]),
        ",".join([f"{s}F{m}" for m in range(4) for s in (1, 2)] + [f"{s}I{m}" for m in range(4) for s in (2, 1)]
                 + [f"{s}W{m}" for m in range(4) for s in (2, 1)]),
    ]) + "\n"


def environment(**extra):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "RPSIM_SEED")}
    env.update({k: str(v) for k, v in extra.items()})
    return env


def run(program, *args, env=None):
    return subprocess.run([program, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=120, env=environment() if env is None else env)


def results(text):
    """What must not depend on how the model was trained: losses and checksums."""
    return re.sub(r" peak_device_bytes \d+", "", text)


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainer-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.split_v = self.folder / "split_v.csv"
        self.split_v.write_text(SPLIT_V)

    def train(self, *args, env=None):
        done = run(TRAINER, *args, env=env)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return results(done.stdout)

    def reference(self, *args):
        done = run(REFERENCE, *args)
        self.assertEqual(done.returncode, 0, f"{args}: {done.stderr}")
        return results(done.stdout)

    def truth(self, *args):
        """Trains with a record; gives {rank: [objects]}."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            self.train(*args, "--truth-dir", folder)
            return {int(p.stem.split("-")[1]): [json.loads(line) for line in p.read_text().splitlines()]
                    for p in pathlib.Path(folder).iterdir()}

    def truth_channels(self, *args):
        """{(stage, direction): channel object}"""
        return {(c["stage"], c["direction"]): c
                for objects in self.truth(*args).values() for c in objects if c["type"] == "channel"}


class SameBits(Base):
    """Losses and checksums are those of the reference, whatever the schedule, options and stream timing."""

    def test_every_way_to_train(self):
        variants = list(itertools.product(["preallocated", "just_in_time"], [[], ["--recompute"]],
                                          [[], ["--backward-thread"]]))
        for schedule in NAMED + [self.split_v]:
            sizes = [] if schedule == self.split_v else ["-S", 4, "-N", 8]
            expected = self.reference("-s", schedule, *sizes)
            self.assertEqual(expected.count("step "), 3)
            for allocation, recompute, thread in variants:
                args = ["-s", schedule, *sizes, "-a", allocation, *recompute, *thread]
                with self.subTest(args=args):
                    self.assertEqual(self.train(*args), expected)

    def test_sizes(self):
        for schedule, stages, count in itertools.product(NAMED, (2, 4), (2, 4, 8, 16)):
            if schedule == "interleaved_1f1b" and count % stages != 0:
                continue
            args = ["-s", schedule, "-S", stages, "-N", count, "-T", 2]
            with self.subTest(args=args):
                self.assertEqual(self.train(*args), self.reference(*args))

    def test_one_rank_alone(self):
        for args in (["-S", 1, "-N", 2], ["-S", 1, "-N", 2, "-s", "interleaved_1f1b"]):
            self.assertEqual(self.train(*args), self.reference(*args))

    def test_odd_shapes_and_message_sizes(self):
        for args in (["--batch", 3, "--width", 10, "--hidden", 7, "--seed", 9],
                     ["--message-bytes", 4099], ["--message-bytes", "64KiB", "--recompute"]):
            args = ["-S", 2, "-N", 4, *args]
            with self.subTest(args=args):
                self.assertEqual(self.train(*args), self.reference(*args))

    def test_jitter_between_streams(self):
        for schedule in ("1f1b", "interleaved_1f1b"):
            for seed in range(1, 6):
                args = ["-s", schedule, "-S", 2, "-N", 4, "--message-bytes", "16KiB"]
                with self.subTest(args=args, seed=seed):
                    self.assertEqual(self.train(*args, env=environment(RPSIM_SEED=seed)),
                                     self.reference(*args))

    def test_schedules_agree_where_they_add_up_in_the_same_order(self):
        def model(text):
            return [line for line in text.splitlines() if not line.startswith("rank ")]

        looped = model(self.train("-s", "interleaved_1f1b", "-S", 2, "-N", 4))
        self.assertEqual(model(self.train("-s", "1f1b", "-S", 4, "-N", 4)), looped)
        self.assertEqual(model(self.train("-s", "gpipe", "-S", 4, "-N", 4)), looped)
        self.assertEqual(model(self.train("-s", self.split_v)), looped)
        # looped_bfs runs its backwards from the last microbatch to the first: float sums differ, the loss of step 0 not
        reverse = model(self.train("-s", "looped_bfs", "-S", 2, "-N", 4))
        self.assertEqual(reverse[0], looped[0])

    def test_seed_changes_everything(self):
        self.assertNotEqual(self.train("-S", 2, "-N", 2), self.train("-S", 2, "-N", 2, "--seed", 2))

    def test_memory_does_not_grow(self):
        for extra in ([], ["-a", "just_in_time"], ["-s", "interleaved_1f1b"]):
            peaks = [re.findall(r"peak_device_bytes \d+", run(TRAINER, "-S", 2, "-N", 4, "-T", steps, *extra).stdout)
                     for steps in (2, 10)]
            self.assertEqual(len(peaks[0]), 2)
            self.assertEqual(*peaks)

    def test_other_calls_same_bits(self):
        args = ["-S", 2, "-N", 4]
        expected = self.reference(*args)
        for extra in (["--driver-api"], ["--own-stream"], ["--probe"], ["--driver-api", "-a", "just_in_time"]):
            self.assertEqual(self.train(*args, *extra), expected)
        self.assertEqual(self.train(*args, env={}), expected, "with an empty environment")

    def test_output_is_the_same_every_time(self):
        args = ["-S", 2, "-N", 4, "--backward-thread"]
        first, second = run(TRAINER, *args), run(TRAINER, *args)
        self.assertEqual(first.stdout, second.stdout)
        self.assertRegex(first.stdout, r"rank 0 parameters [0-9a-f]{16} peak_device_bytes [1-9]\d*\n")


class Mistakes(Base):
    def test_a_missing_wait_breaks_the_pattern(self):
        statuses = []
        for seed in range(1, 6):
            done = run(TRAINER, "-S", 2, "-N", 4, "--message-bytes", "256KiB", "--break-wait",
                       env=environment(RPSIM_SEED=seed))
            statuses.append(done.returncode)
            if done.returncode == BROKEN_PATTERN:
                self.assertIn("broken pattern", done.stderr)
        self.assertIn(BROKEN_PATTERN, statuses)

    def test_seeded_mistakes_are_harmless_with_a_buffer_per_microbatch(self):
        args = ["-S", 3, "-N", 8, "-T", 4]
        expected = self.reference(*args)
        for mistake in ("early_reuse", "unordered_reuse", "foreign_access", "stale_access"):
            self.assertEqual(self.train(*args, "--mistake", mistake), expected)
        for mistake, depths in (("early_reuse", [2, 2, 2, 8]), ("stale_access", [2, 2, 2, 3])):
            channels = self.truth_channels(*args, "--mistake", mistake)
            self.assertEqual(channels[(1, "activation")]["depth_per_step"], depths)

    def test_bad_command_lines(self):
        for args in (["--allocation", "x"], ["--message-bytes", 100], ["--message-bytes", "1 MiB"], ["-N", 0],
                     ["-s", "/nonexistent.csv"], ["-s", "1f1b", "-V", 2], ["--mistake", "x"],
                     ["--mistake", "stale_access", "-a", "just_in_time"], ["-s", self.split_v, "-S", 3], ["x"]):
            done = run(TRAINER, *args)
            with self.subTest(args=args):
                self.assertNotEqual(done.returncode, 0)
                self.assertGreater(len(done.stderr), 0)
                self.assertEqual(done.stdout, "")


class Truth(Base):
    def test_depth_of_hand_written_schedules(self):
        stages = 4
        for count in (2, 8):
            channels = self.truth_channels("-S", stages, "-N", count)
            self.assertEqual({k: c["depth_per_step"] for k, c in channels.items()},
                             {**{(s, "activation"): 3 * [min(count, stages - s)] for s in range(1, stages)},
                              **{(s, "gradient"): 3 * [1] for s in range(stages - 1)}})
            channels = self.truth_channels("-s", "gpipe", "-S", stages, "-N", count)
            self.assertEqual({k: c["depth_per_step"] for k, c in channels.items()},
                             {**{(s, "activation"): 3 * [count] for s in range(1, stages)},
                              **{(s, "gradient"): 3 * [1] for s in range(stages - 1)}})

    def test_split_backward_keeps_both_to_the_weight_part(self):
        channels = self.truth_channels("-s", self.split_v)
        self.assertEqual(sorted(channels), [(0, "gradient"), (1, "activation"), (2, "gradient"), (3, "activation")])
        self.assertEqual(channels[(1, "activation")]["depth_per_step"], [4, 4, 4])
        self.assertEqual(channels[(2, "gradient")]["depth_per_step"], [4, 4, 4])

    def test_buffers(self):
        for channel in self.truth_channels("-S", 3, "-N", 8, "--message-bytes", 4096).values():
            self.assertEqual((channel["buffers"], channel["bytes"]), (8, 4096))
        for channel in self.truth_channels("-S", 3, "-N", 8, "-a", "just_in_time").values():
            self.assertEqual(channel["receives_per_step"], [8, 8, 8])

    def test_lifetimes_are_complete_and_ordered(self):
        for args in (["-S", 2, "-N", 4], ["-S", 2, "-N", 4, "--recompute", "-a", "just_in_time"],
                     ["-S", 2, "-N", 4, "-s", "interleaved_1f1b", "--backward-thread"]):
            for rank, objects in self.truth(*args).items():
                seen = {}
                for o in (o for o in objects if o["type"] == "lifetime"):
                    instants = o["posted_ns"] + o["first_access_ns"] + o["last_access_ns"]
                    self.assertEqual(instants[:4], sorted(instants[:4]), o)
                    self.assertLess(o["first_access_ns"][1], o["last_access_ns"][0], o)
                    self.assertIn("weight_gradient", o["last_kernel"])
                    seen.setdefault((o["stage"], o["direction"], o["step"]), []).append(o["microbatch"])
                for key, microbatches in seen.items():
                    self.assertEqual(sorted(microbatches), [0, 1, 2, 3], f"rank {rank} {key}")
                channels = [o for o in objects if o["type"] == "channel"]
                self.assertEqual(len(seen), 3 * len(channels))
                self.assertEqual(objects[-1]["type"], "summary")
                self.assertEqual((objects[-1]["rank"], objects[-1]["steps"]), (rank, 3))

    def test_number_of_accesses(self):
        # check, hidden, output forward; check, weight gradient backward; recomputation runs both layers again
        for extra, activation in (([], 5), (["--recompute"], 7)):
            for objects in self.truth("-S", 2, "-N", 2, *extra).values():
                for o in (o for o in objects if o["type"] == "lifetime"):
                    self.assertEqual(o["accesses"], activation if o["direction"] == "activation" else 4 - (
                        o["stage"] == 0), o)


class Processes(Base):
    def start(self, *args):
        """A run without end, past its first step."""
        process = subprocess.Popen([TRAINER, "-S", "3", "-T", "1000000000", *args], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=environment())
        self.assertRegex(process.stdout.readline(), "^step 0 loss ")
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertEqual(len(children), 3)
        return process, [int(c) for c in children]

    def check_all_gone(self, process, children):
        process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        for child in children:
            self.assertFalse(os.path.exists(f"/proc/{child}"))

    def test_signals_are_forwarded(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process, children = self.start()
            process.send_signal(number)
            self.check_all_gone(process, children)
            self.assertEqual(process.returncode, 128 + number)

    def test_a_killed_rank_ends_the_job(self):
        process, children = self.start()
        os.kill(children[1], signal.SIGKILL)
        self.check_all_gone(process, children)

    def test_ranks_started_by_hand(self):
        expected = self.reference("-S", 2, "-N", 4).splitlines()
        ranks = [subprocess.Popen([TRAINER, "-S", "2", "-N", "4", "--rendezvous", str(self.folder / "id")],
                                  stdout=subprocess.PIPE, text=True,
                                  env=environment(RANK=r, WORLD_SIZE=2, LOCAL_RANK=r)) for r in range(2)]
        outputs = [results(p.communicate(timeout=60)[0]).splitlines() for p in ranks]
        self.assertEqual([p.returncode for p in ranks], [0, 0])
        self.assertEqual(outputs[0], [expected[3]])
        self.assertEqual(outputs[1], expected[:3] + [expected[4]])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
