"""From the first probe to the last signal, and what one request may expect in between."""

import fcntl
import json
import os
import random
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rig import LONG_RUN, SHORT, SMOL, TINY, Events, Streamed, eventually, tally

SLOW_MODEL = TINY if SHORT else SMOL  # slow enough that a stream still runs when the test looks
CONTEXT = 256  # tokens, of the shared server
SOON_S = 15  # what is promised within one or two seconds, on a loaded machine
STAGES = ("queue_ms", "tokenize_ms", "prefill_ms", "stalled_ms", "decode_ms", "sample_ms", "detokenize_ms", "send_ms")
LONG = {"prompt": "Once upon a time", "max_tokens": 1500 if SHORT else 400, "ignore_eos": True, "temperature": 0}


def begin(server, **options):
    """Starts a long stream and reads its first event: (wire, the events to come, the first one)."""
    wire = server.wire()
    events = iter(server.events(wire, "/v1/completions", {**LONG, **options}))
    return wire, events, next(events)


def finish(begun):
    wire, events, first = begun
    answer = Streamed([first, *events])
    wire.sock.close()
    return answer


def test_probes_while_loading(start):
    for _ in range(5):  # until one load was seen in time
        server = start(SMOL if SMOL.is_file() else TINY, "--kv-pool", "512MiB", "--threads", "1", ready=False)
        seen, refused = [], None
        end = time.monotonic() + 120
        while time.monotonic() < end and (not seen or seen[-1].status != 200):
            assert server.get("/livez").body == b"ok"
            seen.append(server.get("/readyz"))
            if seen[-1].status == 503 and refused is None:
                reply = server.post("/v1/completions", {"model": server.model, "prompt": "x"})
                refused = reply if reply.status != 200 else None  # 200: loaded meanwhile
        assert seen[-1].status == 200 and seen[-1].json == {"status": "ok"}
        for reply in seen[:-1]:
            assert reply.status == 503 and reply.json["status"] == "loading"
            assert reply.error["code"] == "model_loading" and 1 <= int(reply.headers["retry-after"]) <= 60
        assert server.complete("x", max_tokens=1)
        server.stop()
        if refused:
            assert (refused.status, refused.error["code"]) == (503, "model_loading")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            return
    raise AssertionError("five loads were over before the first probe")


def test_sigterm_while_loading(start):
    for delay in (0, 0.02, 0.1, 0.3, 0.8):
        server = start(SMOL if SMOL.is_file() else TINY, "--kv-pool", "512MiB", ready=False)
        time.sleep(delay)
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert time.monotonic() - begun < SOON_S


@pytest.mark.sanitizer
def test_drain(start):
    server = start(SLOW_MODEL, "--kv-pool", "64MiB", "--drain-timeout", "300s")
    reference = server.complete(**LONG)["choices"][0]["text"]
    begun = begin(server)
    server.signal(signal.SIGTERM)
    eventually(lambda: server.get("/readyz").status == 503, "readiness ends")
    probe = server.get("/readyz")
    assert (probe.json["status"], probe.error["code"]) == ("draining", "shutting_down")
    refused = server.post("/v1/completions", {"model": server.model, "prompt": "x"})
    assert (refused.status, refused.error["code"]) == (503, "shutting_down")
    assert 1 <= int(refused.headers["retry-after"]) <= 60 and refused.headers["connection"] == "close"
    assert server.get("/livez").status == 200
    answer = finish(begun)
    assert answer.finish_reason == "length" and answer.text == reference
    assert server.wait() == 0


@pytest.mark.sanitizer
def test_drain_timeout_ends_streams_with_an_error(start):
    server = start(SLOW_MODEL, "--kv-pool", "64MiB", "--drain-timeout", "50ms")
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: begin(server), range(8)))
        server.signal(signal.SIGTERM)
        for answer in pool.map(finish, begun):
            if answer.error is None:
                assert answer.finish_reason == "length"  # was faster than the signal
            else:
                assert answer.error["code"] == "shutting_down" and answer.finish_reason is None
    assert server.wait() == 0


@pytest.mark.sanitizer
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_at_once(start, number):
    server = start(SLOW_MODEL, "--kv-pool", "64MiB", "--drain-timeout", "3000s", "--threads", "1")
    begun = [begin(server) for _ in range(6)]
    server.signal(number)
    eventually(lambda: server.get("/readyz").status == 503, "readiness ends")
    second = time.monotonic()
    server.signal(number)
    assert server.wait() == 0
    assert time.monotonic() - second < SOON_S
    for wire, *_ in begun:
        wire.sock.close()


