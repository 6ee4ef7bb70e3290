"""tally ablate: what is wrong is told before anything starts, the arms run in rounds, and no server is left behind. Nothing here judges a speed."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rig import BINARY, DEADLINE_S, LONG_RUN, ROOT, SMOL, TINY, clean_environment, eventually, tally
from test_cli import refused

EXAMPLES = sorted((ROOT / "share/tally/ablate").glob("*.json"))
LOAD = {"workload": "random", "requests": 12, "prompt-tokens": 24, "output-tokens": 8}
THREADS = {"threads": 1}  # of the tiny model


def write(path, **content):
    path.write_text(json.dumps(content))
    return str(path)


def servers_of(parent):
    """Process ids of the servers that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[1]) == parent and len(command) > 1 and command[1] == b"serve":
                found.append(int(entry.name))
    return found


def start(file, *flags):
    ablation = subprocess.Popen(
        [BINARY, "ablate", file, TINY, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=clean_environment()
    )
    return ablation, eventually(lambda: servers_of(ablation.pid), "a server")[0]


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("change, says", [
    ({"vari": {}}, "vari: no such key; did you mean vary?"),
    ({"base": {"kv-typ": "int8"}}, ("base: --kv-typ=int8: unknown flag; did you mean --kv-type?", "help serve")),
    ({"vary": {"kv-type": ["int8", "int5"]}}, ("vary.kv-type: --kv-type", "'int5'", "f32 | bf16 | int8")),
    ({"vary": {"speculate": ["guess"]}}, ("vary.speculate: --speculate", "guess")),
    ({"vary": {"port": [1]}}, "vary.port: port: an ablation decides this itself"),
    ({"ladder": [{"name": "x", "set": {"block-tokens": 17}}]}, ("ladder[0]: --block-tokens", "'17'")),
    ({"load": {"requests": 0}}, ("load: --requests", "'0'", "1..1000000")),
    ({"load": {"concurrency": "1,2"}}, "load: concurrency, rate: one value"),
    ({"load": {"find-capacity": True}}, "load: find-capacity: an ablation decides this itself"),
    ({"eval": {"contxt": 256}}, ("eval: --contxt=256: unknown flag", "--context")),
    ({"vary": {}}, "nothing varies"),
])  # fmt: skip
def test_refused_before_anything_starts(tmp_path, change, says):
    file = write(tmp_path / "a.json", **({"vary": {"prefix-cache": ["off"]}} | change))
    done = tally("ablate", file, TINY, "--out", tmp_path / "runs")
    assert done.returncode in (64, 65) and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"tally: {file}: ") and not (tmp_path / "runs").exists()
    for part in (says,) if isinstance(says, str) else says:
        assert part in done.stderr, (part, done.stderr)


def test_refusals(tmp_path):
    file = write(tmp_path / "a.json", vary={"max-model-len": [16777216]}, base=THREADS)
    refused(64, "ablate", says="0 arguments")
    refused(64, "ablate", file, says=("MODEL.gguf is missing", file))
    refused(66, "ablate", tmp_path / "none.json", TINY, says="none.json: no such file")
    refused(66, "ablate", write(tmp_path / "b.json", vary={"prefix-cache": ["off"]}), tmp_path / "none.gguf", says="none.gguf")
    refused(64, "ablate", file, TINY, "--rounds", "41", says="1..40")
    done = tally("ablate", file, TINY)
    assert done.returncode in (69, 78) and "arm 'max-model-len 16777216': " in done.stderr, done.stderr


def test_examples_are_read():
    assert [e.stem for e in EXAMPLES] == ["kv-types", "ladder", "one-at-a-time", "prefix-source", "speculation-copy", "speculation-draft", "speculation-free", "weights-stream"]
    for example in EXAMPLES:  # the flags that stand behind the file are looked at last
        refused(66, "ablate", example, ROOT / "none.gguf", says="none.gguf")


