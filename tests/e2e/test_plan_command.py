"""`recvpool plan`: numbers, files, refusals, and what it says about observed runs."""

import glob
import json
import os
import re
import shutil
import stat
import subprocess
import unittest

import support
from support import RECVPOOL, SOURCE, TRAINER, run

ONE_F_ONE_B = ("--schedule", "1f1b", "--stages", "4", "--microbatches", "16")
LOWERED = os.path.join(SOURCE, "tests", "torch", "data", "torch-2.11")


class PlanTestCase(support.TestCase):
    def plan(self, *arguments):
        return run([RECVPOOL, "plan", *arguments])

    def document(self, *arguments):
        result = self.plan(*arguments, "--json")
        self.assert_success(result)
        document = json.loads(result.stdout)
        self.validate(document)
        return document

    def validate(self, document):
        errors = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}"
                  for e in support.validator("plan.schema.json").iter_errors(document)]
        self.assertEqual(errors, [])

    def assert_refused(self, status, words, *arguments):
        result = self.plan(*arguments)
        self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
        self.assert_one_line(result.stderr)
        self.assertIn(words, result.stderr)

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path


class NumbersTest(PlanTestCase):
    def test_1f1b(self):
        document = self.document("--schedule", "1f1b", "--stages", "8", "--microbatches", "64", "--buffer-bytes", "436MiB",
                                 "--replicas", "3")
        mib = 1 << 20
        rank = document["ranks"][3]
        self.assertEqual(rank["slots"], {"stage": 6, "direction": 6, "rank": 6})
        activation, gradient = rank["pools"]
        self.assertEqual((activation["buffers"], activation["depth"], activation["slots"]), (64, 5, 7))
        self.assertEqual(activation["existing_practice_slots"], 7)
        self.assertEqual((gradient["depth"], gradient["slots"]), (1, 3))
        self.assertEqual(activation["bytes_stock"], 64 * 436 * mib)
        receives = rank["receives"]
        self.assertEqual(set(receives["bytes"]), {436 * mib})
        self.assertEqual(set(receives["accesses"]), {0})
        self.assertEqual(set(zip(receives["direction"], receives["readers"])), {("activation", 2), ("gradient", 1)})
        self.assertEqual({pair for pair in zip(receives["direction"], receives["source"], strict=True)},
                         {("activation", 2), ("gradient", 4)})
        self.assertIsNone(document["provenance"]["world_size"])
        self.assertEqual(activation["bytes_pooled"], 7 * 436 * mib)
        totals = document["totals"]
        self.assertEqual(totals["buffers"], 14 * 64)
        self.assertEqual(totals["job_bytes_saved"], 3 * totals["bytes_saved"])
        self.assertEqual([c["slot_of_microbatch"][:9] for c in document["classes"] if c["stage"] == 3],
                         [[0, 1, 2, 3, 4, 5, 6, 0, 1], [0, 1, 2, 0, 1, 2, 0, 1, 2]])

    def test_gpipe_keeps_every_activation(self):
        document = self.document("--schedule", "gpipe", "--stages", "4", "--microbatches", "16")
        for item in document["classes"]:
            self.assertEqual(item["poolable"], item["direction"] == "gradient")
            self.assertEqual(item["reason"], "poolable" if item["poolable"] else "unbounded_depth")

    def test_tensors_of_two_sizes_are_two_classes(self):
        document = self.document(*ONE_F_ONE_B, "--tensor", "2x1024:bf16", "--tensor", "1x4:int64", "--tensor", "2x1024:bf16",
                                 "--slack", "0")
        self.assertEqual(document["options"]["tensor_bytes"], [4096, 32, 4096])
        large, small = [c for c in document["classes"] if c["stage"] == 1 and c["direction"] == "activation"]
        self.assertEqual((large["buffer_bytes"], large["buffers"], large["depth"], large["slots"]), (4096, 32, 6, 6))
        self.assertEqual((small["buffer_bytes"], small["buffers"], small["depth"], small["slots"]), (32, 16, 3, 3))
        self.assertEqual(document["ranks"][1]["pools"][0]["bytes_pooled"], 3 * (2 * 4096 + 32))

    def test_every_type_of_torch(self):
        for bits, names in {8: "bool int8 uint8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu fp8",
                            16: "int16 uint16 short float16 half bfloat16 torch.bfloat16 BF16",
                            32: "int32 uint32 int float32 float complex32", 64: "int64 uint64 long double complex64",
                            128: "complex128 torch.complex128"}.items():
            for name in names.split():
                with self.subTest(name):
                    document = self.document(*ONE_F_ONE_B, "--tensor", "3x5:" + name)
                    self.assertEqual(document["options"]["tensor_bytes"], [15 * bits // 8])

    def test_nothing_received(self):
        for arguments in (("--schedule", "1f1b", "--stages", "1", "--microbatches", "1"),
                          ("--schedule", "interleaved_1f1b", "--stages", "4", "--ranks", "1", "--microbatches", "3")):
            result = self.plan(*arguments, "--buffer-bytes", "1MiB")
            self.assert_success(result)
            self.assertIn("Nothing is received", result.stdout)
            self.assertNotIn("Give --buffer-bytes", result.stdout)
            self.assertEqual(self.document(*arguments)["totals"]["buffers"], 0)

    def test_slots_of_moved_posts_do_not_collide(self):
        case = os.path.join(LOWERED, "ZBVZeroBubble-p4-v2-n8.lowered.csv")
        for moved in (["--post-at-use"], ["--receive-ahead", "2"]):
            document = self.document("--lowered", case, "--granularity", "rank", *moved)
            for item in document["classes"]:
                r = document["ranks"][item["rank"]]["receives"]
                self.assertEqual(r["begin"], sorted(r["begin"]))
                live = {}
                for slot, begin, end in zip(item["slot_of_microbatch"], r["begin"], r["end"], strict=True):
                    self.assertLess(live.get(slot, -1), begin)
                    live[slot] = end

    def test_coarser_pools_need_fewer_slots(self):
        arguments = ("--schedule", "interleaved_1f1b", "--stages", "16", "--ranks", "4", "--microbatches", "16", "--slack", "0")
        slots = [self.document(*arguments, "--granularity", g)["totals"]["slots"] for g in ("stage", "direction", "rank")]
        self.assertGreater(slots[0], slots[1])
        self.assertGreaterEqual(slots[1], slots[2])
        words = "Each row stands for its stage and direction alone"
        self.assertIn(words, self.plan(*arguments, "--granularity", "rank").stdout)
        self.assertNotIn(words, self.plan(*arguments).stdout)

    def test_table_and_timeline(self):
        result = self.plan(*ONE_F_ONE_B, "--buffer-bytes", "1MiB", "--stage", "2", "--slack", "0", "--show-timeline")
        self.assert_success(result)
        rows = [line.split() for line in result.stdout.splitlines() if line[:4].strip().isdigit()]
        self.assertEqual(rows[0], "2 2 activation 16 2 2 2 ring 16.0 MiB 2.0 MiB 14.0 MiB".split())
        self.assertEqual(rows[1], "2 2 gradient 16 1 1 2 ring 16.0 MiB 1.0 MiB 15.0 MiB".split())
        timeline = result.stdout.split("rank 2, stage 2, activation")[1].splitlines()
        self.assertEqual([line.split()[1:] for line in timeline[2:6]], [["0", "."], ["0", "1"], ["2", "1"], ["2", "3"]])

    def test_one_stage_receives_nothing(self):
        result = self.plan("--schedule", "1f1b", "--stages", "1", "--microbatches", "1")
        self.assert_success(result)
        self.assertEqual(result.stdout, "1f1b: 1 rank, 1 stage, 1 microbatch\n\n"
                                        "Nothing is received: no stage has a neighbour on another rank.\n")

    def test_forward_only(self):
        document = self.document("--schedule", "gpipe", "--stages", "3", "--microbatches", "8", "--forward-only")
        self.assertEqual({(p["direction"], p["depth"]) for r in document["ranks"] for p in r["pools"]}, {("activation", 1)})

    def test_what_rounding_to_pieces_leaves_is_said(self):
        words = "The device gives memory in pieces of 2.0 MiB (the usual size, not measured here): enforcing would save "
        for options, said in (("--buffer-bytes 1MiB", "at most 54.0 MiB."), ("--buffer-bytes 64KiB", "nothing."),
                              ("--buffer-bytes 2MiB", None), ("--buffer-bytes 4MiB", None), ("", None),
                              ("--buffer-bytes 1MiB --buffer-bytes 1MiB", "at most 108.0 MiB."),
                              ("--buffer-bytes 3MiB --buffer-bytes 2MiB", "at most 354.0 MiB."),
                              ("--buffer-bytes 1MiB --replicas 3", "at most 162.0 MiB."), ("--buffer-bytes 1MiB --mixed-sizes", None)):
            with self.subTest(options):
                result = self.plan(*ONE_F_ONE_B, *options.split())
                self.assert_success(result)
                lines = [line for line in result.stdout.splitlines() if "in pieces" in line]
                self.assertEqual(lines, [words + said] if said else [])

    def test_readme_shows_a_plan(self):
        with open(os.path.join(SOURCE, "README.md")) as file:
            text = file.read()
        command = "$ recvpool plan --schedule 1f1b --stages 4 --microbatches 16 --buffer-bytes 1MiB\n"
        shown = text.split("    " + command)[1].split("\nN, D and K are as above")[0]
        result = self.plan(*command.split()[3:])
        self.assert_success(result)
        self.assertEqual("\n".join(line.strip() for line in shown.splitlines()).strip(),
                         "\n".join(line.strip() for line in result.stdout.splitlines()).strip())

    def test_receive_ahead(self):
        for ahead in (0, 1, 3):
            pool = self.document(*ONE_F_ONE_B, "--receive-ahead", str(ahead))["ranks"][1]["pools"][0]
            self.assertEqual(pool["depth"], 3 + ahead)

    def test_compute_only_file_is_lowered(self):
        case = os.path.join(LOWERED, "Interleaved1F1B-p4-v2-n8")
        ours, theirs = (self.document("--lowered", case + kind) for kind in (".compute.csv", ".lowered.csv"))
        self.assertEqual(ours["ranks"], theirs["ranks"])
        self.assertEqual(ours["classes"], theirs["classes"])

    def test_the_version_of_torch_counts(self):
        newer = os.path.join(SOURCE, "tests", "torch", "data", "torch-2.15", "Interleaved1F1B-p4-v2-n8.lowered.csv")
        arguments = ("--schedule", "interleaved_1f1b", "--stages", "8", "--ranks", "4", "--microbatches", "8", "--torch")
        self.assertEqual(self.document(*arguments, "2.15")["ranks"], self.document("--lowered", newer)["ranks"])
        older = os.path.join(LOWERED, "Interleaved1F1B-p4-v2-n8.lowered.csv")
        self.assertEqual(self.document(*arguments, "2.11")["ranks"], self.document("--lowered", older)["ranks"])
        self.assertNotEqual(self.document("--lowered", newer)["ranks"], self.document("--lowered", older)["ranks"])


class OutputTest(PlanTestCase):
    def test_file_is_the_document(self):
        path = os.path.join(self.folder, "plan.json")
        result = self.plan(*ONE_F_ONE_B, "--output", path)
        self.assert_success(result)
        self.assertIn("Plan written to", result.stdout)
        with open(path) as file:
            self.assertEqual(json.load(file), self.document(*ONE_F_ONE_B))
        self.assertEqual(os.listdir(self.folder), ["plan.json"])

    def test_unwritable(self):
        result = self.plan(*ONE_F_ONE_B, "--output", "/proc/nowhere/plan.json")
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr)

    def test_a_pipe_stays_a_pipe(self):
        pipe, copy = os.path.join(self.folder, "pipe"), os.path.join(self.folder, "copy")
        os.mkfifo(pipe)
        with open(copy, "wb") as file:
            reader = support.subprocess.Popen(["cat", pipe], stdout=file)
            try:
                self.assert_success(self.plan(*ONE_F_ONE_B, "--output", pipe))
                self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
                self.assertEqual(reader.wait(timeout=support.TIMEOUT_SECONDS), 0)
            finally:
                reader.kill()
                reader.wait()
        with open(copy) as file:
            self.validate(json.load(file))

    def test_a_link_stays_a_link(self):
        target, link = self.write("target.json", ""), os.path.join(self.folder, "link.json")
        os.symlink("target.json", link)
        self.assert_success(self.plan(*ONE_F_ONE_B, "--output", link))
        self.assertTrue(os.path.islink(link))
        with open(target) as file:
            self.validate(json.load(file))
        os.remove(target)
        self.assertEqual(self.plan(*ONE_F_ONE_B, "--output", link).returncode, 1)
        self.assertEqual(os.listdir(self.folder), ["link.json"])

    def test_longest_name(self):
        path = os.path.join(self.folder, "p" * 255)
        self.assert_success(self.plan(*ONE_F_ONE_B, "--output", path))
        self.assertEqual(os.listdir(self.folder), ["p" * 255])

    def test_what_cannot_be_written_leaves_nothing(self):
        for words, path in {"Is a directory": self.folder, "No such file": "", "Not a directory": self.folder + "/new/"}.items():
            with self.subTest(words):
                result = self.plan(*ONE_F_ONE_B, "--output", path)
                self.assertEqual(result.returncode, 1)
                self.assert_one_line(result.stderr)
                self.assertEqual(os.listdir(self.folder), [])

    def test_full_device(self):
        with open("/dev/full", "w") as full:
            result = support.subprocess.run([RECVPOOL, "plan", *ONE_F_ONE_B, "--json"], stdout=full,
                                            stderr=support.subprocess.PIPE, text=True, timeout=support.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr)


class RefusalTest(PlanTestCase):
    def test_usage(self):
        saved = os.path.join(self.folder, "saved")
        self.assert_success(self.plan(*ONE_F_ONE_B, "--output", saved))
        for words, arguments in {
            "nothing to plan": [],
            "exclude one another": [*ONE_F_ONE_B, "--lowered", "x.csv"],
            "needs --stages and --microbatches": ["--schedule", "1f1b", "--stages", "4"],
            "belong to --schedule": ["--lowered", "x.csv", "--stages", "4"],
            "multiple of --ranks": ["--schedule", "looped_bfs", "--stages", "5", "--ranks", "2", "--microbatches", "4"],
            "there is no stage 4": [*ONE_F_ONE_B, "--stage", "4"],
            "a run finds: recvpool run --mode enforce --slack auto": [*ONE_F_ONE_B, "--slack", "auto"],
            "--slack is '-1'": [*ONE_F_ONE_B, "--slack", "-1"],
            "--slack is '2000000'": [*ONE_F_ONE_B, "--slack", "2000000"],
            "--slack is '2.5'": [*ONE_F_ONE_B, "--slack", "2.5"],
            "--microbatches is '0'": ["--schedule", "1f1b", "--stages", "4", "--microbatches", "0"],
            "--stages is '-4'": ["--schedule", "1f1b", "--stages", "-4", "--microbatches", "4"],
            "--stages is '99999999999999999999'": ["--schedule", "1f1b", "--stages", "99999999999999999999"],
            "--buffer-bytes is '0'": [*ONE_F_ONE_B, "--buffer-bytes", "0"],
            "--buffer-bytes is '1XB'": [*ONE_F_ONE_B, "--buffer-bytes", "1XB"],
            "--buffer-bytes is '99999999TiB'": [*ONE_F_ONE_B, "--buffer-bytes", "99999999TiB"],
            "--tensor is '2xx3:bf16'": [*ONE_F_ONE_B, "--tensor", "2xx3:bf16"],
            "--tensor is '2x3'": [*ONE_F_ONE_B, "--tensor", "2x3"],
            "--tensor is '2x:bf16'": [*ONE_F_ONE_B, "--tensor", "2x:bf16"],
            "--tensor is '2x3:q4'": [*ONE_F_ONE_B, "--tensor", "2x3:q4"],
            "--tensor is '4294967296x4294967296x2:bf16'": [*ONE_F_ONE_B, "--tensor", "4294967296x4294967296x2:bf16"],
            "--granularity is 'job'": [*ONE_F_ONE_B, "--granularity", "job"],
            "--torch is '1.13'": [*ONE_F_ONE_B, "--torch", "1.13"],
            "--torch is '2.'": [*ONE_F_ONE_B, "--torch", "2."],
            "--torch is '2.5'": [*ONE_F_ONE_B, "--torch", "2.5"],
            "--replicas is '0'": [*ONE_F_ONE_B, "--replicas", "0"],
            "there is no option --frobnicate": ["--frobnicate"],
            "needs a value": ["--schedule"],
            "'extra' belongs to no option": [*ONE_F_ONE_B, "extra"],
            "--compare takes": ["--compare", "a.csv"],
            "leave off --show-timeline": [*ONE_F_ONE_B, "--json", "--show-timeline"],
            "a run or a saved plan says itself": ["--from-report", self.folder, "--buffer-bytes", "1MiB"],
            "leave off --buffer-bytes, --tensor": ["--compare", saved, self.folder, "--receive-ahead", "1"],
            "--tensor is '3x0x5:bf16'": [*ONE_F_ONE_B, "--tensor", "3x0x5:bf16"],
            "do not go with it": ["--compare", "a.csv", "reports", "--json"],
            "--output, --stage": ["--compare", *ONE_F_ONE_B, "reports", "--output", os.path.join(self.folder, "x")],
            "(bf16, fp16": [*ONE_F_ONE_B, "--tensor", "2x3:q5"],
        }.items():
            with self.subTest(words):
                self.assert_refused(2, words, *arguments)
        self.assertNotIn("put --", self.plan("--frobnicate").stderr)

    def test_schedules(self):
        for words, arguments in {
            "no schedule is named '2f2b'": ["--schedule", "2f2b", "--stages", "4", "--microbatches", "4"],
            "one stage per rank": ["--schedule", "1f1b", "--stages", "4", "--ranks", "2", "--microbatches", "4"],
            "divide": ["--schedule", "interleaved_1f1b", "--stages", "4", "--ranks", "2", "--microbatches", "5"],
            "more than this program takes": ["--schedule", "1f1b", "--stages", "65536", "--microbatches", "16777216"],
            "too large to add up": [*ONE_F_ONE_B, "--buffer-bytes", "4000000TiB"],
        }.items():
            with self.subTest(words):
                self.assert_refused(1, words, *arguments)

    def test_files(self):
        for words, content in {
            "the file is empty": b"",
            "not a schedule file": b"\x7fELF\x02\x01\x01\x00",
            "byte order mark": b"\xef\xbb\xbf0F0,0B0\r\n",
            "UTF-16": "0F0,0B0".encode("utf-16"),
            "row 1, column 3: 0F0: this action is there twice": b"0F0,0B0,0F0\r\n",
            "row 2, column 2: 1Q0: no action is called 'Q'": b"0F0,0B0\r\n1F0,1Q0\r\n",
            "remove the extra comma": b"0F0,0SEND_F0,0RECV_B0,0B0,\r\n1RECV_F0,1F0,1B0,1SEND_B0,\r\n",
            "row 2: 1SEND_B0: this send is missing": b"0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0\n",
            "cyclic": b"2F0,0F0,0B0,2B0\n1F0,1B0\n",
            "a JSON document is no schedule file": b'{"schema": "recvpool.plan"}',
            "number of its stage": b'["schema", "recvpool.plan"]',
            "stage number is above": b"9" * (1 << 20),
        }.items():
            with self.subTest(words):
                self.assert_refused(1, words, "--lowered", self.write("bad.csv", content))

    def test_a_line_of_a_gigabyte(self):
        path = self.write("long.csv", "0F0,0B0,")
        os.truncate(path, 1 << 30)
        self.assert_refused(1, "row 1, column 3: \\x00", "--lowered", path)

    def test_what_never_ends(self):
        self.assert_refused(1, "byte 0x00", "--lowered", "/dev/zero")

    def test_damaged_plan(self):
        path = os.path.join(self.folder, "plan.json")
        self.assert_success(self.plan(*ONE_F_ONE_B, "--output", path))
        with open(path) as file:
            whole = file.read()
        for words, change in {"not whole JSON": lambda d: None, "is not a plan": lambda d: d.update(schema="x"),
                              "version '3.0'": lambda d: d.update(schema_version="3.0"),
                              "list of receives of rank 1 is": lambda d: d["ranks"][1]["receives"]["stage"].pop(),
                              "list of receives of rank 0 is": lambda d: d["ranks"].reverse(),
                              "stage 1 receives on ranks 1 and 2": lambda d: d["ranks"][2]["receives"]["stage"].insert(0, 1)
                                  or d["ranks"][2]["receives"]["stage"].pop(),
                              "receive 2 of rank 1 is missing": lambda d: d["ranks"][1]["receives"]["end"].__setitem__(2, -1),
                              "must be null or list": lambda d: d["classes"][0].update(slot_bytes=[1])}.items():
            document = json.loads(whole)
            change(document)
            self.write("plan.json", json.dumps(document)[: -9 if words == "not whole JSON" else None])
            with self.subTest(words):
                self.assert_refused(1, words, "--compare", path, self.folder)

    def test_a_name_cannot_break_the_line(self):
        self.assert_refused(1, "no?such.csv: cannot be read", "--lowered", "no\nsuch.csv")
        self.assert_refused(2, "'a?b' belongs to no option", *ONE_F_ONE_B, "a\rb")

    def test_missing_files(self):
        self.assert_refused(1, "cannot be read: No such file", "--lowered", self.folder + "/none.csv")
        self.assert_refused(1, "cannot be read: Is a directory", "--lowered", self.folder)


@unittest.skipUnless(support.has_trainer(), "no trainer in this build")
class ObservedTest(PlanTestCase):
    """The simulated trainer as witness: an observed run and the plan of its schedule must agree."""

    LAUNCHER = (os.path.join(support.PROGRAMS, "host_program"), "launch")

    def observe(self, *options, launcher=()):
        self.assert_success(run([RECVPOOL, "run", "--report-dir", self.reports_dir, "--", *launcher, TRAINER, "--steps", "4",
                                 "--message-bytes", "128KiB", *options], env=support.simulated()))

    def assert_follows(self, *arguments):
        result = self.plan("--compare", *arguments, self.reports_dir)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("the run follows the plan", result.stdout)

    def test_what_a_run_tells_for_enforcing(self):
        self.observe("--stages", "2", "--chunks", "2", "--microbatches", "4", "--schedule", "interleaved_1f1b")
        document = self.document("--from-report", self.reports_dir)
        self.assertEqual(document["schema_version"], "1.2")
        self.assertEqual(document["provenance"]["world_size"], 2)
        counted = {}
        for report in self.read_reports():
            for channel in report["channels"]:
                for lifetime in channel["lifetimes"]:
                    counted[report["process"]["rank"], lifetime["posted_sequence"]] = (
                        lifetime["accesses"], channel["buffer_bytes"], channel["communicator"], channel["peer"])
        for rank in document["ranks"]:
            receives, senders = rank["receives"], {}
            self.assertTrue(receives["stage"])
            for at, (source, size, accesses) in enumerate(zip(receives["source"], receives["bytes"], receives["accesses"],
                                                              strict=True)):
                expected = counted.pop((rank["rank"], receives["begin"][at]))
                self.assertEqual((accesses, size), expected[:2])
                self.assertGreater(accesses, 0)
                self.assertEqual(senders.setdefault(source, expected[2:]), expected[2:])
            self.assertEqual(len(set(senders.values())), len(senders))
        self.assertEqual(counted, {})

    def test_a_run_that_ends_in_an_evaluation_is_no_evidence(self):
        for more in ((), ("--eval-count", "2")):
            with self.subTest(more):
                shutil.rmtree(self.reports_dir, ignore_errors=True)
                self.observe("--stages", "3", "--microbatches", "4", "--eval-every", "4", *more)
                result = self.plan("--from-report", self.reports_dir, "--json")
                self.assert_success(result)
                self.assertIn("let the reports end in training steps", result.stdout + result.stderr)
                for rank in json.loads(result.stdout)["ranks"]:
                    self.assertEqual(set(rank["receives"]["accesses"]), {0})

    def test_1f1b_and_departures(self):
        self.observe("--stages", "4", "--microbatches", "8")
        arguments = ("--schedule", "1f1b", "--stages", "4", "--microbatches")
        self.assert_follows(*arguments, "8")
        observed, planned = self.document("--from-report", self.reports_dir), self.document(*arguments, "8")
        for mine, theirs in zip(observed["ranks"], planned["ranks"], strict=True):
            self.assertEqual(mine["slots"], theirs["slots"])
        self.assertEqual(observed["totals"]["bytes_stock"], 6 * 8 * (128 << 10))
        saved = os.path.join(self.folder, "plan.json")
        self.assert_success(self.plan(*arguments, "8", "--output", saved))
        self.assert_follows(saved)
        self.assert_names_do_not_matter(saved)
        departed = self.plan("--compare", *arguments, "16", self.reports_dir)
        self.assertEqual(departed.returncode, 1)
        self.assertIn("rank 1, stage 1, activation: N is 16 in the plan and 8 in the run", departed.stdout)
        gpipe = self.plan("--compare", "--schedule", "gpipe", "--stages", "4", "--microbatches", "8", self.reports_dir)
        self.assertEqual(gpipe.returncode, 1)
        self.assertIn("D is 8 in the plan and 3 in the run", gpipe.stdout)
        self.assertIn("receive 4 of a step is activation 3 in the plan and gradient 0 in the run", gpipe.stdout)

    def assert_names_do_not_matter(self, saved):
        """A plan is known by what is in it, whatever its file is called, also where it cannot be read twice."""
        with open(saved) as file:
            text = file.read()
        for name, content in (("plan", text), ("plan.csv", text), ("plan.JSON", text), ("blank", " \n\r\t" + text)):
            path = os.path.join(self.folder, name)
            with open(path, "w") as file:
                file.write(content)
            self.assert_follows(path)
        piped = subprocess.run([RECVPOOL, "plan", "--compare", "/dev/stdin", self.reports_dir], input=text, capture_output=True, text=True,
                               timeout=support.TIMEOUT_SECONDS, env=support.clean_environment())
        self.assert_success(piped)
        schedule = os.path.join(self.folder, "schedule.json")
        with open(schedule, "w") as file:
            file.write("0F0\n")
        refused = self.plan("--compare", schedule, self.reports_dir)
        self.assertNotIn("JSON", refused.stderr)
        report = next(os.path.join(self.reports_dir, name) for name in os.listdir(self.reports_dir))
        self.assert_refused(1, "'recvpool.report' is not a plan", "--compare", report, self.reports_dir)
        self.assert_refused(1, "a JSON document is no schedule file; a saved plan is for --compare", "--lowered", saved)

    def test_interleaved(self):
        self.observe("--stages", "2", "--chunks", "2", "--microbatches", "4", "--schedule", "interleaved_1f1b")
        self.assert_follows("--schedule", "interleaved_1f1b", "--stages", "4", "--ranks", "2", "--microbatches", "4")

    def test_schedule_file_with_split_backward(self):
        path = os.path.join(LOWERED, "ZBVZeroBubble-p2-v2-n8.lowered.csv")
        self.observe("--microbatches", "8", "--schedule", path)
        self.assert_follows(path)

    def test_just_in_time_is_said(self):
        self.observe("--stages", "2", "--microbatches", "4", "--allocation", "just_in_time")
        self.assertIn("nothing to pool", self.document("--from-report", self.reports_dir)["provenance"]["note"])
        self.assertIn("nothing to pool", self.plan("--from-report", self.reports_dir).stdout)

    def test_just_in_time_has_no_numbers_to_depart_from(self):
        self.observe("--stages", "2", "--chunks", "2", "--microbatches", "4", "--schedule", "looped_bfs", "--allocation",
                     "just_in_time")
        result = self.plan("--compare", "--schedule", "looped_bfs", "--stages", "4", "--ranks", "2", "--microbatches", "4",
                           self.reports_dir)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("by order of receipt only", result.stdout)

    def test_ranks_that_left_no_report(self):
        self.observe("--stages", "4", "--microbatches", "8")
        whole = self.document("--from-report", self.reports_dir)
        self.assertIsNone(whole["provenance"]["note"])
        paths = {report["process"]["rank"]: path for report, path in
                 zip(self.read_reports(), sorted(glob.glob(self.reports_dir + "/*.json")))}
        with open(paths[1], "r+") as file:
            file.truncate(500)
        self.assertIn("recvpool plan: skipping", self.plan("--from-report", self.reports_dir).stderr)
        torn = self.document("--from-report", self.reports_dir)
        self.assertEqual(torn["provenance"]["note"], "Reports of 3 of 4 ranks: what the others receive is not counted.")
        self.assertEqual(torn["ranks"][1]["pools"], [])
        for rank in (0, 2, 3):
            self.assertEqual(torn["ranks"][rank]["slots"], whole["ranks"][rank]["slots"])
        result = self.plan("--compare", "--schedule", "1f1b", "--stages", "4", "--microbatches", "8", self.reports_dir)
        self.assertEqual((result.returncode, result.stdout),
                         (1, "rank 1: the run shows no receives; is its report there?\n"))

    def changed(self, change):
        """The reports of a run after `change`, by rank."""
        self.observe("--stages", "4", "--microbatches", "8")
        paths = sorted(glob.glob(self.reports_dir + "/*.json"))
        reports = {report["process"]["rank"]: report for report in self.read_reports()}
        change(reports)
        for path, report in zip(paths, reports.values()):
            with open(path, "w") as file:
                json.dump(report, file)

    def test_pipeline_within_a_larger_job(self):
        def change(reports):
            for rank, report in reports.items():
                report["process"].update(rank=10 + 3 * rank, world_size=24)
        self.changed(change)
        self.assert_follows("--schedule", "1f1b", "--stages", "4", "--microbatches", "8")
        document = self.document("--from-report", self.reports_dir)
        self.assertEqual([r["rank"] for r in document["ranks"] if r["pools"]], [10, 13, 16, 19])
        self.assertIn("Reports of 4 of 24 ranks", document["provenance"]["note"])
        self.assertEqual(document["provenance"]["world_size"], 24)

    def test_what_has_no_direction_is_a_pool_of_its_own(self):
        def change(reports):
            more = json.loads(json.dumps(reports[3]["channels"][0]))
            more["direction"] = "unknown"
            reports[3]["channels"].append(more)
        self.changed(change)
        pools = self.document("--from-report", self.reports_dir)["ranks"][3]["pools"]
        self.assertEqual([(p["direction"], p["buffers"]) for p in pools], [("activation", 8), ("unknown", 8)])
        result = self.plan("--compare", "--schedule", "1f1b", "--stages", "4", "--microbatches", "8", self.reports_dir)
        self.assertIn("rank 3: the run receives buffers that the plan does not have (8 per step)", result.stdout)

    def test_absurd_numbers_of_a_report(self):
        def pairs(reports):
            channel = reports[1]["channels"][0]
            channel["lifetimes"] = [dict(channel["lifetimes"][0], microbatch=(1 << 24) - 1)]
            reports[1]["channels"] = [dict(channel, stage_ordinal=i) for i in range(100)]
        for words, change in {"more ranks, channels or microbatches": pairs,
                              "too large to add up": lambda r: r[1]["channels"][0].update(buffer_bytes=(1 << 63) - 1)}.items():
            with self.subTest(words):
                self.reports_dir = os.path.join(self.folder, words)
                self.changed(change)
                result = self.plan("--from-report", self.reports_dir)
                self.assertEqual(result.returncode, 1)
                self.assert_one_line(result.stderr)
                self.assertIn(words, result.stderr)

    def test_accesses_that_are_guessed(self):
        def outside(reports):
            reports[1]["evidence"] = [{"name": "uprobes", "active": True, "reason": None}]
        for index, change in enumerate((outside, lambda r: r[1]["channels"][0].update(estimate=True))):
            with self.subTest(index):
                self.reports_dir = os.path.join(self.folder, str(index))
                self.changed(change)
                result = self.plan("--from-report", self.reports_dir)
                self.assertEqual((result.returncode, result.stdout), (1, ""))
                self.assert_one_line(result.stderr)
                self.assertIn("do not tell for certain how often each message is read", result.stderr)

    def plans(self):
        """The plans of both commands, which must be the same but for the command."""
        path = os.path.join(self.folder, "plan.json")
        result = run([RECVPOOL, "report", "--plan", path, self.reports_dir])
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        with open(path) as file:
            document = json.load(file)
        self.assertEqual(document, self.document("--from-report", self.reports_dir))
        return document

    def launcher_path(self):
        paths = [path for path in glob.glob(self.reports_dir + "/*.json") if not self.load(path)["communicators"]]
        self.assertEqual(len(paths), 1)
        return paths[0]

    def load(self, path):
        with open(path) as file:
            return json.load(file)

    def test_a_launcher_is_no_rank(self):
        self.observe("--stages", "2", "--microbatches", "4", launcher=self.LAUNCHER)
        path, arguments = self.launcher_path(), ("--schedule", "1f1b", "--stages", "2", "--microbatches", "4")

        def check(ranks=2):
            document = self.plans()
            self.assertEqual((document["provenance"]["ranks"], len(document["ranks"]), document["provenance"]["world_size"]), (ranks, ranks, 2))
            self.assertEqual([bool(rank["pools"]) for rank in document["ranks"]], [True, True, False][:ranks])
            return document
        self.assertIsNone(check()["provenance"]["note"])
        self.assert_follows(*arguments)
        self.assertRegex(run([RECVPOOL, "report", self.reports_dir]).stdout,
                         r"(?m)^-     \S+ +no communicator seen: a launcher or a helper process$")
        whole = self.load(path)

        def change(**process):
            with open(path, "w") as file:
                json.dump(dict(whole, process=dict(whole["process"], **process)), file)
        change(rank=0, world_size=1, rank_source="slurm")  # torchrun, started by Slurm once on each machine
        check()
        self.assert_follows(*arguments)
        change(rank=2, world_size=2)  # nobody else has it: a rank that was killed, or whose NCCL is not seen
        self.assertIn("no receives seen", run([RECVPOOL, "report", self.reports_dir]).stdout)
        check(3)
        change()
        self.change_reports(lambda report: report["configuration"].update(run=None))  # the environment was set by hand: a job of its own
        check()
        self.assert_follows(*arguments)

    def test_launchers_alone_make_no_plan(self):
        self.observe("--stages", "2", "--microbatches", "4", launcher=self.LAUNCHER)
        path = self.launcher_path()
        self.assert_refused(1, "launchers or helpers, which are no ranks", "--from-report", path)
        self.assert_refused(1, "launchers or helpers, which are no ranks", "--compare", "--schedule", "1f1b", "--stages", "2",
                            "--microbatches", "4", path)

    def test_a_rank_that_receives_nothing_keeps_its_number(self):
        def empty(reports):
            reports[0]["channels"] = []
            reports[0]["events"]["by_kind"]["recv"] = 0

        def nameless(reports):
            empty(reports)
            for report in reports.values():
                report["process"].update(rank=None, world_size=None)
        self.changed(empty)
        self.assertEqual([bool(rank["pools"]) for rank in self.plans()["ranks"]], [False, True, True, True])
        shutil.rmtree(self.reports_dir)
        self.changed(nameless)
        self.assertEqual(self.plans()["provenance"]["ranks"], 4)
        self.assertNotIn("launcher", run([RECVPOOL, "report", self.reports_dir]).stdout)

    def test_why_there_is_nothing_to_plan_by(self):
        compare = ("--compare", "--schedule", "1f1b", "--stages", "2", "--microbatches", "4")
        self.observe("--stages", "2", "--microbatches", "4", "--message-bytes", "1KiB")

        def no_receives(report):
            report["events"]["by_kind"].update(recv=0)

        def not_small(report):
            report["events"]["by_kind"].update(recv=3)
            report["events"].update(ignored=0)

        def passive(report):
            no_receives(report)
            report.update(passive_reason="it \x1b may not")
        for change, words in ((lambda report: None, "only receives below --min-bytes were seen; to have them counted"),
                              (not_small, "the reports hold no complete step; let the run go on for a few steps"),
                              (no_receives, "no receives were seen; let the job train for two steps"),
                              (passive, "no receives were seen, since the agent did nothing: it ? may not")):
            self.change_reports(change)
            for command in (compare, ("--from-report",)):
                with self.subTest(words, command=command[0]):
                    self.assert_refused(1, words, *command, self.reports_dir)

    def test_a_process_with_several_devices_gets_no_plan(self):
        self.observe("--stages", "4", "--microbatches", "16", "--message-bytes", "1MiB")

        def second(report):
            for channel in report["channels"][1:]:
                channel["device"] = 1
        self.change_reports(second)
        for command in (("plan", "--from-report", self.reports_dir), ("report", "--plan", os.path.join(self.folder, "p"), self.reports_dir)):
            result = run([RECVPOOL, *command])
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("a process received on several devices, and a plan has one device for each rank; enforce it without a plan",
                          result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "p")))

    def test_rounding_is_said_as_by_the_report(self):
        self.observe("--stages", "4", "--microbatches", "16", "--message-bytes", "1MiB")
        words = "enforcing would save at most 54.0 MiB"
        text = run([RECVPOOL, "report", self.reports_dir]).stdout
        self.assertIn(words + ", since the device gives memory in pieces of 2.0 MiB (the usual size, not measured here).", text)
        self.assertIn("in pieces of 2.0 MiB (the usual size, not measured here): " + words + ".", self.plan("--from-report", self.reports_dir).stdout)
        def measured(report):
            device = {"device": 0, "memory": {"granularity_bytes": 4 << 20}}
            report["enforcement"] = dict(report["enforcement"] or {}, devices=[device])
        self.change_reports(measured)
        text = run([RECVPOOL, "report", self.reports_dir]).stdout
        said = re.search(r"enforcing would save (.*), since the device gives memory in pieces of 4.0 MiB\.", text)[1]
        self.assertIn(f"in pieces of 4.0 MiB: enforcing would save {said}.", self.plan("--from-report", self.reports_dir).stdout)

    def test_a_run_that_must_not_be_enforced_says_so(self):
        def unsafe(reports):
            reports[1]["enforcement"]["devices"][0]["conflicts"]["violated"].update(stale_access=2)
        self.changed(unsafe)
        path = os.path.join(self.folder, "plan.json")
        for command in (["plan", "--from-report", self.reports_dir, "--output", path], ["report", "--plan", path, self.reports_dir]):
            result = run([RECVPOOL, *command])
            self.assert_success(result)
            self.assert_one_line(result.stderr)
            self.assertIn("do not enforce this plan as it is: in the run that it is made of, buffers are used when their data would be gone",
                          result.stderr)
            self.assertIn(f"Plan written to {path}.", result.stdout)
            os.remove(path)
            refused = run([word.replace(path, self.folder) for word in [RECVPOOL, *command]])
            self.assertEqual(refused.returncode, 1)
            self.assert_one_line(refused.stderr)
            self.assertIn("cannot write", refused.stderr)
        self.change_reports(lambda report: report["enforcement"].update(mode="enforce"))
        self.change_reports(lambda report: report["enforcement"]["totals"].update(violations=1))
        self.assertIn("memory was reused unsafely in the run that it is made of", self.plan("--from-report", self.reports_dir).stderr)

    def test_no_complete_step(self):
        result = self.plan("--from-report", self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("no report found", result.stderr)
