#!/usr/bin/env python3
"""Trains with the pipeline and compares, bit for bit, with the reference that has no pipeline.

Usage: test_trainer.py TRAINER REFERENCE [unittest arguments]
TRAINER_SEEDS says how many random schedules are tried (default 40).
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
BROKEN_PATTERN = 5
HARMFUL = ["missing-wait", "early-post", "wrong-stream", "late-read", "late-send", "foreign-write", "unseen-write"]
MISTAKES = HARMFUL + ["oversize", "double-free", "register", "ipc-export", "comm-abort"]
SEEDS = int(os.environ.get("TRAINER_SEEDS", "40"))  # random schedules
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


class Changes(Base):
    """Runs that do not do the same all the time, or have what looks like receive buffers, give the reference's bits."""

    WAYS = [[], ["--driver-api"], ["--own-stream", "--backward-thread"], ["--driver-api", "--own-stream", "--recompute"]]

    def same(self, *args):
        expected = self.reference(*args)
        for seed, ways in enumerate(self.WAYS):
            with self.subTest(args=args, ways=ways):
                self.assertEqual(self.train(*args, *ways, env=environment(RPSIM_SEED=seed)), expected)
        return expected

    def test_schedule(self):
        switch = "--switch-schedule"
        changed = self.same("-S", 3, "-T", 6, switch, "gpipe@2", switch, "1f1b@4")
        self.assertEqual(changed, self.reference("-S", 3, "-T", 6), "the same sums in the same order")
        self.same("-S", 2, "-N", 4, "-s", "interleaved_1f1b", switch, "looped_bfs@1", switch, "interleaved_1f1b@2")

    def test_schedule_by_truth(self):
        channels = self.truth_channels("-S", 3, "-T", 4, "--switch-schedule", "gpipe@2", "--switch-schedule", "1f1b@3")
        self.assertEqual(channels[(1, "activation")]["depth_per_step"], [2, 2, 8, 2])
        self.assertEqual(channels[(1, "activation")]["buffers"], 8)

    def test_microbatches(self):
        switch = "--switch-microbatches"
        self.same("-S", 3, "-N", 4, "-T", 6, switch, "10@2", switch, "3@4")
        self.same("-S", 2, "-N", 4, "-T", 4, switch, "8@2", "--switch-schedule", "gpipe@2")
        channels = self.truth_channels("-S", 2, "-N", 4, "-T", 4, switch, "6@2", switch, "2@3")
        self.assertEqual(channels[(1, "activation")]["receives_per_step"], [4, 4, 6, 2])
        self.assertEqual(channels[(1, "activation")]["buffers"], 6)

    def test_evaluation(self):
        for schedule in NAMED:
            text = self.same("-S", 2, "-N", 4, "-s", schedule, "-T", 4, "--eval-every", 2)
            self.assertEqual(re.findall("evaluation after step (\\d)", text), ["1", "3"])
        self.same("-S", 2, "-N", 4, "--eval-every", 1, "-a", "just_in_time")
        lifetimes = [o for o in self.truth("-S", 2, "-N", 4, "-T", 2, "--eval-every", 1)[1] if o["type"] == "lifetime"]
        self.assertEqual([o["evaluation"] for o in lifetimes], 4 * [False] + 4 * [True] + 4 * [False] + 4 * [True])
        self.assertEqual([o["step"] for o in lifetimes], [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4)
        self.assertEqual({o["accesses"] for o in lifetimes if o["evaluation"]}, {3})

    def test_rebuilt_stages(self):
        for allocation in ("preallocated", "just_in_time", "cached"):
            self.same("-S", 2, "-N", 4, "-T", 4, "--rebuild-at", 2, "-a", allocation)
        self.same("-S", 2, "-N", 4, "-T", 4, "-s", "interleaved_1f1b", "--rebuild-at", 1)

    def test_cached_blocks(self):
        for extra in ([], ["--segment-blocks", 3], ["-s", "interleaved_1f1b"]):
            self.same("-S", 2, "-N", 8, "-a", "cached", *extra)
        self.assertLess(self.truth_channels("-S", 2, "-N", 16, "-a", "cached")[(1, "activation")]["buffers"], 16)

    def test_replayed_graphs(self):
        for extra in ([], ["--eval-every", 2], ["-s", "interleaved_1f1b"], ["-s", "gpipe", "-a", "cached"]):
            args = ["-S", 2, "-N", 4, "-T", 6, *extra]
            expected = self.reference(*args)
            for seed, ways in enumerate(([], ["--driver-api"], ["--backward-thread", "--recompute"])):
                with self.subTest(args=args, ways=ways):
                    self.assertEqual(self.train(*args, "--own-stream", "--capture-at", 2, *ways,
                                                env=environment(RPSIM_SEED=seed)), expected)
        posted = [o["step"] for o in self.truth("-S", 2, "-N", 1, "-T", 5, "--own-stream", "--capture-at", 2)[1]
                  if o["type"] == "lifetime"]
        self.assertEqual(posted, [0, 1])

    def test_lookalikes(self):
        for touch in ("now", "late"):
            self.same("-S", 2, "-N", 4, "--lookalike", "before,between,after,activations", "--lookalike-touch", touch)

    def test_identity_stage(self):
        for schedule in ("1f1b", "gpipe"):
            self.same("-S", 3, "-N", 4, "-s", schedule, "--identity-stage", 1, "--eval-every", 2)
        self.same("-S", 2, "-N", 4, "-s", "interleaved_1f1b", "--identity-stage", 2)
        for o in self.truth("-S", 3, "-N", 2, "--identity-stage", 1)[1]:
            if o["type"] == "lifetime":
                self.assertEqual((o["last_kernel"], o["accesses"]), ("ncclSend", 1))

    def test_large_messages(self):
        self.same("-S", 2, "-N", 4, "-T", 2, "--message-bytes", "2MiB")
        self.same("-S", 2, "-N", 2, "-T", 2, "--message-bytes", "5MiB", "-a", "cached")

    def test_shared_memory_as_planned(self):
        for schedule in NAMED + [self.split_v]:
            sizes = [] if schedule == self.split_v else ["-S", 2, "-N", 8]
            self.same("-s", schedule, *sizes, "--unguarded-pool")


class RandomSchedules(Base):
    def test_same_bits(self):
        shapes = set()
        for seed in range(SEEDS):
            args = ["--random-schedule", seed, "-T", 3]
            with self.subTest(seed=seed):
                expected = self.reference(*args)
                self.assertEqual(self.train(*args, env=environment(RPSIM_SEED=seed)), expected)
                self.assertEqual(self.train(*args, "--unguarded-pool", env=environment(RPSIM_SEED=seed)), expected)
            text = run(TRAINER, *args, "--print-schedule").stdout
            shapes.add((text.count("\n"), "W" in text, "RECV_F" in text))
        self.assertGreater(len(shapes), min(4, SEEDS // 3))

    def test_given_numbers_are_kept(self):
        text = run(TRAINER, "--random-schedule", 3, "-S", 3, "-V", 2, "-N", 5, "--print-schedule").stdout
        self.assertEqual(text.count("\n"), 3)
        self.assertEqual(sorted(set(re.findall(r"\b(\d)F(\d)\b", text))),
                         sorted((str(s), str(m)) for s in range(6) for m in range(5)))


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

    def test_harmless_with_a_buffer_per_microbatch(self):
        for ways in ([], ["--driver-api", "--own-stream", "--backward-thread"]):
            args = ["-S", 3, "-N", 8, "-T", 4, *ways]
            expected = self.reference(*args)
            for mistake in MISTAKES:
                with self.subTest(mistake=mistake, ways=ways):
                    self.assertEqual(self.train(*args, "--mistake", mistake, env=environment(RPSIM_SEED=5)), expected)

    def test_depth_that_a_mistake_leads_to(self):
        args = ["-S", 3, "-N", 8, "-T", 4]
        for mistake, depths in (("early-post", [2, 2, 2, 3]), ("late-read", [2, 2, 2, 3]), ("missing-wait", 4 * [2])):
            channels = self.truth_channels(*args, "--mistake", mistake)
            self.assertEqual(channels[(1, "activation")]["depth_per_step"], depths, mistake)

    def test_harmful_where_buffers_share_memory(self):
        args = ["-S", 3, "-N", 8, "-T", 5, "--unguarded-pool"]
        expected = self.reference(*args)
        self.assertEqual(self.train(*args), expected)
        for mistake in MISTAKES:
            harm = 0
            for seed in range(1, 4):
                done = run(TRAINER, *args, "--mistake", mistake, env=environment(RPSIM_SEED=seed))
                harm += done.returncode == BROKEN_PATTERN or results(done.stdout) != expected
            with self.subTest(mistake=mistake):
                if mistake in HARMFUL:
                    self.assertGreater(harm, 0)
                else:
                    self.assertEqual(harm, 0)

    def mistakes_of(self, mistake, *args):
        """The lines about a mistake, and the lifetimes by (stage, direction, step, microbatch)."""
        lines, lifetimes = [], {}
        for objects in self.truth("-S", 3, "-N", 6, "-T", 4, "--mistake", mistake, *args).values():
            lines += [o for o in objects if o["type"] == "mistake"]
            for o in objects:
                if o["type"] == "lifetime":
                    lifetimes[(o["stage"], o["direction"], o["step"], o["microbatch"])] = o
        self.assertTrue(all(line["kind"] == mistake for line in lines))
        return lines, lifetimes

    def test_truth_about_mistakes(self):
        check = "_Z16rp_check_patternPKhPKjmm15rp_pattern_markP16rp_pattern_error"
        # kind: side, call, stages with it, activations (and gradients) that it is about
        expected = {
            "missing-wait": ("later", "ncclRecv", (0, 1, 2), 24),
            "early-post": ("later", "ncclRecv", (1, 2), 12),
            "wrong-stream": ("earlier", check, (1, 2), 12),
            "late-read": ("later", check, (1, 2), 2),
            "late-send": ("later", "ncclSend", (1, 2), 2),
            "foreign-write": ("later", "memset", (1, 2), 10),
            "unseen-write": ("later", "memset", (1, 2), 10),
            "oversize": ("later", "ncclRecv", (1, 2), 2),
            "double-free": ("later", "cudaFree", (0, 1, 2), 3),
            "register": ("later", "ncclCommRegister", (0, 1, 2), 3),
            "ipc-export": ("later", "cudaIpcGetMemHandle", (0, 1, 2), 3),
            "comm-abort": ("later", "ncclCommAbort", (0, 1, 2), 3),
        }
        self.assertEqual(sorted(expected), sorted(MISTAKES))
        for mistake, (side, call, stages, count) in expected.items():
            lines, lifetimes = self.mistakes_of(mistake, "--own-stream")
            with self.subTest(mistake=mistake):
                self.assertEqual({(line["side"], line["call"], line["step"]) for line in lines}, {(side, call, 3)})
                self.assertEqual({line["stage"] for line in lines}, set(stages))
                self.assertEqual(len(lines), count)
                self.assertEqual({line["result"] != 0 for line in lines}, {mistake == "double-free"})
                if mistake == "comm-abort":
                    continue
                for line in lines:
                    about = lifetimes[(line["stage"], line["direction"], line["step"], line["microbatch"])]
                    self.assertEqual(line["address"], about["address"])
                has_stream = call not in ("cudaFree", "ncclCommRegister", "cudaIpcGetMemHandle")
                self.assertTrue(all((line["stream"] != "0x0") == has_stream for line in lines))

    def test_oversize(self):
        _, lifetimes = self.mistakes_of("oversize", "--message-bytes", "8KiB")
        sizes = {key[2:]: o["bytes"] for key, o in lifetimes.items() if key[:2] == (1, "activation")}
        self.assertEqual({key for key, size in sizes.items() if size == 8192 + 4096}, {(3, 1)})
        self.assertEqual(set(sizes.values()), {8192, 8192 + 4096})

    def test_bad_command_lines(self):
        for args in (["--allocation", "x"], ["--message-bytes", 100], ["--message-bytes", "1 MiB"], ["-N", 0],
                     ["-s", "/nonexistent.csv"], ["-s", "1f1b", "-V", 2], ["--mistake", "x"],
                     ["--mistake", "late-read", "-a", "just_in_time"], ["--mistake", "late-read", "--rebuild-at", 2],
                     ["--mistake", "early-post", "-s", "interleaved_1f1b"],
                     ["-s", self.split_v, "-S", 3], ["x"], ["--switch-schedule", "gpipe"],
                     ["--switch-schedule", "gpipe@0"], ["-s", "interleaved_1f1b", "--switch-schedule", "1f1b@2"],
                     ["--switch-microbatches", "0@2"], ["--capture-at", 1], ["--capture-at", 0, "--own-stream"],
                     ["--capture-at", 1, "--own-stream", "-a", "just_in_time"], ["--rebuild-at", 3],
                     ["--unguarded-pool", "-a", "cached"], ["--lookalike", "behind"], ["--lookalike-touch", "never"],
                     ["--identity-stage", 3], ["--identity-stage", 0], ["--random-schedule", "x"]):
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
