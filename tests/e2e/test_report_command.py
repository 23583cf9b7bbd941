"""`recvpool report`: what it reads, what it skips, what it says."""

import glob
import json
import os

import support
from support import RECVPOOL, run


class ReportCommandTest(support.TestCase):
    def report(self, *arguments):
        return run([RECVPOOL, "report", *arguments])

    def rows(self, text):
        """Table rows as lists of words, without header and total."""
        return [line.split() for line in text.splitlines() if line[:1].isdigit()]

    def test_table(self):
        self.sample("prealloc", "2", "0", "1")
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertEqual(result.stderr, "")
        rows = self.rows(result.stdout)
        self.assertEqual([row[0] for row in rows], ["0", "0", "1", "1", "2", "2"])
        self.assertEqual(rows[0], "0 node/one:1000 activation 0 0 4 1 2 1.0 MiB 4.0 MiB 1.0 MiB 2.0 MiB poolable".split())
        self.assertIn("pooling would save 12.0 MiB of the 24.0 MiB held", result.stdout)
        self.assertIn("(3 processes)", result.stdout)
        self.assertEqual([line for line in result.stdout.splitlines() if line != line.rstrip()], [])

    def test_enforcing_rounds_up(self):
        self.sample("prealloc", "2", "0", "1")
        said = self.report(self.reports_dir).stdout
        self.assertIn("held for receive buffers; enforcing would save nothing, since the device gives memory in pieces of "
                      "2.0 MiB (the usual size, not measured here).", said)
        for path in os.listdir(self.reports_dir):
            def measured(report):
                report["enforcement"] = {"mode": "enforce", "devices": [{"memory": {"granularity_bytes": 3 << 19}}]}
            self.change(os.path.join(self.reports_dir, path), measured)
        self.assertIn("enforcing would save at most 6.0 MiB, since the device gives memory in pieces of 1.5 MiB.",
                      self.report(self.reports_dir).stdout)

    def decide(self, *reasons, **changes):
        """Reports whose channels have these decisions, in turn."""
        def change(report):
            for channel, reason in zip(report["channels"], reasons):
                channel["decision"].update(poolable=False, reason=reason, text="Not shown: the command has its own.")
                channel.update(would_save_bytes=0, **changes)
        self.change_reports(change)
        return self.report(self.reports_dir).stdout

    def test_the_table_is_followed_by_a_sentence_for_each_decision_in_it(self):
        self.sample("prealloc", "0", "1")
        table, text = self.report(self.reports_dir).stdout.split("=> ")
        self.assertEqual(table.splitlines()[-1],
                         "poolable: Fewer buffers are in use at once than are allocated; pooling would free the rest.")
        table, text = self.decide("unstable_pattern", "no_access_evidence").split("=> ")
        self.assertRegex(table, r"\ntotal .*\n"
                         r"unstable_pattern: The number of buffers or their use differs from step to step; pooling waits until it settles\.\n"
                         r"no_access_evidence: No use of a received buffer was seen, [^\n]*\n\Z")
        table, text = self.decide("a_word_from_later_on", "graph_captured").split("=> ")
        self.assertRegex(table, r"\ntotal .*\ngraph_captured: Receives or uses were captured into CUDA graphs[^\n]*\n\Z")

    def test_more_in_use_than_buffers_is_no_depth(self):
        self.sample("prealloc", "0")
        text = self.decide("unstable_pattern", "unstable_pattern", depth=2, depth_min=1, depth_max=3, buffers=3, slots=3)
        self.assertEqual([row[5:8] for row in self.rows(text)], [["3", "1-3", "3"]] * 2)
        self.assertNotIn("D left open", text)
        text = self.decide("unstable_pattern", "unstable_pattern", depth=2, depth_min=1, depth_max=4)
        self.assertEqual([row[5:8] for row in self.rows(text)], [["3", "-", "-"]] * 2)
        self.assertRegex(text, r"(?m)^total +[0-9.]+ MiB +- +-$")
        self.assertIn("\nD left open: more messages were in use at once in one step than another had buffers.\n=> ", text)

    def test_stages_have_the_numbers_of_the_plan(self):
        self.sample("enforced", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")

        def change(stage, ordinal, planned=True):
            def of(report):
                device = report["enforcement"]["devices"][0]
                device["planned"] = planned
                for class_ in device["classes"]:
                    class_["stage"] = stage
                for channel in report["channels"]:
                    channel["stage_ordinal"] = ordinal
            self.change(path, of)
            return [row[3] for row in self.rows(self.report(path).stdout)[:2]]
        with open(path) as file:
            report = json.load(file)
        addresses = {binding["address"] for class_ in report["enforcement"]["devices"][0]["classes"] for binding in class_["bindings"]}
        lives = [{life["address"] for life in channel["lifetimes"]} for channel in report["channels"]]
        known = [bool(addresses & life) for life in lives]
        self.assertIn(True, known)
        self.assertEqual(change(7, 1), ["7" if is_known else "#1" for is_known in known])
        self.assertEqual(change(7, 1, planned=False), ["1", "1"])
        self.assertEqual(change(None, 3), ["#3", "#3"])

    def test_conclusions(self):
        self.sample("gpipe", "0", folder=self.folder + "/gpipe")
        self.sample("just_in_time", "0", folder=self.folder + "/jit")
        self.sample("empty", "0", folder=self.folder + "/empty")
        gpipe = self.report(self.folder + "/gpipe")
        self.assertIn("pooling would save 2.0 MiB", gpipe.stdout)
        self.assertIn("on activations with D = N there is nothing to save", gpipe.stdout)
        self.assertIn("nothing to pool:", self.report(self.folder + "/jit").stdout)
        empty = self.report(self.folder + "/empty")
        self.assertIn("no receives were seen", empty.stdout)
        self.assertIn("the agent did nothing: no CUPTI", empty.stdout)

    def test_what_is_out_of_reach_is_told_in_bytes(self):
        self.sample("prealloc", "0", "1")
        def shared(count):
            def change(report):
                for channel in report["channels"][:count]:
                    channel["decision"].update(poolable=False, reason="shared_allocation")
                    channel.update(would_save_bytes=0, unreachable_bytes=channel["held_bytes"])
            return change
        self.assertNotIn("out of reach", self.report(self.reports_dir).stdout)
        for count, begin, bytes_told in ((1, "pooling would save 4.0 MiB of the 16.0 MiB held for receive buffers", "8.0 MiB"),
                                         (2, "nothing can be pooled; the decision column says why", "16.0 MiB")):
            self.change_reports(shared(count))
            told = self.report(self.reports_dir).stdout
            self.assertIn(f"=> {begin}", told)
            self.assertIn(f"; {bytes_told} are out of reach, in allocations that hold other data too.", told)

    def change(self, path, change, to=None):
        """Writes the report at `path`, changed, back or to another path."""
        with open(path) as file:
            report = json.load(file)
        change(report)
        with open(to or path, "w") as file:
            json.dump(report, file)

    def test_receives_below_the_threshold_are_not_called_absent(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")

        def only_small(report, seen=8, ignored=8):
            report["channels"] = []
            report["events"]["by_kind"]["recv"] = seen
            report["events"]["ignored"] = ignored

        self.change(path, only_small)
        result = self.report(self.reports_dir)
        self.assertIn("no receives of 64.0 KiB or more, 8 smaller ones (--min-bytes)", result.stdout)
        self.assertIn("=> only receives below --min-bytes were seen", result.stdout)
        for seen, ignored in ((0, 0), (8, 7)):
            self.change(path, lambda report: only_small(report, seen, ignored))
            self.assertIn("=> no receives were seen", self.report(self.reports_dir).stdout)

    def test_what_is_named_twice_counts_once(self):
        self.sample("prealloc", "0", "1")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        result = self.report(self.reports_dir, path, self.reports_dir + "/")
        self.assert_success(result)
        self.assertEqual(result.stdout, self.report(self.reports_dir).stdout)
        self.assertEqual([row[0] for row in self.rows(result.stdout)], ["0", "0", "1", "1"])

    def test_the_later_state_of_a_process_counts(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        for name, seconds in (("aaa.json", -1), ("zzz.json", -2)):
            def earlier(report):
                report["written_unix_seconds"] += seconds
                report["channels"] = []
            self.change(path, earlier, to=os.path.join(self.reports_dir, name))
        self.assertEqual(len(self.rows(self.report(self.reports_dir).stdout)), 2)

    def test_a_named_path_that_is_missing_is_an_error(self):
        self.sample("prealloc", "0")
        result = self.report(self.reports_dir, "/nowhere.json")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(self.rows(result.stdout)), 2) # what there is is shown all the same
        self.assertEqual(result.stderr.count("/nowhere.json"), 1)

    def test_only_plain_files_of_a_folder_are_read(self):
        self.sample("prealloc", "0")
        os.mkfifo(os.path.join(self.reports_dir, "pipe.json"))
        os.mkdir(os.path.join(self.reports_dir, "folder.json"))
        result = self.report(self.reports_dir + "/")
        self.assert_success(result)
        self.assertEqual(result.stderr.count("not a regular file"), 2)
        self.assertNotIn("//", result.stderr)
        self.assertEqual(len(self.rows(result.stdout)), 2)

    def test_single_file(self):
        self.sample("prealloc", "3", "4")
        path = os.path.join(self.reports_dir, "node_one-1003-900.json")
        result = self.report(path)
        self.assert_success(result)
        self.assertEqual({row[0] for row in self.rows(result.stdout)}, {"3"})

    def test_folder_full_of_traps(self):
        self.sample("prealloc", "0")
        good = os.path.join(self.reports_dir, "node_one-1000-900.json")
        with open(good) as file:
            report = json.load(file)
        os.mkfifo(os.path.join(self.reports_dir, "pipe.json"))
        os.mkdir(os.path.join(self.reports_dir, "folder.json"))
        os.symlink("/dev/zero", os.path.join(self.reports_dir, "device.json"))
        os.symlink("nowhere", os.path.join(self.reports_dir, "link.json"))
        traps = {"deep.json": "[" * 1000000, "zero.json": "\0" * 100, "\x1b]0;name\x07.json": "{"}
        for name, text in traps.items():
            with open(os.path.join(self.reports_dir, name), "w") as file:
                file.write(text)
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertEqual(len(result.stderr.splitlines()), 7, result.stderr)
        self.assertNotIn("\x1b", result.stderr)
        self.assertEqual(len(self.rows(result.stdout)), 2)
        result = self.report("--json", self.reports_dir)
        self.assert_success(result)
        self.assertEqual(len(json.loads(result.stdout)["skipped"]), 7)

    def test_what_was_saved_for_a_moment_only(self):
        """Rounding to the granularity, or sharing that was switched off, leaves less than the most there ever was."""
        self.sample("enforced", "0")
        [path] = glob.glob(self.reports_dir + "/*.json")
        mib = 1 << 20

        def change(report):
            for account in (report["enforcement"]["totals"], report["enforcement"]["devices"][0]["classes"][0]):
                account.update(requested_peak_bytes=4 * mib, physical_peak_bytes=6 * mib, saved_peak_bytes=mib)
        self.change(path, change)
        result = self.report(path)
        self.assertIn(["4.0", "MiB", "6.0", "MiB", "-2.0", "MiB", "1.50"], [line.split()[-7:] for line in result.stdout.splitlines()])
        self.assertIn(["total", "4.0", "MiB", "6.0", "MiB", "-2.0", "MiB"], [line.split()[:7] for line in result.stdout.splitlines()])
        self.assertIn("=> enforcing holds 2.0 MiB more than the job would without it, since sizes are rounded up.\n"
                      "   Run it without enforce: rounding sizes up to the pieces", result.stdout)

    def test_costs_of_one_process_are_taken_off_what_another_saves(self):
        self.sample("enforced", "0", "1")
        mib = 1 << 20

        def change(report):
            for account in (report["enforcement"]["totals"], report["enforcement"]["devices"][0]["classes"][0]):
                account.update(requested_peak_bytes=4 * mib, physical_peak_bytes=6 * mib, saved_peak_bytes=mib)
            for account in (report["enforcement"]["totals"], report["enforcement"]["devices"][0]):
                account.update(rounding_peak_bytes=3 * mib)
        self.change(os.path.join(self.reports_dir, "node_one-1000-900.json"), change)
        result = self.report(self.reports_dir)
        rows = [line.split() for line in result.stdout.splitlines()]
        self.assertIn("0 node/one:1000 0 (rounding) - - - - - - - 3.0 MiB -3.0 MiB -".split(), rows)
        self.assertIn("total 20.0 MiB 19.0 MiB 1.0 MiB".split(), [row[:7] for row in rows])
        self.assertIn("=> sharing saved 1.0 MiB of the 20.0 MiB that these receive buffers would hold.\n", result.stdout)
        document = json.loads(self.report("--json", self.reports_dir).stdout)
        support.validator("job.schema.json").validate(document)
        self.assertEqual([document["totals"]["enforcement"][key] for key in ("saved_peak_bytes", "rounding_peak_bytes")],
                         [mib, 3 * mib])

        def kept_back(report):
            change(report)
            for account in (report["enforcement"]["totals"], report["enforcement"]["devices"][0]):
                account.update(headroom_peak_bytes=2 * mib)
        self.change(os.path.join(self.reports_dir, "node_one-1000-900.json"), kept_back)
        text = self.report(self.reports_dir).stdout
        self.assertIn("0 node/one:1000 0 (headroom) - - - - - - - 2.0 MiB -2.0 MiB -".split(), [line.split() for line in text.splitlines()])
        self.assertIn("=> enforcing holds 1.0 MiB more than the job would without it, since sizes are rounded up and memory is kept back.\n"
                      "   Run it without enforce, or with less --headroom: ", text)

        def more(report):
            kept_back(report)
            for account in (report["enforcement"]["totals"], report["enforcement"]["devices"][0]):
                account.update(headroom_peak_bytes=0)
            for account in (report["enforcement"]["totals"], report["enforcement"]["devices"][0]):
                account.update(rounding_peak_bytes=4 * mib)
        self.change(os.path.join(self.reports_dir, "node_one-1000-900.json"), more)
        self.assertIn("=> sharing saved nothing of the 20.0 MiB that these receive buffers would hold: other allocations are "
                      "rounded up by as much.\n", self.report(self.reports_dir).stdout)

    def test_what_is_shared(self):
        self.sample("enforced", "0", "1")
        result = self.report(self.reports_dir)
        self.assert_success(result)
        rows = self.rows(result.stdout)
        self.assertEqual(len(rows), 8)
        self.assertEqual(rows[4], "0 node/one:1000 0 activation 1 0 4 2 1 1.0 MiB 8.0 MiB 6.0 MiB 2.0 MiB 1.50".split())
        self.assertEqual(rows[5], "0 node/one:1000 0 gradient 1 2 4 2 0 1.0 MiB 8.0 MiB 4.0 MiB 4.0 MiB 1.00".split())
        self.assertIn("total 32.0 MiB 20.0 MiB 12.0 MiB 1.25".split(),
                      [line.split() for line in result.stdout.splitlines()])
        for words in ("rank 1, node/one:1001, device 0: shared from step 2 on, set up in 1.5 ms; 3 waits inserted, "
                      "250.0 us waited; slack 1",
                      "rank 1, node/one:1001, device 0: a buffer got memory of its own once (more_in_flight)\n",
                      "note: more_in_flight: When a receive was posted, no slot was known to be done with: all were in use, or "
                      "their messages were not read as in the steps before; plan more slots or add slack. (2 processes)\n",
                      "rank 0, node/one:1000, device 0: prevented 1 early_reuse\n  early_reuse, slot 1: kernel "
                      "_Z8backwardPf of microbatch 1 in step 2, buffer 1 at 0x7f0000100000, stream 0x5555; then recv of "
                      "microbatch 3 in step 2, buffer 3 at 0x7f0000300000, stream 0x77\nrank 0",
                      "rank 0, node/one:1000, device 0: let 3 uses wait for the one before (unordered_reuse)\n",
                      "device 1: nothing is shared: No step was like the one before. (no_pattern)",
                      "=> sharing saved 12.0 MiB of the 32.0 MiB that these receive buffers would hold.\n"):
            self.assertIn(words, result.stdout)
        self.assertTrue(result.stdout.startswith("if every receive buffer had memory of its own:\nrank "), result.stdout)
        self.assertNotIn("VIOLATION", result.stdout)
        self.assertEqual([line for line in result.stdout.splitlines() if line != line.rstrip()], [])
        document = json.loads(self.report("--json", self.reports_dir).stdout)
        support.validator("job.schema.json").validate(document)
        mib = 1 << 20
        self.assertEqual(document["totals"]["enforcement"],
                         {"processes": 2, "physical_peak_bytes": 20 * mib, "one_to_one_peak_bytes": 32 * mib,
                          "saved_peak_bytes": 12 * mib, "rounding_peak_bytes": 0, "minimum_bytes": 16 * mib, "prevented": 8, "violations": 0,
                          "double_frees": 0})

    def test_violations_name_both_sides(self):
        self.sample("violated", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertIn("rank 0, node/one:1000, device 0: VIOLATIONS: 1 stale_access\n  stale_access, slot 1: recv of "
                      "microbatch 3 in step 2, buffer 3 at 0x7f0000300000, stream 0x77; then kernel _Z8backwardPf of "
                      "microbatch 1 in step 2, buffer 1 at 0x7f0000100000, stream 0x5555\n", result.stdout)
        self.assertIn("1 address was freed twice", result.stdout)
        self.assertIn("device 1: left to the driver: the driver has no virtual memory management", result.stdout)
        self.assertNotIn("device 1: nothing is shared", result.stdout)
        self.assertIn("switched off by node_one-1001-900.disable after 2.1 us, nothing shared after 3.1 us", result.stdout)
        self.assertIn("=> sharing saved 6.0 MiB of the 16.0 MiB that these receive buffers would hold, with 1 VIOLATION; "
                      "sharing was switched off (switched_off) in 1 of 1 processes.\n   Do not trust", result.stdout)

        def many(report):
            report["enforcement"]["devices"][0]["conflicts"]["kept"] *= 8
            report["enforcement"]["switched_off"]["took_effect_seconds"] = None
        self.change(path, many)
        result = self.report(self.reports_dir)
        self.assertEqual(result.stdout.count("stale_access, slot 1"), 5)
        self.assertIn("  and 3 more, in the report\n", result.stdout)
        self.assertIn("still sharing when this was written", result.stdout)

    def test_by_a_plan_from_the_first_step(self):
        self.sample("enforced", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        self.change(path, lambda report: report["enforcement"]["devices"][0].update(activation=None))
        self.assertIn("device 0: shared from the first step on; 3 waits", self.report(self.reports_dir).stdout)

    def test_where_each_buffer_shares_from_its_first_receive_on(self):
        """All were held until then, and the report says so; the table has what is held since."""
        self.sample("enforced", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")

        def change(report):
            device = report["enforcement"]["devices"][0]
            device.update(activation=None, active=False, buffers=0, physical_peak_bytes=device["one_to_one_peak_bytes"])
            device["reasons"] = [{"reason": "calls_unstoppable", "count": 1, "text": "A library uses memory."}]
        self.change(path, change)
        text = self.report(self.reports_dir).stdout
        self.assertRegex(text, r"device 0: shared from the first step on, each buffer from its first receive on "
                               r"\(until then [0-9.]+ MiB were held at most\); 3 waits")
        self.assertNotIn("device 0: nothing is shared", text)

    def test_what_was_given_back_is_not_called_idle(self):
        self.sample("enforced", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        idle = {"reason": "too_few_steps", "text": "Wait."}
        self.change(path, lambda report: report["enforcement"]["devices"][0].update(active=False, idle=idle, activation=None))
        self.assertIn("device 0: nothing is shared: Wait. (too_few_steps)", self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report["enforcement"]["devices"][0].update(buffers=0))
        result = self.report(self.reports_dir)
        self.assertNotIn("device 0: nothing is shared", result.stdout)
        self.assertIn("device 0: shared from the first step on", result.stdout)

    def enforced(self, rank, **device):
        """A report that enforces on one device."""
        self.sample("enforced", str(rank))

        def change(report):
            del report["enforcement"]["devices"][1:]
            report["enforcement"]["devices"][0].update(device)
        path = os.path.join(self.reports_dir, f"node_one-{1000 + rank}-900.json")
        self.change(path, change)
        return path

    def test_what_was_held_at_most_is_said_where_sharing_did_not_lower_it(self):
        mib = 1 << 20
        saved = "=> sharing saved 6.0 MiB of the 16.0 MiB that these receive buffers would hold"
        for held, asked, said in ((10, 16, "."), (16, 16, ", but did not lower the peak: 16.0 MiB were held at most."),
                                  (15, 16, ", but lowered the peak by 1.0 MiB only: 15.0 MiB were held at most."),
                                  (20, 20, ", but did not lower the peak: 20.0 MiB were held at most, with other allocations of such sizes."),
                                  (17, 16, ", but raised the peak by 1.0 MiB, since sizes are rounded up: 17.0 MiB were held at most, with "
                                   "other allocations of such sizes."),
                                  (14, 20, ".")):
            self.enforced(0, physical_peak_bytes=held * mib, one_to_one_peak_bytes=asked * mib, requested_peak_bytes=asked * mib)
            self.assertIn(saved + said + "\n", self.report(self.reports_dir).stdout)

    def test_conflicts_are_shown_where_a_buffer_could_not_wait(self):
        path = self.enforced(0, receives_waited=1)

        def change(report):
            device = report["enforcement"]["devices"][0]
            device["conflicts"]["kept"].append(dict(device["conflicts"]["kept"][0], kind="unordered_reuse", slot=0))
            device["reasons"] = [{"reason": "conflict", "count": 2, "text": "Because."}]
        self.change(path, change)
        text = self.report(self.reports_dir).stdout
        self.assertIn("device 0: let 1 use wait for the one before (unordered_reuse)\nrank 0, node/one:1000, device 0: prevented 2 "
                      "unordered_reuse by memory of its own, where no wait could be inserted\n  unordered_reuse, slot 0: kernel "
                      "_Z8backwardPf of microbatch 1 in step 2", text)
        self.assertEqual(text.count("  unordered_reuse, slot"), 1)

    def test_a_reason_of_two_devices_is_one_processs(self):
        def twice(report):
            device = report["enforcement"]["devices"][0]
            device["reasons"] = [{"reason": "more_in_flight", "count": 2, "text": "Because."}]
            report["enforcement"]["devices"].append(device)
        self.change(self.enforced(0), twice)
        self.assertIn("note: more_in_flight: Because.\n", self.report(self.reports_dir).stdout)

    def test_switched_off_is_not_claimed_of_what_goes_on_sharing(self):
        off = {"file": "disable", "seen_monotonic_ns": 3000, "seen_seconds": 2e-6, "took_effect_monotonic_ns": None,
               "took_effect_seconds": None}
        self.enforced(0)
        paths = [self.enforced(1), self.enforced(2)]
        self.change(paths[0], lambda report: report["enforcement"].update(
            switched_off=dict(off, took_effect_monotonic_ns=4000, took_effect_seconds=3e-6)))
        self.change(paths[1], lambda report: report["enforcement"].update(switched_off=off))
        text = self.report(self.reports_dir).stdout
        self.assertIn("; sharing was switched off (switched_off) in 1 of 3 processes, and 1 went on sharing.\n   Sharing was switched off "
                      "(switched_off) in 1 of 3 processes, and 1 went on sharing.\n", text)
        self.assertIn("still sharing when this was written\n", text)
        no_room = {"fallbacks": 2, "fallback_pending": True, "reasons": [{"reason": "out_of_memory", "count": 2, "text": "Because."}]}
        self.change(paths[1], lambda report: report["enforcement"]["devices"][0].update(no_room))
        text = self.report(self.reports_dir).stdout
        self.assertIn("in 1 of 3 processes, and 1 went on sharing: the device has no room for their buffers.\n", text)
        self.assertIn("still sharing when this was written: the device has no room for all buffers\n", text)
        self.change(paths[1], lambda report: report["enforcement"]["devices"][0].update(active=False))
        self.assertIn("shared until the buffers were freed: the device had no room for all of them\n", self.report(self.reports_dir).stdout)

    def test_switched_off_is_said(self):
        off = {"file": "disable", "seen_monotonic_ns": 3000, "seen_seconds": 2e-6, "took_effect_monotonic_ns": 4000,
               "took_effect_seconds": 3e-6}
        self.enforced(0)
        path = self.enforced(1)
        self.change(path, lambda report: report["enforcement"].update(switched_off=off))
        text = self.report(self.reports_dir).stdout
        self.assertIn("would hold; sharing was switched off (switched_off) in 1 of 2 processes.\n   Sharing was switched off "
                      "(switched_off) in 1 of 2 processes, and stays off", text)
        self.assertNotIn("Nothing to do", text)

    def test_the_reason_is_of_a_process_that_never_shared(self):
        freed = {"reason": "freed", "text": "The buffers that shared memory have been freed."}
        self.enforced(0, active=False, buffers=0, idle=freed)
        never = {"reason": "unbounded_depth", "text": "All are in use at once."}
        path = self.enforced(1, active=False, idle=never, activation=None, one_to_one_peak_bytes=0, saved_peak_bytes=0,
                             classes=[])
        text = self.report(self.reports_dir).stdout
        self.assertIn("Nothing to do: memory is shared in 1 of 2 processes, and others have nothing to gain (unbounded_depth).", text)
        never = {"reason": "no_pattern", "text": "No step was like the one before."}
        self.change(path, lambda report: report["enforcement"]["devices"][0].update(idle=never))
        self.assertIn("Sharing was asked for in 2 processes and happens in 1; look at no_pattern: No step was like the one before.",
                      self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report["enforcement"]["devices"][0].update(idle=freed))
        text = self.report(self.reports_dir).stdout
        self.assertNotIn("look at freed", text)
        self.assertIn("lasted in 1; look at what was prevented.", text)

        def quiet(report):
            prevented = report["enforcement"]["devices"][0]["conflicts"]["prevented"]
            prevented.update({kind: 0 for kind in prevented})
        for each in glob.glob(self.reports_dir + "/*.json"):
            self.change(each, quiet)
        self.assertIn("happens in 1; the job ended before the others could.", self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report.update(state="running"))
        self.assertIn("happens in 1; let the job run on.", self.report(self.reports_dir).stdout)

    def test_launches_that_may_have_read_what_was_gone_are_no_good_end(self):
        self.enforced(0)
        path = self.enforced(1)

        def quiet(report):
            prevented = report["enforcement"]["devices"][0]["conflicts"]["prevented"]
            prevented.update({kind: 0 for kind in prevented})
        self.change_reports(quiet)
        self.assertIn("   Nothing to do: memory is shared, and nothing unsafe", self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report["enforcement"]["devices"][0]["conflicts"]["unclear"].update(count=2))
        text = self.report(self.reports_dir).stdout
        self.assertIn("2 launches were given a buffer whose data was gone", text)
        self.assertIn("   Compare what the job computed with a run without enforce: launches were given buffers", text)
        self.assertNotIn("Nothing to do", text)

    def test_a_launcher_is_not_asked_to_share(self):
        for rank in range(3):
            path = self.enforced(rank)

        def launcher(report):
            report["process"].update(rank=None)
            report.update(channels=[])
            report["enforcement"].update(devices=[], totals={name: 0 for name in report["enforcement"]["totals"]})
        self.change(path, launcher)
        self.assertIn("   Memory is shared; look at what was prevented", self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report["process"].update(rank=2))
        self.assertIn("   Sharing was asked for in 3 processes and lasted in 2; look", self.report(self.reports_dir).stdout)

    def test_where_no_device_had_anything_to_share_the_decisions_are_named(self):
        for rank in range(2):
            self.enforced(rank)

        def nothing(report):
            report["enforcement"].update(devices=[], totals={name: 0 for name in report["enforcement"]["totals"]})
            for channel in report["channels"]:
                channel["decision"].update(poolable=False, reason="shared_allocation")
                channel.update(would_save_bytes=0, unreachable_bytes=channel["held_bytes"])
        self.change_reports(nothing)
        wanted = "   Nothing can be shared, as the decision column says: run it without enforce.\n"
        self.assertIn(wanted, self.report(self.reports_dir).stdout)
        self.change_reports(lambda report: report.update(state="running"))
        text = self.report(self.reports_dir).stdout
        self.assertIn(wanted, text)
        self.assertNotIn("let the job run on", text)

    def test_what_attach_saw_makes_no_plan(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")

        def larger(report):
            for channel in report["channels"]:
                for key in ("buffer_bytes", "held_bytes", "would_save_bytes"):
                    channel[key] *= 2
        self.assertIn("Nothing to gain from buffers this small: leave the job as it is.", self.report(self.reports_dir).stdout)
        self.change(path, larger)
        self.change(path, lambda report: report.update(evidence=[{"name": "uprobes", "active": False, "reason": "none"}]))
        self.assertNotIn("what attach saw", self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report.update(evidence=[{"name": "uprobes", "active": True, "reason": ""}]))
        text = self.report(self.reports_dir).stdout
        self.assertIn("   Run some steps under recvpool run, or with recvpool run --mode enforce: what attach saw is not enough",
                      text)
        self.assertNotIn("report --plan", text)

        def unseen(report):
            for channel in report["channels"]:
                channel["would_save_bytes"] = 0
                channel["decision"].update(poolable=False, reason="no_access_evidence")
        self.change(path, unseen)
        text = self.report(self.reports_dir).stdout
        self.assertIn("observe with recvpool attach --launches, or run some steps under recvpool run.", text)
        self.assertNotIn("Nothing to gain", text)

    def test_what_is_not_decided_has_no_numbers(self):
        """Neither in its row nor in the sums, and the conclusion speaks of the rest."""
        self.sample("plain", "0")

        def change(report):
            first, second = report["channels"][:2]
            del report["channels"][2:]
            for channel in (first, second):
                channel.update(depth=2, depth_min=2, depth_max=2, slots=4, held_bytes=64 << 20, needed_bytes=16 << 20,
                               would_save_bytes=32 << 20, buffer_bytes=8 << 20, buffers=8)
                channel["decision"].update(poolable=True, reason="poolable")
            for name in ("needed_bytes", "would_save_bytes"):
                second[name] = 0
            second["decision"].update(poolable=False, reason="too_few_steps")
            report["totals"].update(held_bytes=128 << 20, needed_bytes=16 << 20, would_save_bytes=32 << 20)
        self.change(os.path.join(self.reports_dir, "node_one-1000-900.json"), change)
        text = self.report(self.reports_dir).stdout
        self.assertRegex(text, r"(?m) 8 +- +- +8\.0 MiB +64\.0 MiB +- +-  too_few_steps$")
        self.assertRegex(text, r"(?m) 8 +2 +4 +8\.0 MiB +64\.0 MiB +16\.0 MiB +32\.0 MiB  poolable$")
        self.assertRegex(text, r"(?m)^total +128\.0 MiB +- +32\.0 MiB$")
        self.assertIn("\n=> pooling would save 32.0 MiB of the 64.0 MiB held for receive buffers; "
                      "undecided on 1 of 2 channels, with too few steps seen", text)

    def test_shadow_says_what_enforcing_would_have_missed(self):
        self.sample("shadow", "0")

        def change(report):
            for channel in report["channels"]:
                for key in ("buffer_bytes", "held_bytes", "would_save_bytes"):
                    channel[key] *= 2
            report["enforcement"]["devices"][0]["conflicts"]["violated"]["stale_access"] = 1
        self.change(os.path.join(self.reports_dir, "node_one-1000-900.json"), change)
        text = self.report(self.reports_dir).stdout
        self.assertIn("device 0: enforcing would have noticed too late 1 stale_access\n", text)
        self.assertIn("   Do not enforce it as it is: ", text)
        self.assertNotIn("Make a plan", text)

    def test_shadow_says_what_enforcing_would_have_prevented(self):
        self.sample("shadow", "0")
        result = self.report(self.reports_dir)
        self.assertIn("device 0: enforcing would have prevented 1 early_reuse\n", result.stdout)
        self.assertIn("device 0: enforcing would have let 3 uses wait for the one before (unordered_reuse)\n", result.stdout)
        self.assertIn("=> pooling would save 4.0 MiB", result.stdout)
        self.assertNotIn("physical", result.stdout)
        self.assertIsNone(json.loads(self.report("--json", self.reports_dir).stdout)["totals"]["enforcement"])

    def test_what_follows_where_memory_is_shared(self):
        self.sample("enforced", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")

        def set_(prevented=None, double_frees=0, reasons=(), planned=True):
            def change(report):
                enforcement = report["enforcement"]
                device = enforcement["devices"][0]
                enforcement["totals"]["double_frees"] = double_frees
                device["conflicts"]["prevented"] = {kind: 0 for kind in device["conflicts"]["prevented"]} | (prevented or {})
                device.update(planned=planned, reasons=[{"reason": word, "count": 1, "text": "Because."} for word in reasons])
            self.change(path, change)
            return self.report(self.reports_dir).stdout

        self.assertIn("   Nothing to do: memory is shared", set_(prevented={"unordered_reuse": 5}, reasons=["first_touch"]))
        self.assertIn("   Memory is shared; look at what was prevented", set_(prevented={"early_reuse": 1}))
        self.assertIn("   The plan does not fit this run (see the reasons above)", set_(reasons=["size_never_seen"]))
        self.assertIn("   Nothing to do: memory is shared", set_(reasons=["size_never_seen"], planned=False))
        self.assertIn("   Memory is shared; look at the program, which frees addresses twice.", set_(double_frees=2, reasons=["other_class"]))

    def test_two_runs_that_nothing_tells_apart(self):
        self.sample("prealloc", "0", "1")
        for path in glob.glob(self.reports_dir + "/*.json"):
            self.change(path, lambda report: report.update(communicators=[]))
        self.assertNotIn("several runs", self.report(self.reports_dir).stdout)
        self.change(path, lambda report: report["process"].update(rank={0: 1, 1: 0}[report["process"]["rank"]]))
        self.assertIn("note: has a rank that another process has: these are probably several runs", self.report(self.reports_dir).stdout)

        def launcher(report):
            report.update(channels=[])
            report["events"]["by_kind"].update(recv=0)
        self.change(path, launcher)  # of which nothing is summed up
        self.assertNotIn("several runs", self.report(self.reports_dir).stdout)

    def test_the_device_was_full(self):
        self.sample("empty", "0")
        path = glob.glob(self.reports_dir + "/*.json")[0]
        self.change(path, lambda report: report.update(allocations_refused={"count": 2, "last_bytes": 5 << 20}, state="finished"))
        self.assertIn("   The device had no memory for 5.0 MiB more. Make a plan of the job's schedule", self.report(path).stdout)
        self.change(path, lambda report: report.update(allocations_refused=None))
        self.assertNotIn("no memory for", self.report(path).stdout)

    def test_reasons_for_memory_of_their_own(self):
        self.sample("enforced", "0")
        reasons = [("more_in_flight", 2), ("first_touch", 5), ("graph_captured", 0), ("registered", 1), ("switched_off", 1)]
        self.change(os.path.join(self.reports_dir, "node_one-1000-900.json"), lambda report: report["enforcement"]["devices"][0].update(
            reasons=[{"reason": word, "count": count, "text": "Because."} for word, count in reasons]))
        text = self.report(self.reports_dir).stdout
        self.assertIn("device 0: 5 other allocations of these sizes have memory of their own (first_touch)\n", text)
        self.assertIn("device 0: buffers got memory of their own 2 times (more_in_flight), once (registered)\n", text)
        self.assertIn("device 0: all buffers got memory of their own (switched_off)\n", text)

    def test_reasons_that_name_no_buffer(self):
        self.sample("enforced", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        reasons = [("conflict", 1), ("out_of_memory", 3), ("backend_failed", 1), ("switched_off", 1), ("calls_unstoppable", 1)]
        self.change(path, lambda report: report["enforcement"]["devices"][0].update(
            reasons=[{"reason": word, "count": count, "text": "Because."} for word, count in reasons], fallback_pending=True))
        text = self.report(self.reports_dir).stdout
        for words in ("a buffer got memory of its own once (conflict)\n", "the device had no memory 3 times (out_of_memory)\n",
                      "the driver refused memory once (backend_failed)\n", "all buffers were to get memory of their own (switched_off)\n",
                      "each buffer has memory of its own until its first receive (calls_unstoppable)\n"):
            self.assertIn("rank 0, node/one:1000, device 0: " + words, text)

    def test_a_refusal_is_said(self):
        self.sample("refused", "0")
        self.assertIn("rank 0, node/one:1000: nothing is enforced: set RECVPOOL_PLAN_RANK (plan_rank_unknown)\n",
                      self.report(self.reports_dir).stdout)

    def test_hostile_reports(self):
        self.sample("violated", "0")
        good = os.path.join(self.reports_dir, "node_one-1000-900.json")
        with open(good) as file:
            text = file.read()
        evil = "\x1b]0;evil\x07\u009b31m\r\n\x7f"

        def poisoned(value):
            if isinstance(value, dict):
                return {key: poisoned(child) for key, child in value.items()}
            if isinstance(value, list):
                return [poisoned(child) for child in value]
            return evil if isinstance(value, str) else 2**63 - 1 if isinstance(value, int) else value

        report = json.loads(text)
        variants = [poisoned(report), dict(poisoned(report), process={"start_unix_seconds": 1e300, "rank": -5}),
                    dict(report, process={}, channels=[1, None, [], "x", {}, {"decision": 5, "depth": "x", "lifetimes": 3}],
                         totals={"held_bytes": -1}, enforcement=7),
                    dict(report, enforcement={"mode": "enforce", "totals": 1, "devices": [
                        1, None, {"classes": [3, {}, None], "conflicts": {"kept": [1, {}], "violated": {evil: 1}},
                                  "reasons": [None, {"reason": 5}, {"reason": evil, "text": evil, "count": 3}], "activation": {"duration_seconds": "x"}}]}),
                    dict(report, evidence=5, warnings=[1, {}, evil], communicators=[1, {"id": 5}])]
        for number, variant in enumerate(variants):
            variant.update(schema=report["schema"], schema_version=report["schema_version"])
            for arguments in ([], ["--json"]):
                path = os.path.join(self.folder, f"hostile-{number}.json")
                with open(path, "w") as file:
                    json.dump(variant, file)
                result = self.report(*arguments, path, path, good)
                self.assert_success(result)
                control = [c for c in result.stdout if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]
                self.assertEqual(control if not arguments else [], [])
                if arguments:
                    self.assertGreaterEqual(json.loads(result.stdout)["totals"]["held_bytes"], 0)

    def test_as_many_reports_as_a_large_job_leaves(self):
        self.sample("prealloc", *[str(rank) for rank in range(512)])
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertEqual(len(self.rows(result.stdout)), 1024)

    def test_unusable_files_are_named_and_skipped(self):
        self.sample("prealloc", "0")
        good = os.path.join(self.reports_dir, "node_one-1000-900.json")
        with open(good) as file:
            text = file.read()
        other = dict(json.loads(text), schema_version="2.0")
        parts = {key: value for key, value in json.loads(text).items() if key != "channels"}
        bad = {"torn.json": text[: len(text) // 2], "empty.json": "", "foreign.json": '{"schema": "prometheus"}',
               "list.json": "[]", "newer.json": json.dumps(other), "parts.json": json.dumps(parts)}
        for name, content in bad.items():
            with open(os.path.join(self.reports_dir, name), "w") as file:
                file.write(content)
        for name in (".hidden.json", "notes.txt", ".node_one-1000-900.json.tmp"):
            with open(os.path.join(self.reports_dir, name), "w") as file:
                file.write("not looked at")
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertEqual(len(self.rows(result.stdout)), 2)
        self.assertEqual(result.stderr.count("\n"), len(bad))
        for name in bad:
            self.assertIn(name, result.stderr)
        self.assertIn("another version", result.stderr)

    def test_two_runs_in_one_folder(self):
        self.sample("prealloc", "0", "1")
        for number, pid in (("0", 77), ("1", 78)):
            path = os.path.join(self.reports_dir, f"node_one-{1000 + int(number)}-900.json")
            with open(path) as file:
                report = json.load(file)
            report["process"]["pid"] = pid
            report["process"]["start_unix_seconds"] += 60
            report["communicators"][0]["communicator_id"] = "0x5"
            with open(os.path.join(self.reports_dir, f"later-{number}.json"), "w") as file:
                json.dump(report, file)
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertEqual([row[0] for row in self.rows(result.stdout)], ["0", "0", "1", "1"] * 2)
        self.assertIn("job 1: 2 processes", result.stdout)
        self.assertIn("job 2: 2 processes", result.stdout)
        document = json.loads(self.report("--json", self.reports_dir).stdout)
        self.assertEqual([[p["process"]["pid"] for p in job["processes"]] for job in document["jobs"]],
                         [[1000, 1001], [77, 78]])

    def test_text_cannot_steer_a_terminal(self):
        self.sample("prealloc", "0")
        path = os.path.join(self.reports_dir, "node_one-1000-900.json")
        with open(path) as file:
            report = json.load(file)
        report["process"]["host"] = "\x1b[2Jhost"
        report["warnings"] = ["one\ntwo\x07"]
        report["passive_reason"] = "\x1b]0;title\x07"
        with open(path, "w") as file:
            json.dump(report, file)
        result = self.report(self.reports_dir)
        self.assert_success(result)
        self.assertEqual([c for c in result.stdout if c < " " and c != "\n"], [])
        self.assertIn("one?two?", result.stdout)

    def test_no_report_is_an_error(self):
        os.mkdir(self.reports_dir)
        result = self.report(self.reports_dir)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assert_one_line(result.stderr)
        self.assertEqual(self.report(os.path.join(self.folder, "none")).returncode, 1)

    def test_wrong_option(self):
        result = self.report("--yaml")
        self.assertEqual(result.returncode, 2)
        self.assert_one_line(result.stderr)
        self.assertIn("--yaml", result.stderr)

    def test_full_stdout_is_an_error(self):
        self.sample("prealloc", "0")
        with open("/dev/full", "w") as full:
            import subprocess
            status = subprocess.run([RECVPOOL, "report", self.reports_dir], stdout=full,
                                    stderr=subprocess.PIPE).returncode
        self.assertEqual(status, 1)
