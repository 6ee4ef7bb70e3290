"""tally compare and tally runs over stored runs: words, exit codes, gates, and every bad directory is told."""

import json
import random

import pytest

from rig import TINY, tally
from test_cli import refused


def write_run(path, seed=1, slower=1.0, noise=0.01, requests=60, **head):
    """A stored run as bench load leaves it: one user, requests of 20 tokens, times multiplied by `slower`."""
    path.mkdir(parents=True)
    prompts, own, now = random.Random(seed), random.Random(str(path)), 0.0
    with open(path / "requests.jsonl", "w") as lines:
        for i in range(requests):
            size = slower * prompts.uniform(0.5, 2)
            first = now + 0.2 * size * own.gauss(1, noise)
            last = first + 0.4 * slower * own.gauss(1, noise)
            record = {"id": i, "class": "short" if i % 3 else "long", "status": "completed", "http": 200, "planned_s": now, "sent_s": now,
                      "end_s": last, "output_tokens_server": 20, "prompt_tokens_server": 100, "finish": "length", "from_tomorrow": [],
                      "events": [[first, 1], [last, 19]]}  # fmt: skip
            lines.write(json.dumps(record) + "\n")
            now = last
    full = {"schema": 1, "status": "complete", "valid": True, "label": "run", "started": "2026-11-30T06:00:00Z", "model": {"sha256": "m", "path_basename": "m.gguf"},
            "workload": {"sha256": f"w{seed}", "name": "mix"}, "machine": {"fingerprint": "f00dbeef99"}, "settings": {"settings": {"kv-type": {"value": "int8"}}},
            "results": {"completed": requests, "peak_rss_anon_bytes": 2**30, "output_throughput": 12.5}}  # fmt: skip
    (path / "run.json").write_text(json.dumps(full | head))
    return path


def write_arms(home, pairs=8, slower=1.0, **b):
    for i in range(pairs):
        drift = 1 + 0.05 * i
        write_run(home / "a" / f"{i}", seed=i, slower=drift)
        write_run(home / "b" / f"{i}", seed=i, slower=drift * slower, **b)
    return str(home / "a"), str(home / "b")


def compared(code, *arguments):
    done = tally("compare", *arguments, "--json")
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    page = json.loads(done.stdout)
    assert page["exit_code"] == code
    return page, {m["metric"]: m for m in page["metrics"] if m["class"] is None}


def test_slower_faster_same(tmp_path):
    a, b = write_arms(tmp_path, slower=1.2, settings={"settings": {"kv-type": {"value": "bf16"}}})
    page, metrics = compared(1, a, b)
    assert page["verdict"] == "SLOWER" and page["pairs"] == 8 and page["requests"] == 480
    for name in ("ttft", "tpot", "e2e", "output_throughput"):
        assert metrics[name]["verdict"] == "SLOWER" and metrics[name]["ratio"] == pytest.approx(1 / 1.2, rel=0.02), name
        low, high = metrics[name]["ci95"]
        assert low <= metrics[name]["ratio"] <= high and metrics[name]["p"] == pytest.approx(2 / 256)
    assert metrics["peak_memory"]["verdict"] == "SAME" and metrics["peak_memory"]["ratio"] == 1
    assert page["settings_diff"] == [{"name": "kv-type", "a": "int8", "b": "bf16"}]
    assert compared(0, b, a)[0]["verdict"] == "FASTER"
    text = tally("compare", a, b)
    assert text.returncode == 1 and text.stderr == ""
    lines = text.stdout.splitlines()
    assert lines[2] == "8 pairs, 480 requests completed in both arms; 1 variable changed: kv-type int8 -> bf16"
    assert lines[3].startswith("SLOWER: ttft of B against A 0.8")
    assert text.stdout == tally("compare", a, b).stdout  # a fixed seed