def test_arms_in_rounds(tmp_path):
    file = write(
        tmp_path / "a.json", label="try", model=str(TINY), rounds=2, load=LOAD, eval={"tokens": 512, "context": 256, "text": str(ROOT / "share/tally/english.txt")},
        base=THREADS | {"kv-type": "bf16"}, vary={"kv-type": ["bf16", "int8"], "block-tokens": [16]},
        interactions=[["kv-type int8", "block-tokens 16"]],
    )  # fmt: skip
    done = tally("ablate", file, "--out", tmp_path / "runs", "--json")
    assert done.returncode in (2, 3), (done.returncode, done.stdout, done.stderr)  # two rounds decide nothing
    page = json.loads(done.stdout)
    assert page["exit_code"] == done.returncode and page["rounds"] == 2
    assert page["notes"][0] == "kv-type bf16: the same as base: no arm of its own" and "rounds: 2, fewer than the 9" in page["notes"][1]
    assert [a["name"] for a in page["arms"]] == ["base", "block-tokens 16", "kv-type int8", "kv-type int8 + block-tokens 16"]
    assert [(c["from"], c["to"]) for c in page["contrasts"]] == [("base", "block-tokens 16"), ("base", "kv-type int8")]
    blocks, codec = page["contrasts"]
    assert [(c["name"], c["a"], c["b"]) for c in codec["settings_diff"]] == [("kv-type", "bf16", "int8")]
    # Block size must not change a bit, the codec may.
    assert not codec["equal_bits_wanted"] and codec["equal_answers"] < codec["answers"] and blocks["equal_bits_wanted"] and blocks["equal_answers"] == blocks["answers"] == 6
    assert {m["metric"] for m in codec["metrics"] if m["judged"]} == {"ttft", "tpot", "e2e", "output_throughput", "peak_memory"}
    base, _, int8, _ = page["arms"]
    assert base["kv_bytes_per_token"] > 1.5 * int8["kv_bytes_per_token"] and base["planned_bytes"] > 1e6
    assert 0 < int8["quality"]["kld"] < 1 and 0.5 < int8["quality"]["same_top"] <= 1 and base["quality"]["kld"] < int8["quality"]["kld"]
    assert base["figures"]["tpot_s"] > 0 and base["figures"]["peak_rss_anon_bytes"] > 1e6
    (interaction,) = page["interactions"]
    assert {m["metric"] for m in interaction["metrics"]} >= {"ttft", "tpot", "e2e"}

    saved = Path(page["saved"])
    head = json.loads((saved / "run.json").read_text())
    assert head["command"] == "ablate" and head["status"] == "complete" and head["results"]["rounds"] == 2
    svg = (saved / "forest.svg").read_text()
    assert svg.startswith("<svg") and "kv-type int8 against base" in svg and "output_throughput" in svg
    arms = head["arm_runs"]
    assert all(2 <= len(runs) <= 6 for runs in arms.values())  # a busy machine spoils some, which are made again
    runs = json.loads(tally("runs", tmp_path / "runs", "--json").stdout)["runs"]
    assert [r["label"] for r in runs] == ["try"] and runs[0]["command"] == "ablate"
    # The runs of the arms are runs like any other.
    again = tally("compare", arms["base"][-1], arms["kv-type int8"][-1], "--json")
    assert json.loads(again.stdout)["settings_diff"][0]["name"] == "kv-type"


def test_table(tmp_path):
    file = write(tmp_path / "a.json", load=LOAD, base=THREADS, vary={"prefix-cache": ["off"]})
    done = tally("ablate", file, TINY, "--rounds", "1", "--out", tmp_path / "runs")
    assert done.returncode in (2, 3), (done.stdout, done.stderr)
    assert "2 arms, 1 round: 2 runs, a server of its own each; 1 contrast\n" in done.stderr
    text = done.stdout
    assert text.splitlines()[0] == f"ablation ablate of {TINY.name}: 1 round of 12 requests (random), 1 user"
    assert "prefix-cache off against base" in text and "prefix-cache on -> off; bits equal" in text
    rows = [line for line in text.splitlines() if re.match(r"  (ttft|tpot|e2e|output_throughput|peak_memory) .*[│●]", line)]
    assert len(rows) == 5 and all(len(row) <= 80 for row in rows), text
    assert "\x1b" not in text and re.search(r"^saved: .*-ablate-", text, re.M)


