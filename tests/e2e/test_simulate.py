"""tally simulate: what it prints adds up, repeats byte for byte, and every bad flag and file is told."""

import json
import os
import signal
import subprocess
import time

import pytest

from rig import BINARY, clean_environment, tally
from test_cli import refused

ALL = "paged,reserve,max-length,power-of-two"


def simulated(*arguments):
    """The page of a run as JSON: one object on stdout, and nothing else."""
    done = tally("simulate", *arguments, "--json")
    assert done.returncode == 0 and done.stderr == "", (arguments, done.stderr)
    return json.loads(done.stdout)


def test_waste_experiment():
    page = simulated("mix", "--allocator", ALL, "--block-tokens", "16,32,64,128")
    assert page["trace"] == {"name": "mix", "requests": 1000, "sequences": 1000, "prompt_tokens": page["trace"]["prompt_tokens"],
                             "output_tokens": 99000, "skipped": 0, "rate": 1.0, "seed": 1}  # fmt: skip
    expected = {("paged", 16): 99.0, ("paged", 32): 97.9, ("paged", 64): 95.7, ("paged", 128): 91.7, ("power-of-two", None): 71.4, ("max-length", None): 34.5}
    expected |= {("reserve", block): 34.5 for block in (16, 32, 64, 128)}
    rows = {(r["allocator"], r["block_tokens"]): r for r in page["results"]}
    assert set(rows) == set(expected)
    for key, percent in expected.items():
        row = rows[key]
        assert 100 * row["utilisation"] == pytest.approx(percent, abs=1.0), key
        assert row["utilisation"] + row["waste"]["internal"] + row["waste"]["reserved"] == pytest.approx(1)
        assert row["requests"] == {"finished": 1000, "refused": {"too_long": 0, "pool_too_small": 0, "too_many_choices": 0}}
        assert row["output_tokens"] == 99000 and row["tokens_per_second"] == pytest.approx(99000 / row["completion_s"])
        assert row["ttft_s"]["n"] == row["tpot_s"]["n"] == 1000
        for p in (row["ttft_s"], row["tpot_s"], row["normalised_s"]):
            assert 0 < p["p50"] <= p["p95"] <= p["p99"] <= p["max"]
        assert row["intervals"][-1]["end_s"] == row["completion_s"] and len(row["intervals"]) <= 32
    assert rows["power-of-two", None]["copies"] > 0 and rows["max-length", None]["copies"] == 0


def test_the_same_twice_and_another_seed():
    for form in ((), ("--json",)):
        arguments = ("bursty", "--requests", "300", "--rate", "2", "--allocator", ALL, "--batching", "continuous,static", "--pool-tokens", "8192", *form)
        first = tally("simulate", *arguments)
        assert first.returncode == 0 and first.stdout == tally("simulate", *arguments).stdout
        assert first.stdout != tally("simulate", *arguments, "--seed", "2").stdout


def test_page_for_people():
    done = tally("simulate", "shared-prefix", "--requests", "200", "--rate", "4", "--block-tokens", "16,64")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("shared-prefix: 200 requests, ") and lines[0].endswith("4 a second, seed 1")
    assert [line.split()[:3] for line in lines if line.startswith("paged ")] == [["paged", "continuous", b] for b in ("16", "64")] * 2
    one = tally("simulate", "mix", "--requests", "100").stdout
    assert "until s" in one and "until s" not in done.stdout


def test_prefix_cache_and_choices(tmp_path):
    shape = ("shared-prefix", "--requests", "100", "--rate", "4", "--pool-tokens", "65536")  # no one is preempted
    on, off = (simulated(*shape, "--prefix-cache", v)["results"][0] for v in ("on", "off"))
    assert off["prompt_rows"] == off["prompt_tokens"] and off["prefix_hits_tokens"] == 0
    assert on["prompt_rows"] + on["prefix_hits_tokens"] == on["prompt_tokens"] and on["prompt_rows"] < on["prompt_tokens"] / 3
    trace = tmp_path / "n.csv"
    trace.write_text("arrival,input,output,n\n0,1000,20,8\n")
    row = simulated(trace)["results"][0]
    assert row["prompt_rows"] == 1000 and row["output_tokens"] == 160 and row["copies"] == 7 and row["logical_over_stored"] > 4


def test_step_latency(tmp_path):
    trace = tmp_path / "long.csv"
    trace.write_text("arrival,input,output\n" + "0,20,300\n" * 8 + "2,4000,4\n")
    bounded, free = (simulated(trace, "--max-model-len", "8192", "--step-latency", v)["results"][0] for v in ("40", "0"))
    assert bounded["gap_max_s"] <= 0.0401 and free["gap_max_s"] > 0.4


PUBLIC = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,480,10\n2023-11-16 18:17:04.9799600,318,8\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,480,10,490,Conversation log\n"
    "5.5,GPT-4,99,0,99,API log\n6,ChatGPT,318,8,326,API log\n",
    "own.csv": "arrival,input,output,group,shared\n1,480,10,1,300\n2,318,8,1,300\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 480, "output_length": 10, "hash_ids": [1]}\n'
    '{"timestamp": 1000, "input_length": 318, "output_length": 8, "hash_ids": [1]}\n',
}


