"""Runs of tally bench engine, kernel and attention are stored, listed, and compared row by row."""

import json
import shutil
from pathlib import Path

from rig import TINY, tally
from test_cli import refused

ENGINE = ("bench", "engine", TINY, "--prompt", "16", "--decode", "2", "--batch", "1,2", "--threads", "1", "--tune", "off", "--store", "on")
KERNEL = ("bench", "kernel", "--rows", "64", "--k", "512", "--tokens", "1", "--type", "q4_0,q8_0", "--isa", "scalar", "--threads", "1", "--store", "on")


def stored(*arguments):
    done = tally(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    head = json.loads((Path(page["saved"]) / "run.json").read_text())
    assert head["command"] == " ".join(map(str, arguments[:2])) and head["status"] == "complete" and head["schema"] == 1
    assert head["results"]["rows"] == page["results"] and head["machine"]["fingerprint"] and head["build_id"]
    return page["saved"], head


def test_engine_is_stored_and_compared(tmp_path):
    out = ("--out", tmp_path / "runs")
    a, head = stored(*ENGINE, *out, "--repetitions", "3")
    b, _ = stored(*ENGINE, *out, "--repetitions", "3", "--step-tokens", "8")
    assert head["model"]["path_basename"] == TINY.name and all(len(r["seconds"]) == 3 for r in head["results"]["rows"])
    runs = json.loads(tally("runs", tmp_path / "runs", "--json").stdout)["runs"]
    assert [r["command"] for r in runs] == ["bench engine"] * 2 and runs[0]["label"] == "bench-engine"
    done = tally("compare", a, b, "--json")
    page = json.loads(done.stdout)
    assert done.returncode == page["exit_code"] == 2 and page["verdict"] == "UNDECIDED"  # three repetitions
    assert [m["metric"] for m in page["metrics"]] == ["prefill", "decode batch 1", "decode batch 2"]
    assert all(m["pairs"] == 3 and m["unit"] == "tok/s" for m in page["metrics"])
    assert [(c["name"], c["a"], c["b"]) for c in page["settings_diff"]] == [("step_tokens", "512", "8")]
    text = tally("compare", a, b).stdout
    assert "1 variable changed: step_tokens 512 -> 8" in text and "decode batch 2" in text and "tok/s" in text
    assert "one run of each" in text


def test_kernel_is_stored_and_compared(tmp_path):
    out = ("--out", tmp_path / "runs")
    a, head = stored(*KERNEL, *out, "--repetitions", "6")
    b = shutil.copytree(a, tmp_path / "again")  # measuring the roofs takes seconds
    assert head["model"] == {} and {r["type"] for r in head["results"]["rows"]} == {"q4_0", "q8_0"}
    done = tally("compare", a, b, "--json")
    assert done.returncode == 0, done.stderr
    assert [(m["metric"], m["unit"], m["verdict"]) for m in json.loads(done.stdout)["metrics"]] == [("q4_0", "GB/s", "SAME"), ("q8_0", "GB/s", "SAME")]
    engine, _ = stored(*ENGINE, *out, "--repetitions", "1")
    refused(64, "compare", a, engine, says="runs of bench kernel and bench engine")


def test_attention_is_stored_and_compared(tmp_path):
    shape = ("--context", "100,256", "--shape", "6/2/32", "--prefill", "40", "--kv-type", "int8", "--form", "paged", "--threads", "1")
    a, head = stored("bench", "attention", *shape, "--repetitions", "6", "--store", "on", "--out", tmp_path / "runs")
    b = shutil.copytree(a, tmp_path / "runs/again")
    assert head["label"] == "bench-attention" and {r["context"] for r in head["results"]["rows"]} == {100, 256}
    rows = json.loads(tally("runs", tmp_path / "runs", "--json").stdout)["runs"]
    assert [r["command"] for r in rows] == ["bench attention"] * 2
    done = tally("compare", a, b, "--json")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    assert len(metrics) == len(head["results"]["rows"]) and {m["verdict"] for m in metrics} == {"SAME"}
    assert {m["unit"] for m in metrics} == {"Gop/s"} and any("context 256" in m["metric"] for m in metrics)
    assert tally("report", a, b, "-o", tmp_path / "page.html").returncode == 0 and "bench attention" in (tmp_path / "page.html").read_text()


def test_nothing_is_stored_when_off(tmp_path):
    done = tally(*ENGINE, "--repetitions", "1", "--out", tmp_path / "runs", "--store", "off")
    assert done.returncode == 0 and "saved" not in done.stdout and not (tmp_path / "runs").exists()
    done = tally(*ENGINE, "--repetitions", "1", "--out", tmp_path / "runs")
    saved = done.stdout.splitlines()[-2]
    assert saved.startswith("saved: ") and Path(saved[7:]).is_dir() and done.stdout.splitlines()[-1].startswith("compare: tally compare ")