def test_equal_is_same(tmp_path):
    page, metrics = compared(0, *write_arms(tmp_path))
    assert page["verdict"] == "SAME" and all(m["verdict"] == "SAME" for m in metrics.values() if m["judged"])
    assert "no setting differs" in tally("compare", str(tmp_path / "a"), str(tmp_path / "b")).stdout


def test_one_pair_and_five_cannot_decide(tmp_path):
    write_arms(tmp_path, pairs=5, slower=2)
    pairs = [str(tmp_path / arm / f"{i}") for i in range(5) for arm in "ab"]
    page, metrics = compared(2, *pairs[:2])
    assert page["verdict"] == "UNDECIDED" and metrics["ttft"]["pairs_needed"] == 7 and metrics["ttft"]["ci95"] == [None, None]
    assert metrics["ttft"]["ratio"] == pytest.approx(0.5, rel=0.02)
    assert "UNDECIDED  needs about 7 more pairs" in tally("compare", *pairs[:2]).stdout
    page, metrics = compared(2, *pairs)
    assert page["pairs"] == 5 and metrics["tpot"]["p"] == 0.0625


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        ({"valid": False, "invalid_reasons": ["the generator lagged"]}, "B1 valid by itself: not valid; the generator lagged"),
        ({"status": "incomplete"}, "B1 complete: incomplete; must be: complete"),
        ({"model": {"sha256": "another"}}, "pair 1: model SHA-256: m and another"),
        ({"workload": {"sha256": "other"}}, "pair 1: workload SHA-256: w0 and other"),
    ],
)
def test_gates(tmp_path, spoilt, says):
    a, b = write_arms(tmp_path, **spoilt)
    page, metrics = compared(3, a, b)
    assert page["verdict"] == "INVALID" and {m["verdict"] for m in metrics.values() if m["judged"]} == {"INVALID"}
    text = tally("compare", a, b)
    assert text.returncode == 3 and f"INVALID: {says}" in text.stdout


