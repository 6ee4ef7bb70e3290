"""tally bench load against tally serve: what it prints and stores adds up, and every wrong flag is told. Nothing here judges a speed."""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from rig import BINARY, DEADLINE_S, LONG_RUN, SMOL, clean_environment, tally
from test_cli import refused

HEAD_KEYS = {
    "schema", "tally_version", "build_id", "command", "argv", "label", "started", "status", "valid", "invalid_reasons", "warnings",
    "settings", "client_settings", "machine", "model", "workload", "results", "by_class", "by_concurrency", "stats_method",
}  # fmt: skip
NOISE = ("late", "took", "swapped", "faults", "clock")  # what a busy machine does to a run


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(SMOL)


def load(out, *arguments, **options):
    done = tally("bench", "load", *arguments, "--out", out, "--json", **options)
    assert done.returncode == 0, (arguments, done.stderr)
    return json.loads(done.stdout)


def stored(result):
    """A stored run: its head and its requests by id."""
    home = Path(result["saved"])
    lines = (home / "requests.jsonl").read_text().splitlines()
    requests = {r["id"]: r for r in map(json.loads, lines)}
    assert len(requests) == len(lines)
    return json.loads((home / "run.json").read_text()), requests


def is_valid_but_for_noise(result):
    return all(any(word in reason for word in NOISE) for reason in result["invalid_reasons"])


def test_closed_loop_adds_up(server, tmp_path):
    page = load(tmp_path, server.url, "--concurrency", "1,4", "--requests", "10", "--workload", "random", "--prompt-tokens", "40",
                "--output-tokens", "12")  # fmt: skip
    assert page["servers"][0]["takes_ids"] and page["servers"][0]["is_local"] and page["servers"][0]["kind"] == "tally"
    assert [(r["loop"], r["level"]) for r in page["results"]] == [("closed", 1), ("closed", 4)]
    for result in page["results"]:
        assert is_valid_but_for_noise(result), result["invalid_reasons"]
        figures = result["results"]
        head, requests = stored(result)
        assert HEAD_KEYS <= set(head) and head["status"] == "complete" and head["command"] == "bench load"
        assert head["model"]["sha256"] and head["settings"] and head["build_id"]
        assert figures["completed"] == 10 and figures["failed"] == figures["refused"] == 0
        assert figures["total_output_tokens"] == 120 and figures["total_input_tokens"] == 400
        assert figures["prompt_tokens_off_ratio"] == 0 and figures["prefix_hit_ratio"] == 0
        assert figures["peak_rss_anon_bytes"] > 50e6 and 0 < figures["client_cpu_share"] < 0.5
        assert figures["max_concurrent_requests"] <= result["level"]
        lengths = sorted(r["prompt_tokens_server"] for r in requests.values())
        assert lengths[0] == 26 and lengths[-1] == 54 and sum(lengths) == 400
        for r in requests.values():
            assert r["prompt_tokens_server"] == r["prompt_tokens_planned"] and r["finish"] == "length"
            assert sum(tokens for _, tokens in r["events"]) == r["output_tokens_server"] == 12
            assert r["planned_s"] == r["sent_s"] < r["first_s"] <= r["last_s"] <= r["end_s"]
            assert r["ttft_s"] == pytest.approx(r["first_s"] - r["planned_s"])
            assert r["receipt"]["total_ms"] > 0
        memory = (Path(result["saved"]) / "memory.jsonl").read_text().splitlines()
        assert memory and all(json.loads(m)["rss_anon"] > 0 for m in memory)
        steps = [json.loads(s) for s in (Path(result["saved"]) / "steps.jsonl").read_text().splitlines()]
        assert [s["step"] for s in steps] == list(range(steps[0]["step"], steps[0]["step"] + len(steps)))
        assert sum(s["prefill_tokens"] for s in steps) == 400 and sum(s["decode_tokens"] for s in steps) == 110
        assert abs(figures["plan_error_ratio"]) < 0.03 and abs(figures["unaccounted_bytes"]) < 32 << 20
        samples = [json.loads(m)["accounts"] for m in memory if "accounts" in json.loads(m)]
        assert all(a["planned_bytes"] == figures["plan_bytes"] for a in samples)


def test_open_loop_keeps_its_schedule(server, tmp_path):
    (result,) = load(tmp_path, server.url, "--rate", "20", "--requests", "20", "--workload", "random", "--prompt-tokens", "30",
                     "--output-tokens", "4", "--slo", "ttft:60000,tpot:60000")["results"]  # fmt: skip
    head, requests = stored(result)
    planned = sorted(r["planned_s"] for r in requests.values())
    assert planned[-1] == pytest.approx(20 / 20, abs=1e-3) and len(set(planned)) == 20
    assert all(r["sent_s"] >= r["planned_s"] for r in requests.values())
    assert head["client_settings"]["loop"] == "open" and head["results"]["request_rate"] == 20
    assert head["results"]["request_goodput"] == pytest.approx(head["results"]["request_throughput"])


