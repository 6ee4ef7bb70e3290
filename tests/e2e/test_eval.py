"""tally eval: figures that add up, a run that is stored, and every wrong input told. Nothing here judges a codec."""

import json
import math
import signal
import subprocess
import xml.etree.ElementTree

import pytest

from rig import BINARY, DEADLINE_S, ROOT, SHORT, SMOL, TINY, clean_environment, tally
from test_cli import refused

TEXT = ROOT / "share/tally/english.txt"
MODEL = TINY if SHORT else SMOL


def evaluated(tmp_path, kind, model, *flags):
    """The JSON of an evaluation: one object on stdout, and nothing else."""
    done = tally("eval", kind, model, "--json", "--text", TEXT, "--out", tmp_path / "runs", *flags)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


def test_kld(tmp_path):
    picture = tmp_path / "pareto.svg"
    page = evaluated(tmp_path, "kld", MODEL, "--kv-type", "int8,bf16", "--tokens", "512", "--context", "256", "--svg", picture)
    assert page["valid"] and page["status"] == "complete" and page["client_settings"]["mode"] == "as-served"
    f32, int8, bf16 = page["results"]["codecs"]
    assert [c["kv_type"] for c in (f32, int8, bf16)] == ["f32", "int8", "bf16"]
    assert f32["text"]["kld_max"] == 0 and f32["text"]["same_top"]["value"] == 1 and f32["text"]["ppl_ratio"]["value"] == 1
    for codec in (int8, bf16):
        text = codec["text"]
        assert 0 < text["kld_p50"] < text["kld_p99"] <= text["kld_max"] < 1 and text["kld_mean"]["value"] < 0.05
        assert 0.8 < text["same_top"]["value"] <= 1 and 0 < text["probability_change_rms"] < 0.1
        assert text["ppl"]["value"] == pytest.approx(f32["text"]["ppl"]["value"] * text["ppl_ratio"]["value"])
        assert text["ppl"]["value"] == pytest.approx(math.exp(text["nll"]["value"]))
        assert set(codec["kv_types_by_layer"]) == {codec["kv_type"]}
        assert len(codec["damage_by_layer"]) == len(codec["kv_types_by_layer"])
        assert all(0 < damage < 0.05 for damage in codec["damage_by_layer"])
    assert sum(int8["damage_by_layer"]) > sum(bf16["damage_by_layer"]) and "damage_by_layer" not in f32
    assert int8["bytes_per_token"] < bf16["bytes_per_token"] == f32["bytes_per_token"] / 2
    reads = int8["attention_reads"]
    assert 0.7 < reads["from_earlier_passes"] / reads["positions"] < 1 and reads["bytes"] < bf16["attention_reads"]["bytes"]
    test = page["results"]["self_test"]
    assert test["not_read_back"] == [] and test["noise_kld"]["value"] > max(test["noise_limit"], 10 * int8["text"]["kld_mean"]["value"])

    svg = xml.etree.ElementTree.parse(picture).getroot()
    words = " ".join("".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text"))
    for word in ("f32", "int8", "bf16", "bytes", "nats", MODEL.name):
        assert word in words, words
    head = json.loads((ROOT / page["saved"] / "run.json").read_text())
    assert head["results"] == page["results"] and head["command"] == "eval kld" and head["schema"] == 1
    listed = json.loads(tally("runs", tmp_path / "runs", "--json").stdout)
    assert [r["command"] for r in listed["runs"]] == ["eval kld"]


def test_ppl_of_every_codec_the_same_twice(tmp_path):
    flags = ("--tokens", "600", "--context", "300", "--threads", "1")
    pages = [evaluated(tmp_path, "ppl", TINY, *flags, *more) for more in ((), ("--isa", "scalar", "--threads", "2"))]
    (one,), (two,) = (p["results"]["codecs"] for p in pages)
    assert one["kv_type"] == "int8" and one["text"] == two["text"], "Law 1: neither tier nor threads change a bit"
    assert 1 < one["text"]["ppl"]["value"] < 1e6 and "kld_mean" not in one["text"]
    alone = evaluated(tmp_path, "ppl", TINY, *flags, "--mode", "codec-alone")["results"]["codecs"][0]
    assert alone["text"]["ppl"]["value"] != one["text"]["ppl"]["value"]


def test_kv_asks_every_codec_the_same(tmp_path):
    page = evaluated(
        tmp_path, "kv", TINY, "--tokens", "512", "--context", "512", "--prompts", "3", "--new-tokens", "8", "--questions", "8"
    )  # fmt: skip
    codecs = page["results"]["codecs"]
    assert len(codecs) >= 3 and codecs[0]["kv_type"] == "f32"
    for codec in codecs:
        assert [p["name"] for p in codec["probes"]] == ["recall", "needle", "tracking", "arithmetic"]
        for probe in codec["probes"]:
            assert probe["items"] == sum(c["items"] for c in probe["cells"]) == (4 if probe["name"] == "needle" else 8)
            assert 0 <= probe["right"] == sum(c["right"] for c in probe["cells"]) and 0 < probe["mcnemar_p"] <= 1
        assert len(codec["divergence"]["first"]) == 3 and codec["decode"]["tokens_per_second"] > 0
        assert codec["decode"]["depth"] == 504
    assert codecs[0]["divergence"]["never_share"] == 1 and all(p["same_as_f32"] == p["items"] for p in codecs[0]["probes"])


def test_table(tmp_path):
    done = tally("eval", "kld", TINY, "--text", TEXT, "--tokens", "400", "--context", "256", "--out", tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "VALID" in lines, done
    cut = next(i for i, line in enumerate(lines) if line.endswith("layers that stand out"))
    assert [line.split()[0] for line in lines[:cut] if line.startswith(("f32", "bf16", "int8"))] == ["f32", "bf16", "int8"]
    assert [line.split()[0] for line in lines[cut + 1 : cut + 3]] == ["bf16", "int8"] and lines[-1].startswith("saved: ")


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--kv-type", "int8,q4"), ("--context", "255"), ("--tokens", "100"), ("--mode", "exact"), ("--threads", "0"), ("--isa", "neon")],
)  # fmt: skip
def test_bad_value(flag, value):
    assert value.split(",")[-1] in refused(64, "eval", "kld", TINY, f"{flag}={value}", says=(flag, "allowed"))


def test_refuses_what_cannot_be(tmp_path):
    missing, short, binary = tmp_path / "none.txt", tmp_path / "short.txt", tmp_path / "binary"
    short.write_text("Only a few words.")
    binary.write_bytes(bytes(range(256)) * 2)
    refused(66, "eval", "kld", TINY, "--text", missing, says="none.txt")
    refused(66, "eval", "kld", TINY, "--text", tmp_path, says="--text")
    refused(65, "eval", "kld", TINY, "--text", short, says=("short.txt", "at least 256"))
    refused(78, "eval", "kld", TINY, "--text", TEXT, "--context", "100000", says="--context 100000")
    refused(69, "eval", "kld", TINY, "--text", TEXT, "--memory", "1MiB", says="cap")
    refused(65, "eval", "kld", ROOT / "README.md", "--text", TEXT, says="README.md")
    refused(64, "eval", "ppl", says="MODEL")
    refused(64, "eval", says=("eval ppl", "eval kld", "eval kv"))
    refused(64, "eval", "ppl", TINY, "--svg", "x.svg", says="--svg")
    refused(74, "eval", "ppl", TINY, "--text", TEXT, "--tokens", "300", "--out", short, says="short.txt")
    # Bytes that are no text have tokens too.
    assert tally("eval", "ppl", TINY, "--text", binary, "--out", tmp_path / "runs").returncode == 0


def test_interrupted(tmp_path):
    child = subprocess.Popen(
        [BINARY, "eval", "kld", MODEL, "--text", TEXT, "--context", "256", "--out", tmp_path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    try:
        child.communicate(timeout=4)
    except subprocess.TimeoutExpired:
        pass
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 130 and "interrupted" in err, (child.returncode, out, err)
    for path in tmp_path.iterdir():
        assert json.loads((path / "run.json").read_text())["status"] == "incomplete"
