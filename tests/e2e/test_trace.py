"""tally trace: client and server of a run on one timeline, in the form that Perfetto reads."""

import json

import pytest

import trace_format
from rig import TINY, tally
from test_cli import refused
from test_compare import write_run


@pytest.fixture(scope="module")
def run(start_shared, tmp_path_factory):
    home = tmp_path_factory.mktemp("trace")
    done = tally("bench", "load", start_shared(TINY).url, "--concurrency", "3", "--requests", "12", "--workload", "random", "--prompt-tokens", "40",
                 "--output-tokens", "12", "--out", home)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return next(home.iterdir())


def traced(run, tmp_path):
    out = tmp_path / "trace.json"
    done = tally("trace", run, "-o", out)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    page = json.loads(out.read_text())
    trace_format.check(page)
    assert done.stdout == f"saved: {out} ({len(page['traceEvents'])} events)\n"
    return page


def test_client_and_server_on_one_timeline(run, tmp_path):
    head = json.loads((run / "run.json").read_text())
    assert 0 <= head["clock"]["error_us"] < 1e6
    page = traced(run, tmp_path)
    assert page["otherData"]["clock"].startswith("client and server are tied to within")
    events = page["traceEvents"]
    assert json.loads(tally("trace", run).stdout) == page
    assert len({e["id"] for e in events if e["ph"] == "b"}) == 12
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"sending", "engine steps"} <= names and f"server: {TINY.stem}" in names

    # Requests lie within the range of the steps, but for what is outside the server.
    steps = [e for e in events if e["ph"] == "X" and e["pid"] == 2]
    stored = (run / "steps.jsonl").read_text().splitlines()
    assert len(steps) == len(stored) and [e["args"]["step"] for e in steps] == [json.loads(line)["step"] for line in stored]
    tie_us = head["clock"]["error_us"] + 1
    # What comes before the first token ends with it; decoding may be shorter than the clock tells.
    before = {"tokenize", "queue", "prefill"}
    first_token = {int(e["id"], 16): e["ts"] for e in events if e["ph"] == "e" and e["name"] in before}
    assert max(s["ts"] for s in steps) <= max(e["ts"] for e in events if e["ph"] == "e") + tie_us
    prompts = sum(json.loads(line)["prompt_tokens_server"] for line in (run / "requests.jsonl").read_text().splitlines())
    assert sum(s["args"]["prefill_tokens"] for s in steps) == prompts

    # A flow leads from each sending forward to a step with rows of prompts.
    flows = {ph: {e["id"]: e for e in events if e["ph"] == ph} for ph in "sf"}
    assert set(flows["s"]) == set(flows["f"]) == set(range(12))
    for id_, begin in flows["s"].items():
        at = flows["f"][id_]["ts"]
        assert begin["ts"] <= at
        step = max((s for s in steps if s["ts"] <= at + 0.01), key=lambda s: s["ts"])
        assert at <= step["ts"] + step["dur"] + 0.01 and step["args"]["prefill_tokens"] > 0
        assert step["ts"] <= first_token[id_] + tie_us  # tokens leave before the step is over
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {"requests", "KV blocks, %", "anonymous memory, MiB"} <= counters


def test_older_runs_and_other_servers(run, tmp_path):
    head = json.loads((run / "run.json").read_text())
    del head["clock"]
    old = tmp_path / "old"
    old.mkdir()
    for name in ("requests.jsonl", "steps.jsonl"):
        (old / name).write_text((run / name).read_text())
    (old / "run.json").write_text(json.dumps(head))
    page = traced(old, tmp_path)
    assert page["otherData"]["clock"].startswith("not tied") and any(e["ph"] == "f" for e in page["traceEvents"])
    bare = traced(write_run(tmp_path / "bare"), tmp_path)
    assert bare["otherData"]["clock"] == "the run has no steps"
    assert sum(e["ph"] == "b" for e in bare["traceEvents"]) == sum(e["ph"] == "e" for e in bare["traceEvents"]) == 180


def test_bad_input_is_told(tmp_path):
    refused(64, "trace", says="0 arguments; one, RUN, is needed")
    refused(66, "trace", f"{tmp_path}/none", says="none: no stored run")
    run = write_run(tmp_path / "run", requests=0)
    refused(65, "trace", run, says="no requests and no steps")
