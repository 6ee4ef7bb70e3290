"""tally explain over a real short run, a stored one made by hand, and a live server: shares sum to 1, sentences follow from the steps."""

import http.server
import json
import threading

import pytest

from rig import ROOT, SMOL, tally
from test_cli import refused
from test_compare import write_run
from test_doctor import ROOFS, keep_roofs


@pytest.fixture(scope="module")
def server(start_shared, tmp_path_factory):
    home = tmp_path_factory.mktemp("cache")
    keep_roofs(home)
    return start_shared(SMOL, "--tuning-cache", home)


def explained(*arguments, **options):
    done = tally("explain", *arguments, "--json", **options)
    assert done.returncode == 0, (arguments, done.stderr)
    page = json.loads(done.stdout)
    assert page["wall_s"] == 0 or sum(page["shares"].values()) == pytest.approx(1, abs=0.01)
    return page


def sentences(page):
    return "\n".join(s["text"] for s in page["sentences"])


def step(number, t_us, **fields):
    """A decode step of 10 ms that reads 186 MB, all of it in the pass."""
    return {"step": number, "t_us": t_us, "duration_us": 10000, "prefill_tokens": 0, "decode_tokens": 1, "sequences": 1, "running": 1, "waiting": 0,
            "weight_bytes": 186e6, "kv_bytes": 0, "activation_bytes": 0, "flops": 1e8, "kv_free": 9, "kv_held": 1, "kv_cached": 0,
            "phases_us": {"linear": 10000}} | fields  # fmt: skip


