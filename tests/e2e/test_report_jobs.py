"""`recvpool report` on a folder with several jobs: which is which, and what is said or written of which."""

import json
import os
import re

import support
from support import RECVPOOL, run
from test_report_merge import MIB, MergeCase


class JobsCase(MergeCase):
    START = 1700000000.0

    def put_job(self, number, ranks=2, command="/opt/bin/train --layers 4", mode="observe", **process):
        """Processes of a job of their own: the later the higher its number."""
        for rank in range(ranks):
            report = {"mode": mode, **process.get("report", {})}
            self.put(f"job{number}-{rank}.json", rank=rank, pid=100 * number + rank, command=command, communicators=[f"0x{number}"],
                     start_unix_seconds=self.START + 60 * number, start_monotonic_ns=number,
                     **{**process, "report": report})

    def headings(self, *arguments):
        return [line for line in self.report(*arguments, self.reports_dir).stdout.splitlines() if re.match(r"job \d", line)]


class HeadingTest(JobsCase):
    def test_what_tells_jobs_apart(self):
        enforcing = {"enforcement": {"mode": "enforce", "devices": []}}
        self.put_job(1, host="node1")
        self.put_job(2, command="python3 -u train.py --lr 1", mode="enforce", report=enforcing, ranks=1, host="node2")
        self.put_job(3, command="x" * 300)
        self.put("job3-2.json", rank=2, pid=302, command="y", communicators=["0x3"], start_unix_seconds=self.START + 200, host="far")
        self.assertEqual(self.headings(), [
            "job 1: 2 processes from 2023-11-14 22:14:20Z: train --layers 4 on node1, observed",
            "job 2: 1 process from 2023-11-14 22:15:20Z: python3 -u train.py --lr 1 on node2, enforced",
            f"job 3: 3 processes from 2023-11-14 22:16:20Z: {'x' * 72} … on node/one and 1 other, observed"])
        titles = [(job["number"], job["title"]) for job in self.document()["jobs"]]
        self.assertEqual(titles, [(1, "train --layers 4 on node1, observed"), (2, "python3 -u train.py --lr 1 on node2, enforced"),
                                  (3, f"{'x' * 72} … on node/one and 1 other, observed")])

    def test_one_job_needs_none(self):
        self.put_job(1)
        self.assertEqual(self.headings(), [])

    def test_commands_of_any_kind(self):
        for command, shown in (("", "?"), ("/", "/"), ("/a/", "a/"), ("/usr/bin/python3 /a/b.py", "python3 /a/b.py"), ("é" * 50, "é" * 36 + " …"),
                               (7, "?"), (None, "?"), ("a\x1b[31mb\nc", "a?[31mb?c"), ("a " + "b" * 69 + " c", "a " + "b" * 69 + " …"),
                               ("a " + "b" * 71 + " c", "a …")):
            self.put_job(1, command=command)
            self.put_job(2)
            self.assertIn(f": {shown} on node/one, observed", self.headings()[0], command)
            job = self.document()["jobs"][0]
            self.assertTrue(job["title"].endswith(" on node/one, observed"), job["title"])

    def test_each_job_has_its_own_notes(self):
        self.put_job(1, report={"warnings": ["only the first", "both"]})
        self.put_job(2, report={"warnings": ["both"]})
        first, second = re.split(r"^job 2:.*$", self.report(self.reports_dir).stdout, flags=re.M)
        self.assertIn("note: only the first (2 processes)\n", first)
        self.assertIn("note: both (2 processes)\n", first)
        self.assertNotIn("only the first", second)
        self.assertIn("note: both (2 processes)\n", second)
        self.assertNotIn("4 processes", first + second)


