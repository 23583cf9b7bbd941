"""The report writer's output is what the schema says, and the schema refuses what is wrong."""

import copy
import glob
import hashlib
import json
import os
import re

import support
from support import PROGRAMS, run


def reach(report, path):
    for step in path:
        report = report[step]
    return report


def put(*path):
    """A change that sets what is at the path to the last argument."""
    *where, key, value = path

    def change(report):
        reach(report, where)[key] = value
    return change


def remove(*path):
    *where, key = path
    return lambda report: reach(report, where).pop(key)


# What each document says its version is, and a fingerprint of the members and words that its schema has. Whoever adds some raises
# the minor number, whoever takes away or changes any the major one, here and where the document is made.
VERSIONS = {
    "doctor": ("1.0", "ab01ecab71941ad9"),
    "gpu": ("1.0", "45df5b34e3af005e"),
    "job": ("1.5", "85150dec434ba296"),
    "overview": ("1.3", "f14fe7e77cd83676"),
    "plan": ("1.2", "be1418f0d698afc6"),
    "processes": ("1.1", "8d8b0dda815260bc"),
    "report": ("1.3", "dab0775b42595c36"),
}


def fingerprint(name):
    """Of all members and words of a schema; what descriptions say does not count."""
    found = set()

    def walk(node, path):
        if isinstance(node, list):
            for inner in node:
                walk(inner, path)
        elif isinstance(node, dict):
            found.update(f"{path} = {word}" for word in node.get("enum", []))
            for key, inner in node.items():
                if key in ("properties", "$defs"):
                    for member, schema in inner.items():
                        found.add(f"{path}/{member}")
                        walk(schema, f"{path}/{member}")
                elif key not in ("enum", "const", "description"):
                    walk(inner, path)
    walk(support.load_schema(f"{name}.schema.json"), "")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:16]


class VersionTest(support.TestCase):
    def test_members_and_words_change_with_the_version(self):
        self.assertEqual({name: (version, fingerprint(name)) for name, (version, _) in VERSIONS.items()}, VERSIONS,
                         "the schema has changed: raise the version, then note it here")
        names = [os.path.basename(path).split(".")[0] for path in glob.glob(os.path.join(support.SOURCE, "dashboards", "schema", "*.json"))]
        self.assertEqual(sorted(names), sorted(VERSIONS))

    def test_documents_say_that_version(self):
        self.sample("enforced", 1)
        page = os.path.join(self.folder, "page.html")
        job = self.document("report", "--json", "--html", page, self.reports_dir)
        with open(page) as file:
            overview = json.loads(re.findall(r'id="overview">(.*?)</script>', file.read(), re.S)[0])
        found = {"report": job["jobs"][0]["processes"][0], "job": job, "overview": overview, "doctor": self.document("doctor", "--json")}
        if "plan" in run([support.RECVPOOL, "--help"]).stdout:
            found["plan"] = self.document("plan", "--schedule", "1f1b", "--stages", "2", "--microbatches", "4", "--json")
        for name, document in found.items():
            self.assertEqual((document["schema"], document["schema_version"]), (f"recvpool.{name}", VERSIONS[name][0]))

    def document(self, *command):
        return json.loads(run([support.RECVPOOL, *command]).stdout)