@pytest.mark.parametrize("name", PUBLIC)
def test_files(name, tmp_path):
    (tmp_path / name).write_text(PUBLIC[name])
    page = simulated(tmp_path / name)
    trace, row = page["trace"], page["results"][0]
    assert (trace["requests"], trace["prompt_tokens"], trace["output_tokens"]) == (2, 798, 18)
    assert trace["rate"] is None and trace["seed"] is None and trace["skipped"] == (1 if name == "burstgpt.csv" else 0)
    assert 1 < row["completion_s"] < 2
    # What both begin with, rows of the last block too; the last token is computed for its logits.
    assert row["prefix_hits_tokens"] == {"own.csv": 300, "mooncake.jsonl": 317}.get(name, 0)
    text = tally("simulate", tmp_path / name).stdout
    assert ("1 requests of the file had failed" in text) == (name == "burstgpt.csv")
    assert simulated(tmp_path / name, "--requests", "1")["trace"]["prompt_tokens"] == 480
    assert simulated(tmp_path / name, "--rate", "0.1")["results"][0]["completion_s"] > 10


def test_refused_requests_are_told(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival,input,output,n\n0,5000,10,1\n0,1500,10,1\n0,10,10,65\n0,10,10,1\n")
    page = simulated(trace, "--pool-tokens", "1024")
    assert page["results"][0]["requests"] == {"finished": 1, "refused": {"too_long": 1, "pool_too_small": 1, "too_many_choices": 1}}
    text = tally("simulate", trace, "--pool-tokens", "1024").stdout
    assert text.count("1 requests refused") == 3 and "--max-model-len" in text and "--max-seqs" in text
    # All refused: nothing divides by nothing.
    trace.write_text("arrival,input,output\n0,5000,10\n")
    assert simulated(trace)["results"][0]["utilisation"] == 0
    assert "nan" not in tally("simulate", trace).stdout


BAD_FILES = {
    "": ("empty",),
    "arrival,input,output\n": ("no request",),
    "arrival,input\n0,1\n": ("line 1", "output"),
    "arrival,input,output,what\n": ("line 1", "'what'", "allowed"),
    "arrival,input,output\n0,1,1\n\n0,x,1\n": ("line 4", "column input", "'x'", "1..16777216"),
    "arrival,input,output\n0,1\n": ("line 2", "2 fields"),
    "arrival,input,output\n-1,1,1\n": ("line 2", "column arrival", "'-1'"),
    '{"timestamp": 0}\n': ("line 1", "input_length"),
    '{"timestamp": 0, "input_length": 1, "output_length": 1}\n{\n': ("line 2", "no JSON object"),
    "\x00\x1b[31m\n": ("line 1", "\\x1b"),
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files(text, tmp_path):
    trace = tmp_path / "bad.csv"
    trace.write_text(text)
    line = refused(65, "simulate", trace, says=("bad.csv: ", *BAD_FILES[text]))
    assert "\x1b" not in line


def test_no_file(tmp_path):
    refused(66, "simulate", tmp_path / "none.csv", says=("none.csv", "no such file", "mix | shared-prefix | bursty"))
    refused(66, "simulate", "mixx", says="did you mean mix?")
    refused(66, "simulate", tmp_path, says="no such file")
    refused(64, "simulate", says=("0 arguments", "TRACE"))
    refused(64, "simulate", "mix", "bursty", says="2 arguments")


BAD_FLAGS = {
    "--allocator": ("buddy", "", "paged;reserve"),
    "--batching": ("dynamic", "continuous,sometimes"),
    "--block-tokens": ("48", "64,0"),
    "--requests": ("0", "-1", "10000001", "many"),
    "--rate": ("0", "-2", "nan", "1e10"),
    "--seed": ("-1", "x"),
    "--pool-tokens": ("127", "1e9"),
    "--max-model-len": ("0",),
    "--max-seqs": ("0", "1025"),
    "--step-tokens": ("0",),
    "--step-latency": ("-1", "60001", "40ms"),
    "--cost-row": ("-1", "fast"),
    "--cost-kv": ("1e7",),
}


@pytest.mark.parametrize(("flag", "value"), [(f, v) for f, values in BAD_FLAGS.items() for v in values])
def test_bad_flags(flag, value):
    refused(64, "simulate", "mix", f"{flag}={value}", says=(flag, "allowed"))


def test_interrupted():
    child = subprocess.Popen([BINARY, "simulate", "mix", "--requests", "5000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment())
    time.sleep(1)
    os.kill(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and out == b"" and b"interrupted" in err


def test_many_requests_in_time():
    """One in ten of the million that must take less than a minute on one core."""
    begin = time.monotonic()
    page = simulated("mix", "--requests", "100000")
    assert page["results"][0]["requests"]["finished"] == 100000
    assert time.monotonic() - begin < 30