@pytest.mark.sanitizer
def test_idle_stop_is_quick(start):
    server = start(TINY, "--kv-pool", "4MiB")
    kept = server.wire()  # an idle connection keeps nothing up
    assert kept.request("GET", "/livez").reply().status == 200
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < SOON_S and kept.closed()


@pytest.mark.sanitizer
def test_other_signals_change_nothing(start):
    server = start(TINY, "--kv-pool", "4MiB")
    before = server.complete("the sea", max_tokens=20, temperature=0, logprobs=2)["choices"]
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGCHLD):
        server.signal(number)
        assert server.complete("the sea", max_tokens=20, temperature=0, logprobs=2)["choices"] == before
    server.signal(signal.SIGSTOP)
    time.sleep(0.5)
    server.signal(signal.SIGCONT)
    assert server.complete("the sea", max_tokens=20, temperature=0, logprobs=2)["choices"] == before


def test_killed_and_started_again(start):
    """X6: nothing that the first left is in the way of the second, on the same port."""
    first = start(TINY, "--kv-pool", "4MiB")
    answer = first.complete("the sea", max_tokens=8, temperature=0)["choices"]
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    start.started.remove(first)
    second = start(TINY, "--kv-pool", "4MiB", "--port", first.port)
    assert second.port == first.port and second.complete("the sea", max_tokens=8, temperature=0)["choices"] == answer


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT], ids=lambda n: n.name)
def test_a_crash_is_one_line(start, number):
    """X8, I11: it says what it was, nothing of a request, and the process ends by the signal."""
    server = start(TINY, "--kv-pool", "4MiB")
    assert server.complete("canary-91b2c", max_tokens=3)
    server.signal(number)
    assert server.wait() == -number
    start.started.remove(server)
    last = server.stderr.splitlines()[-1]
    assert last.startswith(f"tally: ended by {number.name}, a fault of the program (version ") and str(server.process.pid) in last
    assert "canary" not in server.stderr


def test_fewer_cpus_than_at_the_start(start):
    """Q17: all its threads share one CPU from now on, and the answers are the same."""
    server = start(TINY, "--kv-pool", "4MiB", "--threads", "2")
    before = server.complete("the sea", max_tokens=20, temperature=0)["choices"]
    cpus = os.sched_getaffinity(0)
    for task in os.listdir(f"/proc/{server.process.pid}/task"):
        os.sched_setaffinity(int(task), {min(cpus)})
    assert server.complete("the sea", max_tokens=20, temperature=0)["choices"] == before


def test_the_log_never_tells_prompts_or_keys(start):
    """I8, at the level that tells most."""
    canary, key = "canary-7f3a91", "key-c0ffee-secret"
    server = start(TINY, "--kv-pool", "4MiB", "--log-level", "trace", "--log-json", env={"TALLY_API_KEY": key})
    headers = [("Authorization", f"Bearer {key}")]
    ask = {"model": server.model, "prompt": canary, "max_tokens": 3}
    assert server.post("/v1/completions", ask, headers).status == 200
    assert server.post("/v1/completions", {**ask, "temperature": canary}, headers).status == 400
    assert server.post("/v1/completions", ask, [("Authorization", f"Bearer {canary}")]).status == 401
    server.stop()
    assert "/v1/completions" in server.stderr
    assert canary not in server.stderr and key not in server.stderr


def test_a_closed_stderr_does_not_end_it(start):
    reading, writing = os.pipe()
    server = start(TINY, "--kv-pool", "4MiB", "--log-level", "debug", stderr=writing)
    os.close(writing)
    os.close(reading)  # every line written from now on would be a SIGPIPE, if it were not ignored
    for _ in range(50):
        assert server.get("/livez").status == 200
    assert server.complete("the sea", max_tokens=5)
    metrics = server.metrics()
    assert metrics["tally_log_lines_dropped_total"] >= 50 and metrics['tally_write_errors_total{sink="log"}'] >= 50


def test_a_full_stderr_stops_nobody(start):
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    server = start(TINY, "--kv-pool", "4MiB", "--log-level", "debug", stderr=writing)
    os.close(writing)

    def dropped():
        server.get("/livez", [("x-request-id", "x" * 64)])
        return server.metrics()["tally_log_lines_dropped_total"] > 0

    eventually(dropped, "the pipe is full, and lines are dropped")
    assert server.complete("the sea", max_tokens=5)
    os.close(reading)