def test_interrupted_keeps_what_is_complete(tmp_path):
    file = write(tmp_path / "a.json", load=LOAD, base=THREADS, vary={"prefix-cache": ["off"]})
    ablation, _ = start(file, "--rounds", "40", "--out", str(tmp_path / "runs"))
    seen = set()
    for line in ablation.stderr:
        if "a round takes" in line:
            assert re.fullmatch(r"tally: a round takes .* s: about .* for the 39 that are left\n", line)
            break
    seen.update(eventually(lambda: servers_of(ablation.pid), "the next server"))
    ablation.send_signal(signal.SIGINT)
    out, err = ablation.communicate(timeout=DEADLINE_S)
    assert ablation.returncode == 130 and "interrupted" in err, (ablation.returncode, out, err)
    for pid in seen:
        assert is_gone(pid)
    (run,) = json.loads(tally("runs", tmp_path / "runs", "--json").stdout)["runs"]
    assert run["status"] == "incomplete" and "saved: " in out


def test_interrupted_twice_ends_at_once(tmp_path):
    file = write(tmp_path / "a.json", load=LOAD, base=THREADS, vary={"prefix-cache": ["off"]})
    ablation, server = start(file, "--out", str(tmp_path / "runs"))
    os.kill(server, signal.SIGSTOP)  # whoever waits for it waits for half a minute
    for together in (signal.SIGTERM, signal.SIGHUP):  # as a service manager may send them: one interrupt
        ablation.send_signal(together)
    time.sleep(0.5)
    assert ablation.poll() is None
    ablation.send_signal(signal.SIGINT)
    _, err = ablation.communicate(timeout=5)
    assert ablation.returncode == 130 and "interrupted again" in err, (ablation.returncode, err)
    eventually(lambda: is_gone(server), "the server ends with its parent")


def test_killed_leaves_no_server(tmp_path):
    file = write(tmp_path / "a.json", load=LOAD, base=THREADS, vary={"prefix-cache": ["off"]})
    ablation, server = start(file, "--out", str(tmp_path / "runs"))
    os.kill(ablation.pid, signal.SIGKILL)
    ablation.communicate(timeout=DEADLINE_S)
    eventually(lambda: is_gone(server), "the server ends with its parent")


def test_server_that_does_not_start(tmp_path):
    file = write(tmp_path / "a.json", load=LOAD, base=THREADS, vary={"chat-template": [str(tmp_path / "none.jinja")]})
    done = tally("ablate", file, TINY, "--out", tmp_path / "runs", "--rounds", "1")
    assert done.returncode == 69 and "the server ended with exit code 66 before it was ready" in done.stderr, done.stderr
    assert "arm 'chat-template " in done.stderr and "none.jinja" in done.stderr


def test_ladder(tmp_path):
    """The example as it ships: with --long on a real model, else a look at whether its arms run."""
    model, flags = (SMOL, ("--rounds", "2")) if LONG_RUN else (TINY, ("--rounds", "1", "--requests", "12", "--concurrency", "1", "--prefix-tokens", "64", "--output-tokens", "8", "--quality", "off"))
    done = tally("ablate", ROOT / "share/tally/ablate/ladder.json", model, *flags, "--out", tmp_path / "runs", "--json", timeout=1800)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    page = json.loads(done.stdout)
    steps = ["KV int8", "paged attention", "paged blocks", "continuous batching", "prefix cache", "speculation (lookup)"]
    assert [a["name"] for a in page["arms"]] == ["base", *steps, "paged attention alone"]
    contrasts = {(c["from"], c["to"]): c for c in page["contrasts"]}
    up = list(zip(["base", *steps], steps))
    assert set(contrasts) == {*up, *(("base", step) for step in steps)} and len(page["contrasts"]) == 11 and len(page["interactions"]) == 1
    changed = [[d["name"] for d in contrasts[step]["settings_diff"]] for step in up]
    assert changed == [["kv-type"], ["attention"], ["allocator"], ["batching"], ["prefix-cache"], ["speculate"]]  # each step changes one thing
    assert page["arms"][0]["kv_bytes_per_token"] > 1.5 * page["arms"][1]["kv_bytes_per_token"]
    if LONG_RUN:
        (ratio,) = (m["ratio"] for m in contrasts["base", "prefix cache"]["metrics"] if m["class"] is None and m["metric"] == "output_throughput")
        assert ratio > 1.2, page["contrasts"]  # continuous batching and a prefix cache, against neither