def test_mix_in_two_repetitions_on_two_servers(server, tmp_path):
    page = load(tmp_path, f"a={server.url}", f"b={server.url}", "--concurrency", "4", "--requests", "5", "--repetitions", "2", timeout=300)
    assert [(r["server"], r["repetition"]) for r in page["results"]] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    hashes = [r["workload"]["sha256"] for r in page["results"]]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    for result in page["results"]:
        assert is_valid_but_for_noise(result), result["invalid_reasons"]
        assert {name: c["completed"] for name, c in result["by_class"].items()} == {"short": 2, "medium": 2, "long": 1}
        assert result["results"]["total_output_tokens"] == 2 * 30 + 2 * 100 + 1 * 200


def test_shared_prefixes_are_found(server, tmp_path):
    (result,) = load(tmp_path, server.url, "--concurrency", "1", "--requests", "6", "--workload", "shared-prefix", "--prefix-tokens", "192",
                     "--groups", "2", "--prompt-tokens", "20", "--output-tokens", "2")["results"]  # fmt: skip
    assert is_valid_but_for_noise(result), result["invalid_reasons"]
    assert result["results"]["cached_tokens"] >= 4 * 128  # all but the first of each group; blocks of 64


@pytest.mark.parametrize("flags", [("--api", "chat"), ("--stream", "off"), ("--workload", "multi-turn", "--prefix-tokens", "20", "--turns", "2")])
def test_other_ways_to_ask(server, tmp_path, flags):
    workload = () if "--workload" in flags else ("--workload", "random")
    (result,) = load(tmp_path, server.url, "--requests", "4", "--prompt-tokens", "20", "--output-tokens", "3", *workload, *flags)["results"]
    assert result["results"]["completed"] == 4 and result["results"]["total_output_tokens"] == 12


def test_file_of_requests(server, tmp_path):
    lines = [{"prompt": "Once upon a time", "max_tokens": 3, "at_s": 0.1 * i, "class": "story"} for i in range(3)]
    file = tmp_path / "w.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (result,) = load(tmp_path, server.url, "--workload", file, "--arrival", "trace")["results"]
    assert result["results"]["completed"] == 3 and list(result["by_class"]) == ["story"]
    assert sorted(r["planned_s"] for r in stored(result)[1].values()) == pytest.approx([0, 0.1, 0.2])
    file.write_text('{"prompt":1,"max_tokens":3}\n')
    refused(65, "bench", "load", server.url, "--workload", file, says=("line 1", "prompt: 1"))


def test_profile_says_what_no_flag_does(server, tmp_path):
    lines = [{"prompt": "Once upon a time", "max_tokens": 1} for _ in range(2)]
    file = tmp_path / "w.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = load(tmp_path, server.url, "--workload", file, "--profile", "standard")
    assert [(r["repetition"], r["results"]["completed"]) for r in page["results"]] == [(i, 2) for i in range(5)]  # all of the file, five times
    out = ("--workload", "random", "--prompt-tokens", "20", "--output-tokens", "1", "--concurrency", "16", "--out", tmp_path)
    (result,) = load(tmp_path, server.url, *out[:-2])["results"]
    assert result["results"]["completed"] == 200  # look
    done = tally("bench", "load", server.url, *out, "--profile", "release", "--requests", "3")
    assert done.returncode == 0 and "15 of 15 requests completed" in done.stdout, done.stdout
    assert "over 5 runs, ms: TTFT P50 " in done.stdout and "; E2E P50 " in done.stdout
    refused(64, "bench", "load", server.url, "--profile", "glance", says=("--profile", "look | standard | release"))


@contextlib.contextmanager
def listening(handle, **options):
    """The port of an asyncio server in a thread of its own."""
    ports, loop, over = [], asyncio.new_event_loop(), threading.Event()

    async def serve():
        server = await asyncio.start_server(handle, "127.0.0.1", 0, **options)
        ports.append(server.sockets[0].getsockname()[1])
        over.set()
        async with server:
            await server.serve_forever()

    def work():
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=work)
    thread.start()
    assert over.wait(DEADLINE_S)
    try:
        yield ports[0]
    finally:
        for task in asyncio.all_tasks(loop):
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()


def certificate(home, names):
    key, cert = home / "key.pem", home / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=tally", "-addext", f"subjectAltName={names}"], check=True, capture_output=True)  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, {"SSL_CERT_FILE": str(cert)}


def test_over_tls(server, tmp_path):
    async def forward(reader, writer):
        """TLS ends here, as at a proxy before a server."""
        there, back = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))

        async def pump(source, sink):
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))

    context, trust = certificate(tmp_path, "IP:127.0.0.1")
    with listening(forward, ssl=context) as port:
        url = f"https://127.0.0.1:{port}"
        flags = ("--requests", "6", "--concurrency", "2", "--workload", "random", "--prompt-tokens", "20", "--output-tokens", "8")
        (result,) = load(tmp_path / "runs", url, *flags, env=trust)["results"]
        assert result["results"]["completed"] == 6 and result["results"]["total_output_tokens"] == 48 and result["results"]["median_ttft_ms"] > 0
        refused(69, "bench", "load", url, *flags, says=("certificate verify failed", url))
        done = tally("snapshot", url, env=trust)
        assert done.returncode == 0 and "unaccounted" in done.stdout, done.stderr
    (tmp_path / "other").mkdir()
    context, trust = certificate(tmp_path / "other", "DNS:elsewhere.example")
    with listening(forward, ssl=context) as port:
        done = tally("bench", "load", f"https://127.0.0.1:{port}", *flags, env=trust)
        assert done.returncode == 69 and "certificate verify failed" in done.stderr, done.stderr