def stored(path, steps, roofs=ROOFS):
    write_run(path, requests=4, settings={"settings": {"threads": {"value": "2"}}, "roofs": roofs})
    (path / "steps.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))
    return path


def test_a_run_whose_answer_is_known(tmp_path):
    run = stored(tmp_path / "run", [step(i + 1, 10**6 + 10000 * i) for i in range(10)])
    page = explained(run)
    assert page["threads"] == 2 and page["roofs_source"] == "told by the server" and page["steps"] == 10
    assert page["shares"]["bandwidth"] == pytest.approx(0.93) and page["shares"]["overhead"] == pytest.approx(0.07)
    assert page["kinds"]["decode"]["efficiency"] == pytest.approx(0.93) and page["kinds"]["decode"]["bound"] == "bandwidth"
    assert page["sentences"][0] == {"text": "decode is bandwidth bound: 18.6 of 20.0 GB/s (93 %)", "predicted": False, "flag": None,
                                    "evidence": page["sentences"][0]["evidence"]}  # fmt: skip
    assert "step_times" not in page
    assert [s["bound"] for s in explained(run, "--steps")["step_times"]] == ["bandwidth"] * 10
    text = tally("explain", run)
    assert text.returncode == 0 and text.stderr == "" and "\x1b" not in text.stdout
    lines = text.stdout.splitlines()
    assert "- decode is bandwidth bound: 18.6 of 20.0 GB/s (93 %)" in lines
    assert any(line.startswith("  bandwidth    93.0 %  ####") for line in lines), text.stdout
    assert "[predicted]; try: more requests at once" in " ".join(text.stdout.split())
    assert text.stdout == tally("explain", run).stdout


def test_golden_page(tmp_path):
    steps = [step(i + 1, 10**6 + 10000 * i) for i in range(8)]
    for i in range(5):  # prompts of 64 tokens beside a decoding request, then a pause without work
        steps.append(step(9 + i, 1080000 + 40000 * i, duration_us=40000, prefill_tokens=64, sequences=2, flops=12e9, kv_held=5, running=int(i < 4),
                          phases_us={"plan": 500, "linear": 35000, "attention": 2000, "sample": 1500, "commit": 1000}))  # fmt: skip
    steps.append(step(14, 1300000, prefill_tokens=64, decode_tokens=0, flops=3e9, kv_held=3))
    run = stored(tmp_path / "run", steps)
    lines = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    for i, line in enumerate(lines):  # 1 waits for 0's prompt, and so on
        sent = 0.1 * i
        line.update(planned_s=sent, sent_s=sent, end_s=sent + 1, prompt_tokens_server=100 * (i + 1), events=[[sent + 0.3 + 0.1 * i, 1], [sent + 0.9 + 0.01 * i, 19]])
        line["receipt"] = {"queue_ms": 100 * i, "tokenize_ms": 5, "prefill_ms": 295, "stalled_ms": 10, "decode_ms": 480 - 100 * i, "sample_ms": 20,
                           "detokenize_ms": 1, "send_ms": 2, "preemptions": int(i == 3)}  # fmt: skip
    head = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(head | {"clock": {"server_us_at_0": 900000, "error_us": 50}}))
    (run / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tally("explain", run).stdout.split("\n", 1)[1] == (ROOT / "tests/golden/explain/page.txt").read_text()


def test_a_server_that_is_no_tally():
    class Foreign(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.path == "/metrics"
            self.send_response(200 if known else 404)
            body = b"vllm:num_requests_running 1\nvllm:num_preemptions_total 2\n" if known else b"{}"
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = explained(f"http://127.0.0.1:{server.server_port}", "--seconds", "1")
        server.shutdown()
    assert page["steps"] == 0 and page["roofs"] is None and page["cap"]["preemptions"] == 0
    assert any("no /v1/settings" in doubt for doubt in page["doubts"]) and any("no step is known" in doubt for doubt in page["doubts"])


def test_what_is_not_known_is_said(tmp_path):
    run = stored(tmp_path / "run", [step(1, 10**6), step(9, 2 * 10**6)], roofs=None)
    page = explained(run)
    assert page["roofs"] is None and page["shares"]["forward"] == 1 and page["steps_missing"] == 7
    doubts = "\n".join(page["doubts"])
    assert "roofs of the server's machine are not known" in doubts and "7 steps are not there" in doubts and "4 of 4 requests have no receipt" in doubts
    assert explained(stored(tmp_path / "none", []))["doubts"][0].startswith("no step is known")


def test_a_real_run(server, tmp_path):
    out = tally("bench", "load", server.url, "--concurrency", "3", "--requests", "6", "--workload", "random",
                "--prompt-tokens", "60", "--output-tokens", "12", "--out", tmp_path, "--json")  # fmt: skip
    assert out.returncode == 0, out.stderr
    saved = json.loads(out.stdout)["results"][0]["saved"]
    machine = json.loads(open(f"{saved}/run.json").read())["machine"]
    assert machine["roof_bytes_per_s"] == ROOFS["bytes_per_s"] and machine["roof_ops_per_s"] == ROOFS["ops_per_s"]
    assert machine["roof_kernel_ops_per_s"] == ROOFS["kernel_ops_per_s"]
    page = explained(saved)
    assert page["steps"] > 12 and page["steps_missing"] == 0 and page["kinds"]["decode"]["steps"] > 0
    assert page["roofs_source"] == "told by the server" and page["roofs"]["bytes_per_s"] == ROOFS["bytes_per_s"]
    requests = page["requests"]
    assert requests["completed"] == requests["with_receipt"] == 6
    assert sum(requests["all"]["shares"].values()) == pytest.approx(1, abs=0.01)
    assert list(requests["by_class"]) == ["random"]
    assert len(requests["worst_ttft"]) == 3 and requests["worst_ttft"][0]["wait_s"] >= requests["worst_ttft"][1]["wait_s"]
    assert requests["worst_ttft"][0]["prefilled_meanwhile"], "three at once: somebody else was prefilled"
    assert requests["worst_ttft"][0]["engine"]["prefill_tokens"] > 0 and requests["worst_ttft"][0]["engine"]["wall_s"] > 0
    assert "the memory cap cost nothing" in sentences(page)
    text = tally("explain", saved).stdout
    assert "Q4_1: its kernels, in the caches:" in text and "8 rows" in text
    for part in ("share of E2E by stage", "longest waits for a first token", "longest gaps between tokens", "slowest requests: q queue", "|"):
        assert part in text, text


def test_a_live_server(server):
    over = threading.Event()

    def work():
        while not over.is_set():
            server.complete("Once upon a time", max_tokens=20, ignore_eos=True)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        page = explained(server.url, "--seconds", "1")
    finally:
        over.set()
        worker.join()
    assert page["requests"] is None and page["steps"] > 3 and page["wall_s"] == pytest.approx(1, abs=0.5)
    assert page["shares"]["forward"] == 0 < page["shares"]["bandwidth"] and page["cap"]["preemptions"] == 0
    assert explained(server.url)["steps"] > page["steps"]  # all that the log holds
    assert explained(server.url, "--seconds", "1")["shares"]["idle"] == 1


def test_bad_input(tmp_path):
    stored(tmp_path / "20261130-061736-load-0a1b2c3d", [])
    missing = refused(66, "explain", tmp_path / "20261130-061736-lod-0a1b2c3d")
    assert f"did you mean {tmp_path}/20261130-061736-load-0a1b2c3d?" in missing and "the newest in" in missing
    for command in (("report",), ("trace",), ("compare", tmp_path / "20261130-061736-load-0a1b2c3d")):
        assert "the newest in" in refused(66, *command, tmp_path / "none"), command
    assert refused(64, "explain")
    assert "--seconds" in refused(64, "explain", tmp_path, "--seconds", "2")
    assert refused(69, "explain", "http://127.0.0.1:9")
    assert refused(69, "explain", "https://127.0.0.1:9")
