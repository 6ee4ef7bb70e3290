"""tally bench and tools/versus: what they print adds up, and every wrong flag is told. Nothing here judges a speed."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from rig import BINARY, DEADLINE_S, LONG_RUN, ROOT, SMOL, TINY, clean_environment, tally
from test_cli import refused

VERSUS = ROOT / "tools/versus"
VERSUS_OPENVINO = ROOT / "tools/versus-openvino"
RESULT_KEYS = {
    "phase", "prompt", "decode", "batch", "depth", "kv_type", "threads", "tokens_per_second", "tokens_per_second_min",
    "tokens_per_second_max", "repetitions",
}  # fmt: skip


def measured(*arguments):
    """A bench's JSON: one object on stdout, and nothing else."""
    done = tally("bench", *arguments, "--json")
    assert done.returncode == 0, (arguments, done.stderr)
    page = json.loads(done.stdout)
    assert {"machine", "results", "warnings"} <= set(page) and page["machine"]["cores_logical"] >= 1
    return page


def test_engine_multiplies_its_lists():
    page = measured("engine", SMOL, "--prompt", "16,24", "--decode", "3", "--batch", "1,2", "--depth", "0,70", "--kv-type", "int8,bf16",
                    "--threads", "1,2", "--repetitions", "2", "--tune", "off")  # fmt: skip
    rows = page["results"]
    threads = sorted({r["threads"] for r in rows})
    assert threads in ([1], [1, 2])  # a machine of one CPU
    prefill = [(r["prompt"], r["batch"], r["depth"], r["kv_type"]) for r in rows if r["phase"] == "prefill"]
    decode = [(r["decode"], r["batch"], r["depth"], r["kv_type"]) for r in rows if r["phase"] == "decode"]
    kinds = [(depth, kv) for kv in ("int8", "bf16") for _ in (1, 2) for depth in (0, 70)]
    assert prefill == [(prompt, 1, *kind) for kind in kinds for prompt in (16, 24)]
    assert decode == [(3, batch, *kind) for kind in kinds for batch in (1, 2)]
    for row in rows:
        assert RESULT_KEYS <= set(row)
        assert 0 < row["tokens_per_second_min"] <= row["tokens_per_second"] <= row["tokens_per_second_max"]
        assert row["repetitions"] == len(row["seconds"]) == 2 and 0.99 < sum(row["time_shares"].values()) < 1.01
        tokens = row["prompt"] or row["decode"] * row["batch"]
        assert row["tokens_per_second_max"] == pytest.approx(tokens / min(row["seconds"]))
    # Bytes by hand: the packed weights once a pass; of 30 layers with 3 KV heads of 64 values, keys and values of every position.
    weights = page["model"]["weight_bytes"]
    each = {"bf16": 30 * 3 * 2 * 64 * 2, "int8": 30 * 3 * (2 * 64 + 8)}
    for row in rows:
        if row["phase"] == "decode":
            positions = sum(row["depth"] + step + 1 for step in range(row["decode"]))
            assert row["bytes_read"] == row["decode"] * weights + row["batch"] * positions * each[row["kv_type"]]
    assert weights < SMOL.stat().st_size * 1.1 and page["model"]["arch"] == "llama"


def test_engine_leaves_a_phase_out():
    assert {r["phase"] for r in measured("engine", TINY, "--prompt", "0", "--decode", "2", "--repetitions", "1")["results"]} == {"decode"}
    assert {r["phase"] for r in measured("engine", TINY, "--prompt", "8", "--decode", "0", "--repetitions", "1")["results"]} == {"prefill"}
    refused(64, "bench", "engine", TINY, "--prompt", "0", "--decode", "0", says=("--prompt", "--decode"))


