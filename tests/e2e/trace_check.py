"""What must hold of a file of Chrome trace events, whoever wrote it: the rules of the documented format (Trace Event Format), and
where it leaves a choice, what readers need: that slices of one thread lie side by side or inside of each other, that begins and ends
pair, that ids mean one thing, that what comes later in time comes later in the file."""

import collections
import json
import math


class Broken(Exception):
    pass


def need(condition, what, event):
    if not condition:
        raise Broken(f"{what}: {event}")


def unique(pairs):
    members = dict(pairs)
    need(len(members) == len(pairs), "members that are there once", pairs)
    return members


def refuse_constant(word):
    raise Broken(f"numbers that JSON has: {word}")


def loads(text):
    """The document; raises Broken where the text is not strict JSON."""
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse_constant)
    except ValueError as error:
        raise Broken(f"JSON: {error}") from error


def load(path):
    with open(path, encoding="utf-8") as file:
        return loads(file.read())


# What each kind has besides name, ph, pid and tid.
KINDS = {"M": {"args"}, "B": {"ts"}, "E": {"ts"}, "X": {"ts", "dur"}, "i": {"ts", "s"}, "C": {"ts", "args"},
         "b": {"ts", "cat", "id"}, "n": {"ts", "cat", "id"}, "e": {"ts", "cat", "id"},
         "s": {"ts", "cat", "id"}, "t": {"ts", "cat", "id"}, "f": {"ts", "cat", "id"}}
METADATA = {"process_name": ("name", str), "process_sort_index": ("sort_index", int), "process_labels": ("labels", str),
            "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
HALF_NS = 5e-4  # in microseconds


def is_time(value):
    """Finite, not before the first, and of whole nanoseconds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0 and \
        abs(value * 1e3 - round(value * 1e3)) < 1e-3 + value * 1e-12


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def check_event(event):
    """The members that every kind of event has."""
    need(isinstance(event, dict) and event.get("ph") in KINDS, "a kind that is known", event)
    for member in {"name", "ph", "pid", "tid"} | KINDS[event["ph"]]:
        need(member in event, f"the member {member}", event)
    need(isinstance(event["name"], str) and event["name"], "a name", event)
    need(is_whole(event["pid"]) and is_whole(event["tid"]) and event["pid"] >= 0 and event["tid"] >= 0, "numbers of process and thread", event)
    need("ts" not in event or is_time(event["ts"]), "a time", event)
    need("dur" not in event or is_time(event["dur"]), "no slice that runs backwards", event)
    need("cat" not in event or (isinstance(event["cat"], str) and event["cat"]), "a category", event)
    need("id" not in event or isinstance(event["id"], str) or is_whole(event["id"]), "an id", event)
    need("args" not in event or isinstance(event["args"], dict), "arguments by name", event)
    if event["ph"] == "i":
        need(event["s"] in ("g", "p", "t"), "a scope", event)
    if event["ph"] == "C":
        need(event["args"] and all(is_whole(v) and v >= 0 for v in event["args"].values()), "counts", event)
    if event["ph"] == "M":
        need(event["name"] in METADATA, "metadata that is known", event)
        member, kind = METADATA[event["name"]]
        need(list(event["args"]) == [member] and isinstance(event["args"][member], kind), f"its {member}", event)


def slices_of(events):
    """Asynchronous slices by category and id, outermost first; every begin has its end, inside of the one around it."""
    found, open_ = collections.defaultdict(list), collections.defaultdict(list)
    for event in events:
        key = (event.get("cat"), event.get("id"))
        if event["ph"] == "b":
            entry = {"event": event, "begin": event["ts"], "depth": len(open_[key])}
            need(key not in found or open_[key], "an id that is used once", event)
            found[key].append(entry)
            open_[key].append(entry)
        elif event["ph"] == "n":
            need(open_[key], "an instant inside of a slice", event)
        elif event["ph"] == "e":
            need(open_[key], "an end that has a begin", event)
            entry = open_[key].pop()
            need(entry["event"]["name"] == event["name"] and entry["event"]["pid"] == event["pid"], "the end of the last begun", event)
            entry["end"] = event["ts"]
            need(entry["end"] >= entry["begin"], "no slice that runs backwards", event)
    need(not any(open_.values()), "an end for every begin", open_)
    return found


def check_metadata(events):
    """Each process and each thread is named once, before its first event, and by no other process."""
    said, owners, processes = set(), {}, set()
    for event in events:
        if event["ph"] == "M":
            key = (event["name"], event["pid"], event["tid"] if event["name"].startswith("thread") else None)
            need(key not in said, "metadata that is said once", event)
            said.add(key)
        elif event["tid"]:
            need(("thread_name", event["pid"], event["tid"]) in said, "a track with a name", event)
        if event["ph"] != "M" and event["pid"]:
            need(("process_name", event["pid"], None) in said, "a process with a name", event)
            processes.add(event["pid"])
        if event["tid"]:
            need(owners.setdefault(event["tid"], event["pid"]) == event["pid"], "a thread of one process", event)
    need(not processes & set(owners), "a thread that no reader takes for the main one of a process", processes & set(owners))


def check_nesting(events):
    """Slices of one thread, as B and E or as X, lie side by side or inside of each other."""
    open_ = collections.defaultdict(list)  # by thread: (end or None, name)
    for event in events:
        stack = open_[event["pid"], event["tid"]]
        if event["ph"] not in "BEX":
            continue
        need(event["tid"], "a slice on a thread", event)
        while stack and stack[-1][0] is not None and stack[-1][0] <= event["ts"] + HALF_NS:
            stack.pop()
        if event["ph"] == "E":
            need(stack and stack[-1] == (None, event["name"]), "the end of the last begun", event)
            stack.pop()
            continue
        end = event["ts"] + event["dur"] if event["ph"] == "X" else None
        around = [entry[0] for entry in stack if entry[0] is not None]
        need(end is None or not around or end <= min(around) + HALF_NS, "no overlap on a track", event)
        stack.append((end, event["name"]))
    need(not [entry for stack in open_.values() for entry in stack if entry[0] is None], "an end for every begin", open_)


def check_flows(events):
    """A flow starts once, then goes on, and ends once."""
    state = {}
    for event in events:
        key = (event.get("cat"), event.get("id"), event["name"])
        if event["ph"] == "s":
            need(key not in state, "a flow that starts once", event)
            state[key] = "open"
        elif event["ph"] in "tf":
            need(state.get(key) == "open", "a flow that has started", event)
            state[key] = "over" if event["ph"] == "f" else "open"
    need("open" not in state.values(), "an end for every flow", state)


def check_counters(events):
    """A counter has the same series each time."""
    series = {}
    for event in events:
        if event["ph"] == "C":
            key = (event["pid"], event["name"], event.get("id"))
            need(series.setdefault(key, set(event["args"])) == set(event["args"]), "a counter that keeps its series", event)


def check(document):
    """Raises Broken; returns the asynchronous slices by id."""
    need(isinstance(document, dict) and isinstance(document.get("traceEvents"), list), "an object with a list of events", "")
    need(document.get("displayTimeUnit", "ms") in ("ms", "ns"), "a unit to show times in", document.get("displayTimeUnit"))
    events, last = document["traceEvents"], {}
    for event in events:
        check_event(event)
        if event["ph"] != "M":
            need(event["ts"] >= last.get(event["pid"], 0), "events of a process in order of time", event)
            last[event["pid"]] = event["ts"]
    for rule in (check_metadata, check_nesting, check_flows, check_counters):
        rule(events)
    return slices_of(events)