class SchemaTest(support.TestCase):
    def sample(self, style, rank="1"):
        self.assert_success(run([os.path.join(PROGRAMS, "sample_report"), self.reports_dir, rank, style]))
        reports = self.read_reports()
        self.assertEqual(len(reports), 1)
        return reports[0]

    def test_every_style_is_valid(self):
        for style in ("prealloc", "gpipe", "just_in_time", "empty", "enforced", "freed", "violated", "shadow", "refused"):
            with self.subTest(style):
                self.reports_dir = os.path.join(self.folder, style)
                self.sample(style)

    def test_wrong_reports_are_refused(self):
        good = self.sample("prealloc")

        def without(key):
            return lambda r: r.pop(key)

        changes = [without(key) for key in good]
        changes += [put("extra", 1), put("schema", "other"), put("schema_version", "2.0"), put("mode", "enforced"),
                    put("channels", 0, "direction", "forward"), put("channels", 0, "depth", -1),
                    put("channels", 0, "buffer_bytes", "1 MiB"), put("channels", 0, "communicator", "abc"),
                    put("channels", 0, "lifetimes", 0, "address", 12345),
                    put("channels", 0, "lifetimes", 0, "posted_monotonic_ns", 1.5),
                    put("channels", 0, "decision", "reason", "because"), put("process", "pid", 0),
                    put("evidence", 0, "active", "yes"), put("events", "dropped", "more", 0)]
        self.assert_all_refused(good, changes)

    def assert_all_refused(self, good, changes):
        check = support.validator("report.schema.json")
        for index, change in enumerate(changes):
            bad = copy.deepcopy(good)
            change(bad)
            self.assertFalse(check.is_valid(bad), f"change {index} was not noticed")
        self.assertTrue(check.is_valid(good))

    def test_wrong_enforcement_is_refused(self):
        good = self.sample("violated")
        nodes = [("enforcement",), ("enforcement", "totals"), ("enforcement", "milestones"), ("enforcement", "switched_off"),
                 ("enforcement", "devices", 0), ("enforcement", "devices", 0, "activation"),
                 ("enforcement", "devices", 0, "classes", 0), ("enforcement", "devices", 0, "conflicts"),
                 ("enforcement", "devices", 0, "conflicts", "prevented"),
                 ("enforcement", "devices", 0, "conflicts", "violated"),
                 ("enforcement", "devices", 0, "conflicts", "kept", 0),
                 ("enforcement", "devices", 0, "conflicts", "kept", 1, "earlier"),
                 ("enforcement", "devices", 0, "conflicts", "kept", 1, "later"),
                 ("enforcement", "devices", 0, "reasons", 0), ("enforcement", "devices", 0, "order"),
                 ("enforcement", "devices", 0, "memory"), ("enforcement", "devices", 1, "refused"),
                 ("enforcement", "devices", 1, "idle"), ("configuration",)]
        changes = [put("enforcement", "mode", "maybe"), put("enforcement", "devices", 0, "classes", 0, "slots", 0),
                   put("enforcement", "devices", 0, "conflicts", "kept", 0, "kind", "none"),
                   put("enforcement", "devices", 0, "reasons", 0, "count", 0),
                   put("enforcement", "devices", 1, "refused", "reason", "Two Words")]
        for node in nodes:
            changes.append(put(*node, "invented", 1))
            changes += [remove(*node, key) for key in reach(good, node)]
        self.assert_all_refused(good, changes)

    def test_a_report_of_version_1_0_is_valid(self):
        old = self.sample("prealloc")
        old["schema_version"] = "1.0"
        del old["enforcement"]
        old["configuration"] = {key: old["configuration"][key] for key in ("slack_slots", "min_bytes")}
        self.assertTrue(support.validator("report.schema.json").is_valid(old))

    def test_a_report_of_version_1_1_is_valid(self):
        old = self.sample("freed")
        old["schema_version"] = "1.1"
        for device in old["enforcement"]["devices"]:
            del device["last_bindings_dropped"], device["conflicts"]["unclear"]
            for owner in device["classes"]:
                del owner["last_bindings"]
        self.assertTrue(support.validator("report.schema.json").is_valid(old))
        old["schema_version"] = "1.2"
        self.assertFalse(support.validator("report.schema.json").is_valid(old))

    def test_nothing_is_saved_in_shadow(self):
        enforcement = self.sample("shadow")["enforcement"]
        device = enforcement["devices"][0]
        self.assertEqual(device["classes"][0]["last_bindings"], [])
        for account in (enforcement["totals"], device, device["classes"][0]):
            for key in ("physical_bytes", "physical_peak_bytes", "one_to_one_bytes", "one_to_one_peak_bytes",
                        "requested_bytes", "requested_peak_bytes", "saved_bytes", "saved_peak_bytes"):
                self.assertIsNone(account[key])
        self.assertIsNone(device["memory"])

    def test_enforcement_arrives_unchanged(self):
        enforcement = self.sample("violated")["enforcement"]
        totals, device = enforcement["totals"], enforcement["devices"][0]
        mib = 1 << 20
        self.assertEqual((totals["physical_peak_bytes"], totals["minimum_bytes"], totals["saved_peak_bytes"]),
                         (10 * mib, 8 * mib, 6 * mib))
        self.assertEqual((totals["prevented"], totals["violations"], totals["double_frees"]), (4, 1, 1))
        self.assertEqual(device["activation"], {"step": 2, "at_monotonic_ns": 2900, "at_seconds": 2e-06,
                                                "duration_seconds": 0.0015})
        self.assertEqual(device["wait_seconds"], 0.00025)
        self.assertEqual(enforcement["milestones"], {"placed": 70, "failed": 1, "waits": 5, "waits_for_all": 2})
        self.assertEqual(device["saved_bytes"], -1)
        self.assertEqual(device["conflicts"]["prevented"]["unordered_reuse"], 3)
        self.assertEqual(device["conflicts"]["kept_dropped"], 3)
        stale = device["conflicts"]["kept"][1]
        self.assertEqual((stale["kind"], stale["prevented"], stale["slot"]), ("stale_access", False, 1))
        self.assertEqual(stale["earlier"], {"buffer": 3, "address": "0x7f0000300000", "microbatch": 3, "step": 2,
                                            "stream": "0x77", "call": "recv", "function": None, "sequence": 41})
        self.assertEqual((stale["later"]["function"], stale["later"]["call"]), ("_Z8backwardPf", "kernel"))
        self.assertEqual([r["reason"] for r in device["reasons"]], ["more_in_flight"])
        self.assertEqual(enforcement["devices"][1]["refused"],
                         {"reason": "refused", "text": "the driver has no virtual memory management"})
        self.assertEqual(enforcement["devices"][1]["idle"]["reason"], "no_pattern")
        self.assertEqual(enforcement["switched_off"]["took_effect_monotonic_ns"], 4000)

    def test_a_refusal_has_a_word_and_a_sentence(self):
        enforcement = self.sample("refused")["enforcement"]
        self.assertEqual(enforcement["refused"], {"reason": "plan_rank_unknown", "text": "set RECVPOOL_PLAN_RANK"})
        self.assertIsNone(enforcement["switched_off"])

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
