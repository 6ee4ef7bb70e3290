"""Programs of others, unmodified and each in its own environment: a load generator that counts, a router that is cache-aware."""

import json
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import hf_tokenizer
from rig import DEADLINE_S, LONG_RUN, ROOT, SMOL, Wire, eventually

PROGRAMS = {name: ROOT / f".venv-{name}/bin/{command}" for name, command in (("aiperf", "aiperf"), ("router", "smg"))}


def free_ports(count):
    """Ports nobody listens on; held until all are known, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in held]
    for sock in held:
        sock.close()
    return ports


def homeless(folder):
    """An environment in which a program finds nothing of its user's, and no hub."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TMPDIR")}
    return kept | {"HOME": str(folder), "HF_ENDPOINT": "http://127.0.0.1:1", "NO_COLOR": "1"}


class Router:
    """sglang-router in front of servers, with a log that a failure shows."""

    def __init__(self, servers, folder):
        self.port, metrics_port = free_ports(2)
        self.log = folder / "router.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [PROGRAMS["router"], "launch", "--host", "127.0.0.1", "--port", str(self.port), "--policy", "cache_aware",
                 "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), "--worker-startup-check-interval", "1",
                 "--health-check-interval-secs", "1", "--health-failure-threshold", "2", "--worker-urls", *(s.url for s in servers)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=homeless(folder),
            )  # fmt: skip
        eventually(lambda: self.healthy() == len(servers), "the router has found every server")

    def healthy(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            with Wire(self.port) as wire:
                reply = wire.request("GET", "/workers").reply()
        except ConnectionRefusedError:
            return 0
        return sum(worker["is_healthy"] for worker in reply.json["workers"])

    def post(self, body):
        with Wire(self.port) as wire:
            return wire.request("POST", "/v1/completions", body).reply()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()


FAMILIES = 6
GREEDY = {"temperature": 0, "ignore_eos": True}


def prompt_of(family, member):
    """Members of a family begin alike, for several blocks of KV, and as no other family does."""
    return f"Family {family}. " + f"Story {family} of the {'green blue red old tall wide'.split()[family]} boat. " * 30 + f"Part {member}:"


if LONG_RUN:

    @pytest.fixture
    def routed(start, tmp_path):
        servers = [start(SMOL, "--kv-pool", "96MiB", "--threads", "1", "--block-tokens", "16") for _ in range(2)]
        router = Router(servers, tmp_path)
        yield servers, router
        router.stop()

    def test_router_keeps_prefixes_together_and_survives_a_server(routed, start):
        servers, router = routed
        model = servers[0].model

        def ask(family, member, tokens=8):
            body = {"model": model, "prompt": prompt_of(family, member), "max_tokens": tokens, **GREEDY}
            reply = router.post(body)
            assert reply.status == 200, (family, member, reply)
            return reply.json

        def counted(name):
            return [server.metrics()[name] for server in servers]

        # At once, so that the router has loads to balance; then one after the other: the server whose counter moved has answered.
        with ThreadPoolExecutor(FAMILIES) as pool:
            first = list(pool.map(lambda family: ask(family, 0, tokens=100), range(FAMILIES)))
        assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in first] == [0] * FAMILIES
        served_by, golden, expected_hits = {family: set() for family in range(FAMILIES)}, {}, [0, 0]
        for member in range(1, 5):
            for family in range(FAMILIES):
                before = counted('tally_requests_received_total{route="completions"}')
                answer = ask(family, member)
                moved = [after - b for after, b in zip(counted('tally_requests_received_total{route="completions"}'), before)]
                assert sorted(moved) == [0, 1], moved
                golden[family, member] = answer["choices"][0]["text"]
                cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert cached > 200, (family, member, answer["usage"])
                served_by[family].add(moved.index(1))
                expected_hits[moved.index(1)] += cached
        assert all(len(where) == 1 for where in served_by.values()), f"a family was torn apart: {served_by}"
        assert counted("vllm:prefix_cache_hits_total") == expected_hits and min(expected_hits) > 0, expected_hits
        home = {family: where.pop() for family, where in served_by.items()}

        # Streams run on both when one is killed: those of the other end well, and whatever comes later is answered.
        def stream(family):
            body = {"model": model, "prompt": prompt_of(family, 0), "max_tokens": 300, "stream": True, **GREEDY}
            with Wire(router.port) as wire:
                wire.request("POST", "/v1/completions", body)
                status, headers = wire.head()
                assert status == 200, (status, headers)
                return b"".join(wire.pieces(headers))

        killed, kept = (servers[home[0]], servers[1 - home[0]])
        with ThreadPoolExecutor(2 * FAMILIES) as pool:
            running = {family: pool.submit(stream, family) for family in range(FAMILIES)}
            eventually(lambda: sum(counted("vllm:num_requests_running")) == FAMILIES, "every stream runs")
            killed.signal(signal.SIGKILL)
            assert killed.wait() == -signal.SIGKILL
            start.started.remove(killed)
            later = {key: pool.submit(ask, *key) for key in golden}
            answers = {key: future.result()["choices"][0]["text"] for key, future in later.items()}
        assert answers == golden
        for family, future in running.items():
            if servers[home[family]] is kept:
                assert future.result().endswith(b"data: [DONE]\n\n"), family
            elif future.exception() is None:
                assert not future.result().endswith(b"data: [DONE]\n\n"), "it ran on the server that was killed"
        eventually(lambda: router.healthy() == 1, "the router sees who has gone")
        assert {key: ask(*key)["choices"][0]["text"] for key in golden} == golden
        kept.at_rest()

    @pytest.mark.parametrize("endpoint", ["completions", "chat"])
    def test_aiperf_counts_what_the_server_counts(start, tmp_path, endpoint):
        server = start(SMOL, "--kv-pool", "128MiB")
        tokenizer = hf_tokenizer.write(SMOL, tmp_path / "tokenizer")
        before = server.metrics()
        requests, out = 40, tmp_path / "out"
        done = subprocess.run(
            [PROGRAMS["aiperf"], "profile", "-m", server.model, "--tokenizer", tokenizer, "--url", server.url, "--streaming",
             "--endpoint-type", endpoint, "--request-count", str(requests), "--concurrency", "8", "--workers-max", "1", "--random-seed", "7",
             "--isl", "80", "--isl-stddev", "30", "--osl", "24", "--osl-stddev", "8", "--extra-inputs", "ignore_eos:true",
             "--artifact-dir", out, "--no-gpu-telemetry", "--ui", "none"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, env=homeless(tmp_path), timeout=5 * DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout.decode()
        after = server.metrics()
        moved = {name: after[name] - before[name] for name in after}
        told = json.loads((out / "profile_export_aiperf.json").read_text())
        records = [json.loads(line)["metrics"] for line in (out / "profile_export.jsonl").read_text().splitlines()]
        assert told["request_count"]["avg"] == len(records) == requests and not told["error_summary"]
        assert moved['vllm:request_success_total{finished_reason="length"}'] == requests == sum(
            value for name, value in moved.items() if name.startswith("vllm:request_success_total"))  # fmt: skip
        # Prompts by what each answer told, and by its own tokenizer, which knows nothing of what a chat's template adds to each.
        assert sum(r["usage_prompt_tokens"]["value"] for r in records) == moved["vllm:prompt_tokens_total"]
        added = {r["usage_prompt_tokens"]["value"] - r["input_sequence_length"]["value"] for r in records}
        assert added == {0} if endpoint == "completions" else len(added) == 1 and min(added) > 0, added
        assert sum(r["usage_completion_tokens"]["value"] for r in records) == moved["vllm:generation_tokens_total"]
        assert told["total_usage_completion_tokens"]["avg"] == moved["vllm:generation_tokens_total"]
        # Text read again makes now and then a token less than its tokens were; an event that was lost would make many.
        own = sum(r["output_sequence_length"]["value"] for r in records)
        assert 0.9 * moved["vllm:generation_tokens_total"] <= own <= moved["vllm:generation_tokens_total"]
        scraped = json.loads((out / "server_metrics_export.json").read_text())["metrics"]
        assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds"} <= set(scraped)
        server.at_rest()