if LONG_RUN:

    def test_generator_takes_little(tmp_path):
        """10 streams of 50 tokens a second each: what the generator takes of a core while it notes 500 tokens a second."""
        tokens, streams = 150, 10

        async def answer(reader, writer):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode()
                    length = next((int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
                    await reader.readexactly(length)
                    if head.startswith("GET /v1/models "):
                        body = b'{"object":"list","data":[{"id":"clock"}]}'
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                    elif not head.startswith("POST /v1/completions "):
                        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    else:
                        await stream(writer)
                    await writer.drain()

        async def stream(writer):
            def event(data):
                text = f"data: {data}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(text), text))

            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            begin = asyncio.get_running_loop().time()
            for i in range(tokens):
                await asyncio.sleep(begin + 0.02 * (i + 1) - asyncio.get_running_loop().time())
                event('{"choices":[{"index":0,"text":" word"}]}')
            event('{"choices":[{"index":0,"text":"","finish_reason":"length"}]}')
            event('{"choices":[],"usage":{"prompt_tokens":60,"completion_tokens":%d}}' % tokens)
            event("[DONE]")
            writer.write(b"0\r\n\r\n")

        with listening(answer) as port:
            (result,) = load(tmp_path, f"http://127.0.0.1:{port}", "--concurrency", str(streams), "--requests", str(4 * streams), "--workload", "random",
                             "--prompt-tokens", "60", "--output-tokens", str(tokens))["results"]  # fmt: skip
        figures = result["results"]
        assert figures["completed"] == 4 * streams and figures["output_throughput"] > 450
        share = figures["client_cpu_s"] / figures["duration"]
        print(f"generator: {100 * share:.2f} % of a core at {figures['output_throughput']:.0f} tokens/s")
        assert share <= 0.05, figures


def test_table_and_capacity(server, tmp_path):
    done = tally("bench", "load", server.url, "--concurrency", "2", "--requests", "6", "--workload", "random", "--prompt-tokens", "20",
                 "--output-tokens", "3", "--slo", "ttft:0.001", "--find-capacity", "--out", tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "knee: none" in done.stdout and "saved: " in done.stdout and "TTFT P50" in done.stdout
    assert "VALID" in done.stdout and "\x1b" not in done.stdout + done.stderr


def test_interrupted_run_is_kept(server, tmp_path):
    bench = subprocess.Popen(
        [BINARY, "bench", "load", server.url, "--requests", "3000", "--out", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    assert any("of 3000 ended" in line for line in bench.stderr)  # a line each 5 s; the warm-up is behind it
    bench.send_signal(signal.SIGINT)
    _, err = bench.communicate(timeout=DEADLINE_S)
    assert bench.returncode == 130 and "interrupted" in err, (bench.returncode, err)
    (home,) = tmp_path.iterdir()
    head = json.loads((home / "run.json").read_text())
    assert head["status"] == "incomplete" and not head["valid"] and "interrupted" in head["invalid_reasons"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--concurrency", "0"), ("--concurrency", "1..4096")),
        (("--rate", "x"), ("--rate", "x", "allowed")),
        (("--rate", "1", "--concurrency", "1"), ("--rate", "--concurrency")),
        (("--slo", "ttft"), ("--slo", "ttft:MS")),
        (("--slo", "ttft:-1"), ("--slo", "ttft:-1")),
        (("--arrival", "often"), ("--arrival", "poisson")),
        (("--arrival", "trace"), ("--arrival trace", "at_s")),
        (("--api", "embeddings"), ("--api", "completions")),
        (("--requests", "0"), ("--requests", "1..")),
        (("--workload", "random", "--prompt-tokens", "10"), ("--prompt-tokens 10",)),
        (("--find-capacity",), ("--slo",)),
    ],
)
def test_wrong_flags(flags, says):
    refused(64, "bench", "load", "http://127.0.0.1:1", *flags, says=says)


def test_wrong_urls():
    refused(64, "bench", "load", says="URL")
    for url in ("127.0.0.1:8000", "ftp://127.0.0.1", "http://127.0.0.1:0", "https://127.0.0.1:99999"):
        refused(64, "bench", "load", url, says=(url, "http://HOST"))
    refused(66, "bench", "load", "http://127.0.0.1:1", "--workload", "no/such/file", says=("--workload", "shared-prefix"))
    with socket.socket() as s:  # bound, nobody listens
        s.bind(("127.0.0.1", 0))
        refused(69, "bench", "load", f"http://127.0.0.1:{s.getsockname()[1]}", says="refused")