def test_engine_table():
    done = tally("bench", "engine", TINY, "--prompt", "8", "--decode", "2", "--batch", "1,4", "--repetitions", "1")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line.split()[0] for line in lines[1:5]] == ["phase", "prefill", "decode", "decode"], lines


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--batch", "1,x"), ("--batch", "0"), ("--batch", ","), ("--depth", "-1"), ("--prompt", "1.5"), ("--kv-type", "int8,q4"), ("--threads", "0"),
     ("--repetitions", "0"), ("--isa", "neon"), ("--attention", "flash")],
)  # fmt: skip
def test_engine_bad_list(flag, value):
    line = refused(64, "bench", "engine", TINY, f"{flag}={value}", says=(flag, "allowed"))
    assert value.split(",")[-1] in line


def test_engine_refuses_what_cannot_be():
    refused(78, "bench", "engine", TINY, "--depth", "2000", "--prompt", "100", says=("--depth 2000", "--prompt 100", "2048"))
    refused(69, "bench", "engine", TINY, "--memory", "1MiB", says="cap")
    refused(65, "bench", "engine", ROOT / "README.md", says="README.md")
    refused(64, "bench", "engine", says="MODEL")
    refused(64, "bench", says=("engine", "kernel", "attention"))
    refused(64, "bench", "engine", TINY, "--port", "1", says=("--port", "tally help bench engine"))


