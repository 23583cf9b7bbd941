"""What the checks found: collected one by one, each bounded in time, written as gpu-report.json and as a table."""
import json
import os
import time
import traceback

SCHEMA_VERSION = "1.0"
WORDS = ("pass", "fail", "skipped", "measured")
LINES_KEPT = 40  # of what a failed check says


class Skip(Exception):
    """Why a check cannot be made here."""


class Fail(Exception):
    """Why a check failed, where going on makes no sense."""


class Check:
    """One check while it is made."""

    def __init__(self, name, question, limit_seconds):
        self.name, self.question = name, question
        self.deadline = time.monotonic() + limit_seconds
        self.values, self.problems, self.expected = [], [], 0

    def left_seconds(self):
        """What is left of its time; at least one second, so that a command still ends by its own timeout."""
        return max(1.0, self.deadline - time.monotonic())

    def measure(self, name, value, unit):
        self.values.append({"name": name, "value": value, "unit": unit})

    def expect(self, condition, problem):
        """Notes a problem where the condition does not hold, and goes on."""
        self.expected += 1
        if not condition:
            self.problems.append(problem)
        return bool(condition)

    def expect_equal(self, found, wanted, what):
        return self.expect(found == wanted, f"{what}: {found!r}, expected {wanted!r}")

    def expect_none(self, problems):
        """Notes each of these lines."""
        self.expected += 1
        self.problems += problems


class Recorder:
    """All checks. `group_seconds` says how long those of one group may take together, whose names begin alike up to the first
    dot; `patience` is a factor of all times: a simulated device on a busy machine is slow. `only` are beginnings of names,
    empty: all of them."""

    def __init__(self, path, machine, simulated, group_seconds, patience=1, only=()):
        self.path, self.machine, self.simulated, self.only = path, machine, simulated, tuple(only)
        self.begun = time.monotonic()
        self.left_seconds = {group: patience * seconds for group, seconds in group_seconds.items()}
        self.patience = patience
        self.checks = []
        self.impossible = None  # why no check can be made
        self.started_unix_seconds = time.time()

    def wanted(self, name):
        return not self.only or name.startswith(self.only)

    def run(self, name, question, limit_seconds, function, *arguments, **named):
        """Makes a check by function(check, *arguments, **named), unless there is no time left or nothing can be checked
        here at all. Its exceptions end here."""
        if not self.wanted(name):
            return None
        group = name.partition(".")[0]
        left = self.left_seconds[group]
        check = Check(name, question, min(self.patience * limit_seconds, left))
        begun, result, why = time.monotonic(), None, None
        try:
            if self.impossible:
                raise Skip(self.impossible)
            if left < 1:
                raise Skip(f"the time of all checks of {group} was used up by those before it")
            function(check, *arguments, **named)
        except Skip as reason:
            result, why = "skipped", str(reason)
        except Fail as reason:
            result, why = "fail", str(reason)
        except Exception as error:  # a fault of a check must not keep the others from being made
            result, why = "fail", "".join(traceback.format_exception_only(type(error), error)).strip()
            check.problems += traceback.format_exc().splitlines()[-6:]
        self.left_seconds[group] -= time.monotonic() - begun
        if result is None:
            result = "fail" if check.problems else "pass" if check.expected else "measured"
        self.add(check, result, why, time.monotonic() - begun)
        return result

    def add(self, check, result, why, seconds):
        problems = check.problems if result == "fail" else []
        if result == "fail" and not why:
            why = problems[0]
        self.checks.append({"name": check.name, "question": check.question, "result": result, "why": why,
                            "seconds": round(seconds, 3), "values": check.values if result != "skipped" else [],
                            "problems": problems[:LINES_KEPT], "problems_dropped": max(0, len(problems) - LINES_KEPT)})
        print(f"{result:9} {check.name}  ({seconds:.1f} s)" + (f": {why}" if why else ""), flush=True)
        self.write(complete=False)

    def counts(self):
        return {word: sum(check["result"] == word for check in self.checks) for word in WORDS}

    def document(self, complete):
        return {"schema": "recvpool.gpu", "schema_version": SCHEMA_VERSION, "simulated": self.simulated, "complete": complete,
                "started_unix_seconds": self.started_unix_seconds,
                "seconds": round(time.monotonic() - self.begun, 3), "machine": self.machine, "counts": self.counts(),
                "checks": self.checks}

    def write(self, complete):
        """Replaces the file when it is whole, after every check: a run that is ended leaves what it found."""
        with open(self.path + ".part", "w") as file:
            json.dump(self.document(complete), file, indent=1)
            file.write("\n")
        os.replace(self.path + ".part", self.path)

    def finish(self):
        self.write(complete=True)

    def table(self):
        """Lines for people."""
        lines = [f"{'check':34} {'result':9} what"]
        for check in self.checks:
            told = [text(value) for value in check["values"]]
            lines.append(f"{check['name']:34} {check['result']:9} {check['why'] or check['question']}")
            lines += [f"{'':45}{line}" for line in told]
        counts = self.counts()
        lines.append(", ".join(f"{counts[word]} {word}" for word in WORDS) +
                     (" (on the simulated device: nothing here was seen on a GPU)" if self.simulated else ""))
        return lines


def text(value):
    number = value["value"]
    shown = f"{number:.4g}" if isinstance(number, float) else str(number)
    return f"{value['name']} = {shown}{' ' + value['unit'] if value['unit'] else ''}"