class AdviceTest(JobsCase):
    """What is advised can be done."""

    def large(self, report):
        for channel in report["channels"]:
            channel.update(buffer_bytes=4 * MIB, held_bytes=16 * MIB, would_save_bytes=8 * MIB)

    def next_steps(self, *arguments):
        return [job["next_step"] for job in self.document(*arguments)["jobs"]]

    def test_a_plan_of_which_job(self):
        self.put_job(1)
        self.change_reports(self.large)
        self.assertEqual(self.next_steps(), ["Make a plan with recvpool report --plan FILE DIR, and run with recvpool run --mode enforce "
                                             "--plan FILE."])
        self.put_job(2)
        self.change_reports(self.large)
        wanted = ["Make a plan with recvpool report --job 1 --plan FILE DIR, and run with recvpool run --mode enforce --plan FILE.",
                  "Make a plan with recvpool report --job 2 --plan FILE DIR, and run with recvpool run --mode enforce --plan FILE."]
        self.assertEqual(self.next_steps(), wanted)
        self.assertEqual(self.next_steps("--job", "2"), wanted[1:])

    def test_no_plan_as_long_as_some_is_undecided(self):
        self.put_job(1)

        def undecided(report):
            self.large(report)
            report["channels"][0]["decision"]["reason"] = "too_few_steps"
        self.change_reports(undecided)
        self.assertEqual(self.next_steps(), ["Run it again for some more steps: two whole ones have to be seen."])
        self.change_reports(lambda report: report.update(state="running"))
        self.assertEqual(self.next_steps(), ["Let the job train for two more steps, and ask again."])
        gone = support.incarnation_of_ended()
        self.change_reports(lambda report: report["process"].update(gone, start_monotonic_ns=report["process"]["rank"]))
        self.assertEqual(self.next_steps(), ["Run it again for some more steps: two whole ones have to be seen."])


class ChoiceTest(JobsCase):
    def setUp(self):
        super().setUp()
        self.put_job(1, ranks=1, command="first")
        self.put_job(2, ranks=2, command="second")
        self.put_job(3, ranks=3, command="third")

    def test_table_and_document(self):
        for argument, number, command in (("1", 1, "first"), ("2", 2, "second"), ("3", 3, "third"), ("last", 3, "third")):
            (heading,) = self.headings("--job", argument)
            self.assertTrue(heading.startswith(f"job {number}: {number} process"), heading)
            document = self.document("--job", argument)
            self.assertEqual([(job["number"], len(job["processes"])) for job in document["jobs"]], [(number, number)])
            self.assertIn(command, document["jobs"][0]["title"])
            self.assertEqual(document["totals"], document["jobs"][0]["totals"])
            self.assertEqual([e.message for e in support.validator("job.schema.json").iter_errors(document)], [])

    def test_page(self):
        page = os.path.join(self.folder, "page.html")
        for arguments, numbers in (((), [1, 2, 3]), (("--job", "2"), [2])):
            self.assert_success(self.report("--html", page, *arguments, self.reports_dir))
            with open(page) as file:
                overview = json.loads(re.findall(r'id="overview">(.*?)</script>', file.read(), re.S)[0])
            self.assertEqual([e.message for e in support.validator("overview.schema.json").iter_errors(overview)], [])
            self.assertEqual([job["number"] for job in overview["jobs"]], numbers)

    def trace(self, *arguments):
        """Its processes, what it says of its job, and what was said on stderr."""
        path = os.path.join(self.folder, "trace.json")
        result = self.report("--json", "--trace", path, *arguments, self.reports_dir)
        self.assert_success(result)
        json.loads(result.stdout)
        with open(path) as file:
            document = json.load(file)
        names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
        self.assertEqual(len({event["pid"] for event in document["traceEvents"]}), len(names))
        other = document["otherData"]
        self.assertGreater(other["zero_unix_seconds"], self.START + 60 * other["job_number"] - 1)
        return names, (other["job_number"], other["job"].split()[0]), result.stderr

    def test_a_trace_is_of_one_job(self):
        third = [f"rank {rank} (node/one:{300 + rank})" for rank in range(3)]
        names, job, said = self.trace()
        self.assertEqual((names, job), (third, (3, "third")))
        self.assert_one_line(said)
        self.assertIn("the trace is of job 3, the last one with receives of 3 jobs; --job N takes another", said)
        self.assertEqual(self.trace("--job", "last"), (third, (3, "third"), ""))
        self.assertEqual(self.trace("--job", "1"), (["rank 0 (node/one:100)"], (1, "first"), ""))

    def test_a_trace_is_of_a_job_with_receives(self):
        """And not of a process that was killed before it had any."""
        self.put("late.json", pid=9, rank=0, communicators=[], start_unix_seconds=self.START + 1000, report={"channels": []})
        names, job, said = self.trace()
        self.assertEqual((len(names), job), (3, (3, "third")))
        self.assertIn("the trace is of job 3, the last one with receives of 4 jobs", said)
        for name in os.listdir(self.reports_dir):
            if name != "late.json":
                os.unlink(self.path(name))
        self.put("later.json", pid=10, rank=0, communicators=["0x7"], start_unix_seconds=self.START + 2000, report={"channels": []})
        path = os.path.join(self.folder, "trace.json")
        self.assert_success(self.report("--trace", path, self.reports_dir))
        with open(path) as file:
            self.assertEqual(json.load(file)["otherData"]["job_number"], 2)

    def test_a_plan_is_of_the_job_that_is_named(self):
        path = os.path.join(self.folder, "plan.json")
        result = self.report("--plan", path, self.reports_dir)
        self.assertEqual(result.returncode, 1)
        self.assert_one_line(result.stderr)
        self.assertIn("reports of 3 jobs, and a plan is of one", result.stderr)
        self.assertIn("--job N", result.stderr)
        self.assertFalse(os.path.exists(path))
        self.change_reports(lambda report: [life.update(accesses=1) for c in report["channels"] for life in c["lifetimes"]])
        self.assert_success(self.report("--plan", path, "--job", "2", self.reports_dir))
        with open(path) as file:
            self.assertEqual(len(json.load(file)["ranks"]), 2)

    def test_jobs_that_are_not_there(self):
        for argument, status, words in (("4", 1, "there is no job 4; there are 3, numbered from 1"), ("0", 2, "from 1 on, or last"),
                                        ("-1", 2, "from 1 on, or last"), ("x", 2, "from 1 on, or last"), ("", 2, "from 1 on, or last"),
                                        ("1x", 2, "from 1 on, or last"), ("99999999999999999999", 2, "from 1 on, or last")):
            result = run([RECVPOOL, "report", "--job", argument, self.reports_dir])
            self.assertEqual((result.returncode, result.stdout), (status, ""), argument)
            self.assert_one_line(result.stderr)
            self.assertIn(words, result.stderr)


