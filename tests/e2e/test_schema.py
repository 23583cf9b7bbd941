"""The report writer's output is what the schema says, and the schema refuses what is wrong."""

import copy
import json
import os

import support
from support import PROGRAMS, run


class SchemaTest(support.TestCase):
    def sample(self, style, rank="1"):
        self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), self.reports_dir, rank, style]))
        reports = self.read_reports()
        self.assertEqual(len(reports), 1)
        return reports[0]

    def test_every_style_is_valid(self):
        for style in ("prealloc", "gpipe", "just_in_time", "empty"):
            with self.subTest(style):
                self.reports_dir = os.path.join(self.folder, style)
                self.sample(style)

    def test_wrong_reports_are_refused(self):
        good = self.sample("prealloc")
        check = support.validator("report.schema.json")

        def without(key):
            return lambda r: r.pop(key)

        def put(*path):
            *where, key, value = path

            def change(report):
                for step in where:
                    report = report[step]
                report[key] = value
            return change

        changes = [without(key) for key in good]
        changes += [put("extra", 1), put("schema", "other"), put("schema_version", "2.0"), put("mode", "enforce"),
                    put("channels", 0, "direction", "forward"), put("channels", 0, "depth", -1),
                    put("channels", 0, "buffer_bytes", "1 MiB"), put("channels", 0, "communicator", "abc"),
                    put("channels", 0, "lifetimes", 0, "address", 12345),
                    put("channels", 0, "lifetimes", 0, "posted_monotonic_ns", 1.5),
                    put("channels", 0, "decision", "reason", "because"), put("process", "pid", 0),
                    put("evidence", 0, "active", "yes"), put("events", "dropped", "more", 0)]
        for index, change in enumerate(changes):
            bad = copy.deepcopy(good)
            change(bad)
            self.assertFalse(check.is_valid(bad), f"change {index} was not noticed")
        self.assertTrue(check.is_valid(good))

    def test_text_that_is_not_utf8_is_escaped(self):
        report = self.sample("prealloc")
        self.assertEqual(report["process"]["command"],
                         "train \u00e9 \\xff \\xc0\\xaf \\xed\\xa0\\x80 \x1b[0m \\xe2\\x82")
        self.assertEqual(report["versions"]["nccl"]["path"], "/opt/lib\\xfe/libnccl.so.2")
        self.assertEqual(report["evidence"][1]["reason"], "held by \U0001f422 another")

    def test_values_arrive_unchanged(self):
        report = self.sample("gpipe")
        channel = report["channels"][0]
        lifetime = channel["lifetimes"][2]
        self.assertEqual((channel["buffers"], channel["depth"], channel["slots"]), (4, 4, 4))
        self.assertEqual(channel["decision"]["reason"], "unbounded_depth")
        self.assertEqual(channel["communicator_id"], "0x123456789abcdef")
        self.assertEqual(lifetime["address"], "0x7f0000200000")
        self.assertEqual(lifetime["posted_monotonic_ns"], 1200)
        self.assertAlmostEqual(lifetime["posted_seconds"], 300e-9)
        self.assertEqual(lifetime["last_access_kernel"], "_Z8backwardPf")
        self.assertEqual(report["agent_cost"]["callbacks"], 2**63 - 1)  # as far as JSON integers go here
        self.assertIsNone(report["process"]["local_rank"])

    def test_file_name_is_safe(self):
        self.sample("empty")
        self.assertEqual(os.listdir(self.reports_dir), ["node_one-1001-900.json"])

    def test_job_document(self):
        for rank in ("0", "1"):
            self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), self.reports_dir, rank, "prealloc"]))
        with open(os.path.join(self.reports_dir, "torn.json"), "w") as file:
            file.write('{"schema": "recv')
        result = run([support.RECVPOOL, "report", "--json", self.reports_dir])
        self.assert_success(result)
        document = json.loads(result.stdout)
        support.validator("job.schema.json").validate(document)
        document["jobs"][0]["processes"][0]["mode"] = "bogus"
        self.assertFalse(support.validator("job.schema.json").is_valid(document))