@pytest.mark.sanitizer
def test_overload(start):
    server = start(SLOW_MODEL, "--kv-pool", "64MiB", "--max-seqs", "1", "--max-queue", "1")
    reference = server.complete(**LONG)["choices"][0]["text"]
    short = server.complete(**LONG | {"max_tokens": 5})["choices"]
    running = begin(server)
    waiting = server.wire().request("POST", "/v1/completions", {"model": server.model, **LONG, "max_tokens": 5})
    eventually(lambda: server.metrics()["vllm:num_requests_waiting"] == 1, "one waits")
    assert server.metrics()["vllm:num_requests_running"] == 1
    refused = server.post("/v1/completions", {"model": server.model, "prompt": "x"})
    assert (refused.status, refused.error["code"], refused.error["type"]) == (503, "overloaded", "server_error")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert server.get("/readyz").status == 200, "saturation is no failure"
    answer = finish(running)
    assert answer.finish_reason == "length" and answer.text == reference
    reply = waiting.reply()
    assert reply.status == 200 and reply.json["choices"] == short
    assert server.complete("x", max_tokens=1)
    assert server.metrics()['tally_requests_refused_total{code="overloaded"}'] == 1


@pytest.mark.sanitizer
def test_request_deadline(start):
    server = start(SLOW_MODEL, "--kv-pool", "64MiB", "--max-seqs", "1")
    running = begin(server)
    late = server.post("/v1/completions", {"model": server.model, "prompt": "x"}, [("x-request-timeout", "0.05")])
    assert (late.status, late.error["code"], late.headers["x-should-retry"]) == (504, "deadline_exceeded", "false")
    assert finish(running).finish_reason == "length"
    server.at_rest()


def test_a_deadline_passes_at_any_stage(start):
    """Q9: in the queue, in prefill, in decode; before the head of the answer it is a status, afterwards an event."""
    server = start(SMOL, "--kv-pool", "64MiB", "--max-seqs", "1", "--step-tokens", "16", "--request-timeout", "2min")

    def late(body, seconds):
        reply = server.post("/v1/completions", {"model": server.model, **body}, [("x-request-timeout", seconds)])
        assert (reply.status, reply.error["code"], reply.error["type"]) == (504, "deadline_exceeded", "server_error"), reply
        assert reply.headers["x-should-retry"] == "false"

    running = begin(server)
    late({"prompt": "x"}, "0.05")
    assert finish(running).finish_reason == "length"
    server.at_rest()
    before = server.metrics()['tally_step_rows_total{what="prefill"}']
    late({"prompt": "word " * 1900, "max_tokens": 1}, "0.15")
    computed = server.metrics()['tally_step_rows_total{what="prefill"}'] - before
    assert 0 < computed < 1900, "it passed in prefill"
    late({"prompt": "x", "ignore_eos": True}, "0.5")
    with server.wire() as wire:
        body = {"model": server.model, "prompt": "x", "ignore_eos": True, "stream": True}
        streamed = Streamed(Events(wire.request("POST", "/v1/completions", body, [("x-request-timeout", "0.5")])))
        assert streamed.text and streamed.error["code"] == "deadline_exceeded" and streamed.finish_reason is None
        assert wire.closed()
    server.at_rest()
    for bad in ("soon", "0", "-1", "1e3", "inf", "nan", "1,2", ""):
        reply = server.post("/v1/completions", {"model": server.model, "prompt": "x"}, [("x-request-timeout", bad)])
        assert (reply.status, reply.error["param"]) == (400, "x-request-timeout"), bad
        assert f'not "{bad}"' in reply.error["message"]
    assert server.metrics()['tally_requests_ended_total{reason="deadline"}'] == 4


def test_the_servers_deadline_holds_without_a_clients(start):
    server = start(SMOL, "--kv-pool", "64MiB", "--request-timeout", "300ms")
    body = {"model": server.model, "prompt": "x", "ignore_eos": True}
    for headers in ((), (("x-request-timeout", "60"),)):
        reply = server.post("/v1/completions", body, headers)
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    server.at_rest()


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(SMOL, "--kv-pool", "64MiB", "--max-model-len", CONTEXT)