class PlanRankTest(JobsCase):
    """A rank of a plan that several processes were told to take."""

    def noted(self, *rows):
        """Which ranks of the plan are said to be taken twice; a row is (rank of the plan, [(communicator, rank, peer)])."""
        for name in os.listdir(self.reports_dir):
            os.unlink(self.path(name))
        for rank, (plan_rank, places) in enumerate(rows):
            report = {"mode": "enforce", "enforcement": {"mode": "enforce", "devices": []},
                      "configuration": dict(self.model["configuration"], plan_rank=plan_rank)}
            report["communicators"] = [dict(self.model["communicators"][0], communicator_id=id, rank=own) for id, own, _ in places]
            report["channels"] = [dict(self.model["channels"][0], communicator_id=id, peer=peer) for id, _, peer in places]
            self.put(f"{rank}.json", report=report, rank=rank, pid=rank + 1)
        lines = self.report(self.reports_dir).stdout.splitlines()
        return [line.removeprefix("note: took rank ").replace(" of the plan, as did a process that it receives from: --plan-rank is for "
                "one process; have the launcher set RECVPOOL_PLAN_RANK for each", "") for line in lines if "note: took rank" in line]

    def test_who_takes_whose(self):
        pair = ([("0xa", 0, 1)], [("0xa", 1, 0)])
        other = ([("0xb", 0, 1)], [("0xb", 1, 0)])
        self.assertEqual(self.noted((0, pair[0]), (0, pair[1])), ["0 (2 processes)"])
        self.assertEqual(self.noted((0, pair[0]), (1, pair[1])), [])
        self.assertEqual(self.noted((0, pair[0]), (1, pair[1]), (0, other[0]), (1, other[1])), [], "replicas")
        self.assertEqual(self.noted((0, pair[0]), (0, pair[1]), (1, other[0]), (1, other[1])), ["0 (2 processes)", "1 (2 processes)"])
        self.assertEqual(self.noted((None, pair[0]), (None, pair[1])), [])
        self.assertEqual(self.noted((0, [("0xa", 0, 0)]), (1, [("0xa", 1, 0)])), [], "to itself")

    def test_of_any_kind(self):
        self.assertEqual(self.noted((0, [("x" * 100, 0, 1)]), (0, [(None, 1, 0)]), ("0", [("0xa", "y", None)]), (-1, [("0xa", 1, 0)])), [])
