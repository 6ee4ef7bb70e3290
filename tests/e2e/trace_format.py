"""What the Trace Event Format asks of a file of JSON objects, as strictly as its readers: chrome://tracing and Perfetto's importer.

Times are whole nanoseconds there (microseconds with three decimals here); slices of a track nest; an arrow begins and ends in a slice."""

import math
from collections import defaultdict

KEYS = {  # beside ph, pid, tid, name, ts
    "M": {"args"},
    "X": {"dur", "args", "cat"},
    "b": {"cat", "id", "args"},
    "e": {"cat", "id"},
    "s": {"cat", "id"},
    "f": {"cat", "id", "bp"},
    "C": {"args"},
}
OPTIONAL = {"args", "cat"}


def ns(us):
    whole = round(us * 1000)
    assert math.isfinite(us) and us >= 0 and abs(us * 1000 - whole) < 1e-2 + us * 1e-9, us
    return whole


def check(page):
    """Of a whole trace: none that was cut to size."""
    assert page["displayTimeUnit"] in ("ms", "ns") and isinstance(page["otherData"], dict)
    processes, threads = {}, {}
    tracks, lanes, arrows = defaultdict(list), defaultdict(list), defaultdict(dict)
    last = 0
    for e in page["traceEvents"]:
        allowed = KEYS[e["ph"]]
        given = set(e) - {"ph", "pid", "tid", "name", "ts"}
        assert given <= allowed and allowed - OPTIONAL <= given, e
        assert type(e["pid"]) is int and type(e["tid"]) is int and isinstance(e["name"], str) and e["name"], e
        at, track = ns(e["ts"]), (e["pid"], e["tid"])
        assert at >= last, e
        last = at
        if e["ph"] == "M":
            names = {"process_name": processes, "thread_name": threads}[e["name"]]
            key = e["pid"] if e["name"] == "process_name" else track
            assert key not in names and e["args"]["name"], e
            names[key] = e["args"]["name"]
            continue
        assert e["pid"] in processes and track in threads, e
        if e["ph"] == "X":
            tracks[track].append((at, at + ns(e["dur"])))
        elif e["ph"] == "b":
            lanes[e["cat"], e["id"]].append(e["name"])
        elif e["ph"] == "e":
            assert lanes[e["cat"], e["id"]].pop() == e["name"], e
        elif e["ph"] == "C":
            assert e["args"] and all(type(v) in (int, float) and math.isfinite(v) for v in e["args"].values()), e
        else:
            ends = arrows[e["cat"], e["id"]]
            assert e["ph"] not in ends and (e["ph"] == "s" or "s" in ends), e
            assert e["ph"] == "s" or e["bp"] == "e", e
            ends[e["ph"]] = (track, at)
    assert not any(lanes.values()), lanes
    for track, slices in tracks.items():
        open_ = []
        for begin, end in slices:  # in order of their beginnings
            while open_ and open_[-1] <= begin:
                open_.pop()
            assert not open_ or end <= open_[-1], (track, begin, end, open_)
            open_.append(end)
    for name, ends in arrows.items():
        assert set(ends) == {"s", "f"}, name
        for track, at in ends.values():
            assert any(begin <= at <= end for begin, end in tracks[track]), (name, track, at)
