"""tally doctor on whatever machine this is: every check has a word, evidence and, where something is wrong, a remedy."""

import json
import time

from rig import SMOL, TINY, tally
from test_cli import refused

ROOFS = {"isa": "avx2", "bytes_per_s": {"1": 10e9, "2": 20e9}, "ops_per_s": {"int8": 400e9, "f32": 100e9},
         "kernel_ops_per_s": {"q4_1": {"1": 60e9, "8": 200e9, "64": 300e9}}}  # fmt: skip

CHECKS = ["threads", "cpu quota", "smt", "huge pages", "memlock", "swap", "frequency", "instruction sets", "bandwidth", "steal", "other programs",
          "page cache", "open files", "clock", "memory limit", "numa", "overcommit"]  # fmt: skip


def keep_roofs(home):
    """What a doctor on a quiet machine would have left for this one."""
    machine = json.loads(tally("doctor", "--json", "--roofs", "off").stdout)["machine"]
    (home / "roofs").write_text(json.dumps({"schema": 1, "fingerprint": machine["fingerprint"], "roofs": ROOFS}))


def test_every_check_speaks(tmp_path):
    begin = time.monotonic()
    done = tally("doctor", SMOL, "--json", "--tuning-cache", tmp_path)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 20  # 3 s on a quiet machine
    page = json.loads(done.stdout)
    assert [f["check"] for f in page["findings"]] == CHECKS
    for finding in page["findings"]:
        assert finding["finding"] and finding["health"] in ("OK", "NOTE", "WARN"), finding
        if finding["health"] != "OK":
            assert finding["evidence"] and finding["effect"] and finding["fix"], finding
    assert page["roofs"]["bytes_per_s"]["1"] > 1e8 and page["roofs"]["ops_per_s"]["int8"] > 1e9
    cache = next(f for f in page["findings"] if f["check"] == "page cache")
    assert "GiB cached" in cache["evidence"]


def test_words_for_people_and_strictness():
    done = tally("doctor", "--roofs", "off")
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith(("OK   threads", "NOTE threads", "WARN threads")), lines[0]
    assert lines[-1].startswith("17 checks: ")
    strict = tally("doctor", "--roofs", "off", "--strict")
    assert strict.returncode == (1 if "\nWARN" in "\n" + strict.stdout else 0), strict.stdout


def test_bad_input(tmp_path):
    assert "no file that can be read" in refused(66, "doctor", tmp_path / "none.gguf")
    assert refused(64, "doctor", "a", "b")
    assert refused(64, "doctor", "--roofs", "guess")


def test_kept_roofs_are_told_by_servers(start, tmp_path):
    keep_roofs(tmp_path)
    server = start(TINY, "--tuning-cache", tmp_path)
    told = server.get("/v1/settings").json["roofs"]
    assert told["isa"] == "avx2" and told["bytes_per_s"] == ROOFS["bytes_per_s"] and told["ops_per_s"] == ROOFS["ops_per_s"]
    assert told["kernel_ops_per_s"] == ROOFS["kernel_ops_per_s"]
    server.complete("the sea", max_tokens=20, ignore_eos=True)
    metrics = server.metrics()
    assert metrics['tally_roof_bytes_per_second{threads="1"}'] == ROOFS["bytes_per_s"]["1"] and metrics['tally_roof_flops{threads="1"}'] > 0
    bound = {by: metrics[f'tally_bound_seconds_total{{by="{by}"}}'] for by in ("bandwidth", "compute", "forward")}
    assert bound["bandwidth"] + bound["compute"] > 0 and bound["forward"] < 1e-6, bound
    page = json.loads(tally("doctor", "--json", "--tuning-cache", tmp_path).stdout)
    assert page["roofs"]["bytes_per_s"] == ROOFS["bytes_per_s"]  # kept, not measured
    (tmp_path / "roofs").write_text('{"schema": 1, "fingerprint": "another machine", "roofs": {"bytes_per_s": {"1": 1e9}}}')
    other = start(TINY, "--tuning-cache", tmp_path)
    assert other.get("/v1/settings").json["roofs"] is None
    other.complete("the sea", max_tokens=3)
    metrics = other.metrics()
    assert metrics['tally_roof_flops{threads="1"}'] == 0 and metrics['tally_bound_seconds_total{by="forward"}'] > 0