def test_noise_of_the_machine(tmp_path):
    a, _ = write_arms(tmp_path)
    aa = tmp_path / "aa"
    for i in range(8):  # neighbours are a pair
        write_run(aa / f"{i}", seed=i // 2, slower=1 + 0.03 * (i % 2) * (-1) ** (i // 2))
    text = tally("compare", str(aa), str(aa))
    assert text.returncode in (0, 2), (text.stdout, text.stderr)
    stored = json.loads((aa / "noise-f00dbeef.json").read_text())
    assert stored["pairs"] == 4 and 1.02 < stored["metrics"]["tpot"]["detectable_ratio_8"] < 1.1
    assert stored["metrics"]["tpot"]["detectable_ratio_20"] < stored["metrics"]["tpot"]["detectable_ratio_8"]
    assert "noise of this machine (4 pairs" in text.stdout and f"saved: {aa}/noise-f00dbeef.json" in text.stdout
    # It is used where it lies beside the runs, and where it is named.
    b = str(tmp_path / "b")
    page, metrics = compared(2, a, b, "--noise", f"{aa}/noise-f00dbeef.json")
    assert metrics["tpot"]["verdict"] == "SAME" and metrics["output_throughput"]["verdict"] == "UNDECIDED"  # about 4 %: above 2, below 5
    assert metrics["tpot"]["detectable_ratio"] == pytest.approx(stored["metrics"]["tpot"]["detectable_ratio_8"], rel=1e-6)
    assert compared(0, a, b)[0]["noise"] is None
    stored["metrics"]["tpot"]["sd_log"] = 0.2
    (tmp_path / "a/noise-f00dbeef.json").write_text(json.dumps(stored))
    assert compared(2, a, b)[1]["tpot"]["verdict"] == "UNDECIDED"
    refused(66, "compare", a, b, "--noise", f"{tmp_path}/none.json", says="none.json")


def test_bad_runs_are_told(tmp_path):
    a, b = (str(write_run(tmp_path / name)) for name in "ab")
    refused(64, "compare", says="0 arguments")
    refused(64, "compare", a, says="1 arguments")
    refused(64, "compare", a, a, says="one run against itself")
    refused(64, "compare", a, b, a, says="3 arguments")
    refused(66, "compare", a, f"{tmp_path}/none", says="none: no stored run")
    lines = (tmp_path / "b/requests.jsonl").read_text().splitlines()
    for bad, says in [
        ("{", "requests.jsonl: line 3: no JSON"),
        ("[]", "line 3: [] instead of an object"),
        ('{"id":1,"status":"lost"}', 'line 3: status: "lost" instead of completed, failed, refused or incomplete'),
        ('{"id":2.5,"status":"failed"}', "line 3: id: 2.5 instead of a whole number"),
        (lines[0], "B1: id 0 stands there twice"),
    ]:
        (tmp_path / "b/requests.jsonl").write_text("\n".join([*lines[:2], bad, *lines[3:]]))
        refused(65, "compare", a, b, says=says)
    (tmp_path / "b/run.json").write_text('{"schema": 2}')
    refused(65, "compare", a, b, says=("run.json: schema: 2", "newer than 1"))


def test_runs(tmp_path):
    home = tmp_path / "runs"
    write_run(home / "20261130-060000-one-00000000", label="one")
    write_run(home / "20261130-070000-two-00000000", label="two\x1b[31m", valid=False)
    write_run(home / ".unfinished", label="hidden")
    (home / "20261130-080000-bad-00000000").mkdir()
    (home / "20261130-080000-bad-00000000/run.json").write_text("{")
    page = json.loads(tally("runs", str(home), "--json").stdout)
    assert [r["label"] for r in page["runs"]] == ["one", "two\x1b[31m"] and [r["valid"] for r in page["runs"]] == [True, False]
    assert page["runs"][0]["model"] == "m.gguf" and page["runs"][0]["workload"] == "mix" and page["runs"][0]["results"]["completed"] == 60
    assert len(page["unreadable"]) == 1 and "bad-00000000/run.json: no JSON" in page["unreadable"][0]
    text = tally("runs", str(home))
    assert text.returncode == 0 and "one" in text.stdout and "\x1b" not in text.stdout and "hidden" not in text.stdout
    assert "no JSON" in text.stderr
    assert "no stored runs" in tally("runs", str(home / ".unfinished")).stdout
    refused(66, "runs", str(tmp_path / "none"), says="none: no such directory")
    refused(64, "runs", "a", "b", says="2 arguments")


def test_live_servers_in_turns(tmp_path, start):
    a, b = start(TINY), start(TINY, "--prefix-cache", "off")
    load = ("--requests", "12", "--repetitions", "2", "--out", f"{tmp_path}/runs", "--workload", "random", "--prompt-tokens", "24",
            "--output-tokens", "8", "--label", "live")  # fmt: skip
    done = tally("compare", f"A={a.url}", f"B={b.url}", *load, "--json")
    assert done.returncode in (2, 3), (done.stdout, done.stderr)  # two pairs decide nothing; a loaded machine may spoil them
    page = json.loads(done.stdout)
    assert page["pairs"] == 2 and page["requests"] == 24 and len(page["runs"]) == 4
    assert [(c["name"], c["a"], c["b"]) for c in page["settings_diff"]] == [("prefix-cache", "on", "off")]
    runs = json.loads(tally("runs", f"{tmp_path}/runs", "--json").stdout)["runs"]
    assert sorted(r["label"] for r in runs) == ["live-a1", "live-a2", "live-b1", "live-b2"]
    started = {r["label"]: r["started"] for r in runs}
    assert started["live-a1"] <= started["live-b1"] <= started["live-b2"] <= started["live-a2"]
    # The stored runs say the same again.
    again = json.loads(tally("compare", *page["runs"], "--json").stdout)
    assert again["metrics"] == page["metrics"] and again["verdict"] == page["verdict"]
    refused(64, "compare", a.url, says="1 servers; two, A and B")
    refused(64, "compare", f"A={a.url}", f"B={b.url}", "--concurrency", "1,2", says="one value")
