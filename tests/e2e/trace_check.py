"""What must hold of a file of Chrome trace events, whoever wrote it."""

import collections


class Broken(Exception):
    pass


def need(condition, what, event):
    if not condition:
        raise Broken(f"{what}: {event}")


def check_event(event):
    """The members that every kind of event has."""
    need(isinstance(event["name"], str) and event["name"], "a name", event)
    need(isinstance(event["pid"], int) and isinstance(event["tid"], int), "numbers of process and thread", event)
    need(event["ph"] in "MbeXiC", "a kind that is known", event)
    if event["ph"] != "M":
        need(event["ts"] >= 0, "no time before the first", event)
    if event["ph"] == "X":
        need(event["dur"] >= 0, "no slice that runs backwards", event)
    if event["ph"] == "i":
        need(event["s"] in "gpt", "a scope", event)
    if event["ph"] == "C":
        need(event["args"] and all(isinstance(v, int) and v >= 0 for v in event["args"].values()), "counts", event)


def slices_of(events):
    """Asynchronous slices by id, outermost first; every begin has its end, inside of the one around it."""
    found, open_ = collections.defaultdict(list), collections.defaultdict(list)
    for event in events:
        key = (event.get("cat"), event.get("id"))
        if event["ph"] == "b":
            entry = {"event": event, "begin": event["ts"], "depth": len(open_[key])}
            need(key not in found or open_[key], "an id that is used once", event)
            found[key].append(entry)
            open_[key].append(entry)
        elif event["ph"] == "e":
            need(open_[key], "an end that has a begin", event)
            entry = open_[key].pop()
            need(entry["event"]["name"] == event["name"] and entry["event"]["pid"] == event["pid"], "the end of the last begun", event)
            entry["end"] = event["ts"]
            need(entry["end"] >= entry["begin"], "no slice that runs backwards", event)
    need(not any(open_.values()), "an end for every begin", open_)
    return found


def check_tracks(events):
    """Slices of one thread do not overlap, and each thread has a name."""
    named = {event["tid"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    owners, ends = {}, {}
    for event in events:
        if event["ph"] not in "Xi" or not event["tid"]:
            continue
        need(event["tid"] in named, "a track with a name", event)
        need(owners.setdefault(event["tid"], event["pid"]) == event["pid"], "a thread of one process", event)
        if event["ph"] == "X":
            need(event["ts"] >= ends.get(event["tid"], 0) - 5e-4, "no overlap on a track", event)  # half a nanosecond
            ends[event["tid"]] = event["ts"] + event["dur"]


def check(document):
    """Raises Broken; returns the asynchronous slices by id."""
    events, last = document["traceEvents"], {}
    for event in events:
        check_event(event)
        if event["ph"] != "M":
            need(event["ts"] >= last.get(event["pid"], 0), "events of a process in order of time", event)
            last[event["pid"]] = event["ts"]
    check_tracks(events)
    return slices_of(events)