def test_engine_interrupted():
    bench = subprocess.Popen(
        [BINARY, "bench", "engine", SMOL, "--decode", "2048", "--repetitions", "100", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    try:
        bench.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        pass
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=DEADLINE_S)
    assert bench.returncode == 130 and out == "" and "interrupted" in err, (bench.returncode, out, err)


def test_kernel_against_the_roof():
    page = measured("kernel", "--type", "q4_0", "--tokens", "1")
    assert page["results"] and {(r["type"], r["tokens"], r["k"]) for r in page["results"]} == {("q4_0", 1, 4096)}
    isas = [r["isa"] for r in page["results"]]
    assert isas[0] == "scalar" and len(set(isas)) == len(isas)
    (read,) = page["machine"]["roof_bytes_per_s"].values()
    assert read > 1e8
    for row in page["results"]:
        assert 0 < row["percent_of_roof"] <= 200, row  # the roof itself is measured, and a busy machine moves it
        assert 0 < row["bytes_per_second_min"] <= row["bytes_per_second"] <= row["bytes_per_second_max"]
        # 4.5 bits a weight, two operations a product.
        assert row["ops_per_second"] / row["bytes_per_second"] == pytest.approx(2 / (4.5 / 8))
        if row["bound"] == "bandwidth":
            assert row["percent_of_roof"] == pytest.approx(100 * row["bytes_per_second"] / read)


def test_kernel_of_every_type():
    page = measured("kernel", "--rows", "64", "--k", "512", "--tokens", "3", "--repetitions", "1", "--isa", "scalar", "--threads", "1")
    assert [r["type"] for r in page["results"]] == [
        "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
    ]  # fmt: skip
    assert all(r["bytes_per_second"] > 0 and r["tokens"] == 3 for r in page["results"])


def test_roofs_alone():
    page = measured("kernel", "--roof")
    assert page["results"] == [] and all(rate > 1e8 for rate in page["machine"]["roof_bytes_per_s"].values())
    done = tally("bench", "kernel", "--roof", "--threads", "1")
    assert done.returncode == 0 and done.stdout.startswith("read ") and "GB/s" in done.stdout and "1 threads" in done.stdout


def test_kernel_refusals():
    refused(64, "bench", "kernel", "--type", "q4_0,q9", says=("--type", "'q9'", "q4_k"))
    refused(64, "bench", "kernel", "--tokens", "1,two", says=("--tokens", "'two'", "1..8192"))
    refused(64, "bench", "kernel", "--k", "300", says=("--k", "300", "256"))
    refused(64, "bench", "kernel", "--rows", "1048576", "--k", "65536", says=("--rows 1048576", "allowed"))
    refused(64, "bench", "kernel", TINY, says=str(TINY))
    refused(69, "bench", "kernel", "--roof", "--memory", "1MiB", says="cap")
    if tally("bench", "kernel", "--roof", "--isa", "amx").returncode != 0:
        refused(78, "bench", "kernel", "--isa", "amx", says=("--isa amx", "this CPU has scalar"))


def test_attention():
    page = measured("attention", "--context", "100,256", "--shape", "6/2/32", "--prefill", "40", "--kv-type", "int8,f32", "--repetitions", "1", "--threads", "1")
    rows = page["results"]
    assert {(r["kv_type"], r["context"], r["form"]) for r in rows} == {
        (kv, context, form) for kv in ("int8", "f32") for context in (100, 256) for form in ("paged", "standard")
    }
    memory = {(r["form"], r["kv_type"], r["context"], r["tokens"]): r["memory_bytes"] for r in rows}
    for (form, kv, context, n), size in memory.items():
        if form == "standard":  # the scores of every head and row
            assert 0 <= size - memory["paged", kv, context, n] - 6 * n * context * 4 < 1 << 20
    for row in rows:
        n, context = row["tokens"], row["context"]
        assert (row["phase"], n) in (("decode", 1), ("prefill", 40)) and row["ms"] > 0 and row["percent_of_roof"] > 0
        pairs = sum(context - n + i + 1 for i in range(n))
        assert row["ops_per_second"] * row["ms"] / 1e3 == pytest.approx(4 * pairs * 6 * 32)
        assert row["kv_bytes"] == pytest.approx(context * 2 * (2 * 32 + 8 if row["kv_type"] == "int8" else 2 * 32 * 4), rel=0.02)
    refused(64, "bench", "attention", "--shape", "6/4/32", says=("--shape", "'6/4/32'", "multiple"))
    refused(64, "bench", "attention", "--form", "flash", says=("--form", "paged standard"))
    refused(64, "bench", "attention", "--context", "0", says=("--context", "1..1048576"))


# ---- tools/versus, against programs that print what they are told ------------------------------------------------------------

# Each takes the next of the figures that versus.json holds for it; the last one stays.
FAKE = """#!{python}
import json, sys
from pathlib import Path
here = Path(__file__).resolve().parent
arguments = sys.argv[1:]
value = lambda flag: arguments[arguments.index(flag) + 1]
if "--help" in arguments:
    print({page!r})
    sys.exit(0)
log = here / "calls.jsonl"
with log.open("a") as out:
    out.write(json.dumps([{name!r}, *arguments]) + "\\n")
def figure(key):
    plan = json.loads((here / "plan.json").read_text())
    used = sum(1 for line in (here / "used.txt").open() if line.strip() == key) if (here / "used.txt").exists() else 0
    with (here / "used.txt").open("a") as out:
        out.write(key + "\\n")
    rates = plan[key]
    if rates == "fail":
        print("the model is not to its taste", file=sys.stderr)
        sys.exit(1)
    return rates[min(used, len(rates) - 1)]
{body}
"""

LLAMA_BENCH = """
fa, kv, depth = value("-fa"), value("-ctk"), int(value("-d"))
assert value("-ctv") == kv and value("-lm") == "none" and value("-o") == "jsonl" and value("-r") == "1"
for prompt, tokens in ((int(value("-p")), 0), (0, int(value("-n")))):
    if prompt or tokens:
        print(json.dumps({"n_prompt": prompt, "n_gen": tokens, "n_depth": depth, "avg_ts": figure(f"{'pp' if prompt else 'tg'} {kv} {fa} {depth}")}))
print("a line that is no JSON")
"""
LLAMA_BATCHED = """
fa, kv = value("-fa"), value("-ctk")
assert "--no-mmap" in arguments and value("-npp") == "1" and int(value("-c")) >= 8 * 256
for batch in map(int, value("-npl").split(",")):
    print(json.dumps({"pl": batch, "tg": int(value("-ntg")), "pp": 1, "speed_tg": figure(f"batch {batch} {kv} {fa}"), "speed_pp": 1e9}))
"""
FAKE_TALLY = """
if arguments[:2] == ["bench", "kernel"]:
    print(json.dumps({"machine": {"roof_bytes_per_s": {"2": figure("roof")}}, "results": []}))
    sys.exit(0)
rows = []
prompt, tokens, depth = (int(value(f)) for f in ("--prompt", "--decode", "--depth"))
assert value("--kv-type") == "int8" and value("--threads") == "2"
row = {"phase": "prefill", "prompt": prompt, "decode": 0, "batch": 1, "depth": depth, "kv_type": "int8"}
if prompt:
    rows.append(row | {"tokens_per_second": figure(f"ours pp {depth}")})
for batch in map(int, value("--batch").split(",")) if tokens else ():
    rows.append(row | {"phase": "decode", "prompt": 0, "decode": tokens, "batch": batch, "tokens_per_second": figure(f"ours {batch} {depth}"), "bytes_per_second": 6e9})
print(json.dumps({"machine": {"cpu_model": "none"}, "model": {"weight_bytes": 1000}, "results": rows, "warnings": ["busy"] if prompt else []}))
"""


@pytest.fixture
def fakes(tmp_path):
    """A folder of programs, and a function that gives them figures and runs tools/versus."""
    pages = {"llama-bench": "-fa, --flash-attn <on|off|auto>  -lm, --load-mode", "llama-batched-bench": "-fa, --flash-attn [on|off|auto]  --no-mmap", "tally": ""}
    bodies = {"llama-bench": LLAMA_BENCH, "llama-batched-bench": LLAMA_BATCHED, "tally": FAKE_TALLY}
    for name, body in bodies.items():
        program = tmp_path / name
        program.write_text(FAKE.format(python=sys.executable, name=name, page=pages[name], body=body))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run(plan, *flags, binary=tmp_path / "tally"):
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        out = tmp_path / "out.json"
        done = subprocess.run(
            [sys.executable, VERSUS, tmp_path, TINY, "--tally", binary, "--threads", "2", "--json", out, *flags],
            capture_output=True, text=True, env=clean_environment(), timeout=DEADLINE_S,
        )  # fmt: skip
        calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").open()] if (tmp_path / "calls.jsonl").exists() else []
        return done, json.loads(out.read_text()) if out.exists() else None, calls

    return run


PLAN = {
    "roof": [8e9, 10e9, 12e9, 12e9],
    "ours pp 0": [100, 300, 200], "ours 1 0": [10, 20, 30], "ours 8 0": [80],
    # In the first round f16 with fa on is best at prompts, and q8_0 at decoding: both go on. fa off is far behind.
    "pp f16 on 0": [50, 100, 50], "tg f16 on 0": [4, 4, 4],
    "pp f16 off 0": [44, 1000], "tg f16 off 0": [3, 1000],
    "pp q8_0 on 0": [40, 40, 40], "tg q8_0 on 0": [8, 5, 10],
    "batch 8 f16 on": [20, 40, 16], "batch 8 f16 off": [19, 20, 20], "batch 8 q8_0 on": "fail",
}  # fmt: skip


def test_versus_arithmetic(fakes):
    done, page, calls = fakes(PLAN, "--rounds", "3", "--prompt", "32", "--decode", "4", "--batch", "1,8", "--depth", "0")
    assert done.returncode == 0, done.stderr
    prefill, decode, batch = page["measures"]
    assert (prefill["phase"], prefill["prompt"], decode["phase"], decode["batch"], batch["batch"]) == ("prefill", 32, "decode", 1, 8)
    # Ratios within the rounds: 100/50, 300/100, 200/50.
    assert prefill["ratio"] == {"median": 3, "min": 2, "max": 4, "rounds": 3}
    assert prefill["theirs"]["kv_type"] == "f16" and prefill["theirs"]["flash_attention"] and prefill["theirs"]["median"] == 50
    # 10/8, 20/5, 30/10: f16 is slower, fa off was left out after the first round.
    assert decode["ratio"] == {"median": 3, "min": 1.25, "max": 4, "rounds": 3}
    assert decode["theirs"]["kv_type"] == "q8_0" and decode["theirs"]["all"]["llama.cpp f16, fa off"] == 3
    # fa off was within a tenth, and one variant failed.
    assert batch["theirs"]["values"] == [20, 40, 16] and batch["ratio"] == {"median": 4, "min": 2, "max": 5, "rounds": 3}
    assert "not to its taste" in done.stderr and len(batch["theirs"]["all"]) == 2
    # 6 GB/s of a roof whose median is 11 GB/s.
    assert decode["ours"]["percent_of_read_roof"] == pytest.approx(100 * 6 / 11) and page["probes_bytes_per_s"] == [8e9, 10e9, 12e9, 12e9]
    assert page["status"] == "complete" and page["model"] == TINY.name
    assert page["warnings"] == 3 * ["depth 0: busy"] and "warning: depth 0: busy" in done.stderr
    # The order turns: tally first, then last.
    single = [c[0] for c in calls if c[0] == "llama-bench" or (c[:3] == ["tally", "bench", "engine"] and "32" in c)]
    assert single == ["tally", *3 * ["llama-bench"], *2 * ["llama-bench"], "tally", "tally", *2 * ["llama-bench"]]
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["prefill", "32", "0", "1", "0", "200.00", "50.00", "f16,", "fa", "on", "3.00", "2.00..4.00", "of", "3"]
    shown = done.stdout[done.stdout.index("commands:") :]
    assert all(part in shown for part in ("GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "-npl 8", "bench engine", "--roof", "-lm none", "--no-mmap"))


def test_versus_with_the_real_tally(fakes):
    done, page, _ = fakes(PLAN, "--rounds", "1", "--prompt", "8", "--decode", "2", "--batch", "1", "--depth", "0", binary=BINARY)
    assert done.returncode == 0, done.stderr
    assert len(page["measures"]) == 2 and page["weight_bytes"] > 0 and page["machine"]["cores_logical"] >= 1
    for row in page["measures"]:
        assert row["ours"]["median"] > 0 and row["ratio"]["rounds"] == 1
        assert row["ratio"]["median"] == pytest.approx(row["ours"]["median"] / row["theirs"]["median"])


def test_versus_when_everything_fails(fakes):
    plan = PLAN | {key: "fail" for key in PLAN if key.startswith("batch")}
    done, page, _ = fakes(plan, "--rounds", "2", "--prompt", "0", "--decode", "4", "--batch", "8")
    assert done.returncode == 70 and "exit status 1" in done.stderr and page["status"] == "incomplete"
    assert "ratio" not in page["measures"][0]


def test_versus_refusals(fakes, tmp_path):
    for flags, says in ((("--batch", "1,x"), "1,x"), (("--rounds", "0"), "--rounds"), (("--prompt", "0", "--decode", "0"), "nothing to measure")):
        done, _, _ = fakes(PLAN, *flags)
        assert done.returncode == 64 and says in done.stderr, (flags, done.stderr)
    os.remove(tmp_path / "llama-bench")
    done, _, _ = fakes(PLAN)
    assert done.returncode == 64 and "llama-bench" in done.stderr


# ---- tools/versus-openvino -------------------------------------------------------------------------------------------------------


def versus_openvino(*flags):
    return subprocess.run([sys.executable, VERSUS_OPENVINO, *map(str, flags)], capture_output=True, text=True, env=clean_environment(), timeout=10 * DEADLINE_S)


def test_versus_openvino_refusals(tmp_path):
    for flags, says in (((TINY, "--rounds", "0"), "--rounds"), ((tmp_path / "none.gguf",), "none.gguf is no file"), ((TINY, "--tally", tmp_path / "t"), "tools/build")):
        done = versus_openvino(*flags)
        assert done.returncode == 64 and says in done.stderr, (flags, done.stderr)


if LONG_RUN:  # needs packages of its own: ./check --long makes them

    def test_versus_openvino():
        done = versus_openvino(SMOL, "--tally", BINARY, "--prompt", "32", "--decode", "4", "--requests", "8", "--users", "2", "--rounds", "1")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert [line[:12].strip() for line in lines[1:]] == ["prefill", "decode 1", "decode 8", "mix"], done.stdout
        for line in lines[1:]:
            ours, theirs, ratio = (float(word) for word in line[12:].split()[:3])
            assert ours > 0 and theirs > 0 and abs(ratio - ours / theirs) < 0.01 * ratio + 0.01