class TestOneRequest:
    """Against one server on the real model, with a short context."""

    @staticmethod
    def tokens(server, prompt):
        return server.post("/tokenize", {"model": server.model, "prompt": prompt}).json["tokens"]

    def test_tokenize_round_trip(self, server):
        for prompt in ("Hello, world!", "  two  blanks", "Grüße aus 東京 🗼", "line\n\nline\t", "<|im_end|>"):
            reply = server.post("/tokenize", {"prompt": prompt}).json
            assert reply["count"] == len(reply["tokens"]) > 0 and reply["max_model_len"] == CONTEXT
            assert server.post("/detokenize", {"tokens": reply["tokens"]}).json == {"prompt": prompt}
        assert len(self.tokens(server, "<|im_end|>")) > 1, "text of a control token in user content is text"

    def test_context_length(self, server):
        prompt = "One two three four five."
        count = len(self.tokens(server, prompt))
        for limit in (CONTEXT - count + 1, 100_000):
            reply = server.post("/v1/completions", {"model": server.model, "prompt": prompt, "max_tokens": limit})
            assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
            assert reply.error["message"] == (
                f"This model's maximum context length is {CONTEXT} tokens. However, you requested {count + limit} tokens "
                f"({count} in the prompt, {limit} in the completion). Please reduce the length of the prompt or of the completion."
            )
        ids = self.tokens(server, "a b c d e f g h ") * CONTEXT
        assert server.complete(ids[: CONTEXT - 1])["usage"]["total_tokens"] == CONTEXT
        for too_many in (CONTEXT, CONTEXT + 1):
            reply = server.post("/v1/completions", {"model": server.model, "prompt": ids[:too_many]})
            assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")

    def test_until_the_context_is_full(self, server):
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(server.complete, "One, two,", max_tokens=100, ignore_eos=True, temperature=0)
            full = server.complete("One two", ignore_eos=True, temperature=0)
        assert full["choices"][0]["finish_reason"] == "length" and full["usage"]["total_tokens"] == CONTEXT
        assert other.result()["usage"]["completion_tokens"] == 100

    def test_usage_is_exact(self, server):
        for prompt, limit in (("The capital of France is", 7), ("Grüße aus 東京 🗼:", 13)):
            answer = server.complete(prompt, max_tokens=limit, ignore_eos=True, logprobs=0)
            usage, count = answer["usage"], len(self.tokens(server, prompt))
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (count, limit, count + limit)
            assert len(answer["choices"][0]["logprobs"]["tokens"]) == limit
            assert answer["timings"]["predicted_n"] == limit
            assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == count

    def test_cached_tokens(self, server):
        prompt = "A prompt nobody else sends: " + "seven green boats sail to the far island; " * 15
        first, second = (server.complete(prompt, max_tokens=8, temperature=0, logprobs=2) for _ in range(2))
        count = first["usage"]["prompt_tokens"]
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert count - 1 >= cached >= (count - 1) // 64 * 64 > 0
        assert second["timings"]["cache_n"] == cached and second["receipt"]["kv_blocks"] >= -(-count // 64)
        assert second["choices"] == first["choices"]
        freed = server.post("/reset_prefix_cache", b"").json["freed_blocks"]
        assert freed >= cached // 64 and server.at_rest()["cached"] == 0
        third = server.complete(prompt, max_tokens=8, temperature=0, logprobs=2)
        assert third["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and third["choices"] == first["choices"]

    def test_receipt_adds_up(self, server):
        """Of random requests, many at once: the stages sum to the whole, and the whole is no more than the client saw."""
        def one(seed):
            dice = random.Random(seed)
            body = {"model": server.model, "prompt": f"Story number {seed}: " + "the sea " * dice.randrange(60), "max_tokens": dice.randrange(1, 24),
                    "ignore_eos": True, "temperature": dice.choice([0, 1]), "stream": dice.random() < 0.5} | dice.choice([{}, {"n": 3}, {"logprobs": 3}])  # fmt: skip
            begin = time.perf_counter()
            with server.wire() as wire:
                wire.request("POST", "/v1/completions", body)
                answer = [c for c in Events(wire) if "receipt" in c][-1] if body["stream"] else wire.reply().json
            return body, answer, 1000 * (time.perf_counter() - begin)

        with ThreadPoolExecutor(8) as pool:
            answers = [one(0), *pool.map(one, range(1, 1000 if LONG_RUN else 50))]
        for body, answer, wall_ms in answers:
            receipt = answer["receipt"]
            whole = receipt["total_ms"]
            assert all(receipt[stage] >= 0 for stage in STAGES), receipt
            assert abs(sum(receipt[stage] for stage in STAGES) - whole) <= max(1, whole / 100), receipt
            assert whole <= wall_ms + 1, (receipt, wall_ms)
            assert receipt["steps"] >= body["max_tokens"] == answer["timings"]["predicted_n"] // body.get("n", 1)
            assert receipt["kv_bytes"] > 0 and receipt["weight_bytes_read"] > 0 and receipt["prefill_ms"] > 0
            assert {"preemptions", "recomputed_tokens", "kv_blocks", "draft_tokens", "accepted_tokens", "seed"} <= set(receipt)

    def test_stop_strings(self, server):
        options = {"prompt": "The quick brown fox jumps over", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        reference = server.complete(**options, logprobs=0)["choices"][0]
        tokens, text = reference["logprobs"]["tokens"], reference["text"]
        assert "".join(tokens) == text
        for at in range(3, 20, 3):
            stop = tokens[at][-1] + tokens[at + 1] + tokens[at + 2][:1]  # over three tokens
            wanted = text[: text.index(stop)]
            answer = server.complete(**options, stop=["never this", stop])
            choice = answer["choices"][0]
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (wanted, "stop", stop)
            streamed = server.stream("/v1/completions", {**options, "stop": stop})
            assert (streamed.text, streamed.finish_reason, streamed.stop_reason) == (wanted, "stop", stop)
        held = server.complete(**options, stop=text[-3:] + "never this")["choices"][0]
        assert (held["text"], held["finish_reason"]) == (text, "length"), "text held back comes at the end"
        server.at_rest()

    def test_stop_token_ids(self, server):
        options = {"prompt": "The quick brown fox jumps over", "max_tokens": 12, "temperature": 0}
        tokens = server.complete(**options, logprobs=0)["choices"][0]["logprobs"]["tokens"]
        ids = self.tokens(server, tokens[4])
        assert len(ids) == 1
        choice = server.complete(**options, stop_token_ids=ids)["choices"][0]
        assert choice["text"] == "".join(tokens[: tokens.index(tokens[4])])
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[0])

    def test_stream_is_the_whole_answer_in_whole_characters(self, server):
        options = {"prompt": "東京 🗼 Grüße:", "max_tokens": 60, "temperature": 1.5, "seed": 4, "ignore_eos": True}
        whole = server.complete(**options)["choices"][0]["text"]
        streamed = server.stream("/v1/completions", {**options, "stream_options": {"include_usage": True, "include_tally": True}})
        assert streamed.text == whole
        assert streamed.usage["completion_tokens"] == 60 == sum(c["tally"]["tokens"] for c in streamed.chunks if c["choices"])
        assert {"timings", "receipt"} <= set(streamed.last)

    def test_request_id_and_version(self, server):
        assert server.get("/livez", [("x-request-id", "a.B_c-9")]).headers["x-request-id"] == "a.B_c-9"
        for bad in ("with blank", "%0d%0a", "x" * 65):
            assert re.fullmatch("[0-9a-f]{32}", server.get("/livez", [("x-request-id", bad)]).headers["x-request-id"])
        version = server.get("/version").json
        assert version["version"] and version["build"] and version["isa"] in ("scalar", "avx2", "avx512", "avx512vnni")


def test_receipts_off(start):
    server = start(TINY, "--kv-pool", "4MiB", "--receipts", "off")
    answer = server.complete("the sea", max_tokens=3)
    assert "receipt" not in answer and "timings" not in answer and answer["usage"]["completion_tokens"] > 0
    streamed = server.stream("/v1/completions", {"prompt": "the sea", "max_tokens": 3})
    assert "receipt" not in streamed.last and "timings" not in streamed.last


def test_model_name(start):
    server = start(TINY, "--kv-pool", "4MiB", "--model-name", "my/model")
    server.model = "my/model"
    assert server.complete("x", max_tokens=1)["model"] == "my/model"
    assert server.get("/v1/models").json["data"][0]["id"] == "my/model"
    refused = server.post("/v1/completions", {"model": "tiny-q-q4_0", "prompt": "x"})
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")


def test_settings_and_tuning(start, tmp_path):
    """/v1/settings shows every flag with its source, and what start-up tuning measured; the cache file is read again."""
    cost = " ".join(f"{1 + t / 4:.3f}" for t in range(32))
    flags = ("--max-seqs", "3", "--tuning-cache", tmp_path, "--threads", "1", "--isa", "avx2")

    def page():
        server = start(TINY, *flags, env={"TALLY_MAX_QUEUE": "7", "TALLY_TUNE": "on"})
        reply = server.get("/v1/settings").json
        assert reply["settings"]["max-seqs"] == {"value": "3", "source": "command line"}
        assert reply["settings"]["max-queue"] == {"value": "7", "source": "environment"}
        assert reply["settings"]["block-tokens"] == {"value": "64", "source": "default"}
        return reply["tuning"]

    for tuned in page():
        assert tuned["row_cost"][0] == 1 and len(tuned["row_cost"]) == 32 and tuned["row_cost"] == sorted(tuned["row_cost"])
        assert tuned["prefetch_bytes"] in (0, 2048, 4096, 8192, 16384) and tuned["chunk_bytes"] >= 1 << 17
    # A kept file counts if its first line is this machine's; the server says what it read.
    kept = tmp_path / "tuning-avx2-1"
    machine = next(line for line in open("/proc/cpuinfo") if line.startswith("model name")).split(": ", 1)[1].rstrip("\n")
    types = {t["type"] for t in page()}
    assert "Q4_0" in types
    lines = [f"{name} 2048 524288 {cost}" for name in sorted(types)]
    kept.write_text("\n".join([f"tally tuning 1, {machine}, avx2, 1 threads", *lines, ""]))
    for tuned in page():
        assert (tuned["prefetch_bytes"], tuned["chunk_bytes"], tuned["row_cost"][31]) == (2048, 524288, 8.75)
    inspected = json.loads(tally("inspect", TINY, "--json", *flags[2:]).stdout)["kernels"]["tuning"]
    assert inspected == [{"type": name, "prefetch_bytes": 2048, "chunk_bytes": 524288, "row_cost": [1 + t / 4 for t in range(32)]}
                         for name in sorted(types)]
    assert "prefetch 2048 bytes ahead, chunks of 512 KiB" in tally("inspect", TINY, *flags[2:]).stdout
    kept.write_bytes(b"\xff\x00 damaged")
    assert {t["type"] for t in page()} == types


if LONG_RUN:

    def test_probes_and_metrics_while_the_engine_is_saturated(start):
        """99 of 100 within 20 ms, though eight users take all the CPUs."""
        server = start(SMOL, "--kv-pool", "64MiB")
        over = threading.Event()

        def load(i):
            while not over.is_set():
                assert server.complete(f"{i} " + "the light of the sea " * 60, max_tokens=60, ignore_eos=True)

        def milliseconds(wire, path):
            time.sleep(0.01)
            begin = time.perf_counter()
            assert wire.request("GET", path).reply().status == 200
            return 1000 * (time.perf_counter() - begin)

        with ThreadPoolExecutor(8) as pool:
            users = [pool.submit(load, i) for i in range(8)]
            eventually(lambda: server.metrics()["vllm:num_requests_running"] >= 6, "it is busy")
            with server.wire() as wire:
                times = {path: sorted(milliseconds(wire, path) for _ in range(300)) for path in ("/livez", "/metrics")}
            over.set()
            for user in users:
                user.result()
        assert all(of_path[297] <= 20 for of_path in times.values()), {path: of_path[290:] for path, of_path in times.items()}

    def test_the_front_end_costs_little_cpu(start):
        """At most 30 us a streamed token, of all threads but the one that steps: with one of it, the busiest."""
        server = start(SMOL, "--kv-pool", "64MiB", "--threads", "1", "--max-model-len", "512")
        streams, tokens = 16, 200

        def cpu_us():
            tasks = Path(f"/proc/{server.process.pid}/task")
            return {task.name: int((task / "schedstat").read_text().split()[0]) / 1000 for task in tasks.iterdir()}

        def stream(i):
            return server.stream("/v1/completions", {"prompt": f"{i} green boats", "max_tokens": tokens, "ignore_eos": True})

        with ThreadPoolExecutor(streams) as pool:
            before = cpu_us()
            answers = list(pool.map(stream, range(streams)))
            spent = sorted(us - before.get(name, 0) for name, us in cpu_us().items())
        assert all(answer.finish_reason == "length" for answer in answers)
        assert sum(spent[:-1]) / (streams * tokens) <= 30, spent
