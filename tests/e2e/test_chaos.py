"""Everything at once, for longer than a queue lasts: good, bad, slow, leaving and huge requests, twice as many as there is room for.

What may happen to a request depends on its kind alone; an answer that comes is the right one, a refusal says when to come again,
a stream ends as streams do. TALLY_CHAOS_SECONDS and TALLY_CHAOS_SEED set the time and the dice of one more run.
"""

import json
import os
import random
import threading
import time
from collections import Counter

import pytest

from rig import LONG_RUN, SHORT, SMOL, TINY, Events, Streamed, eventually

pytestmark = pytest.mark.sanitizer
SECONDS = float(os.environ.get("TALLY_CHAOS_SECONDS", 600 if LONG_RUN else 4))
SEED = int(os.environ.get("TALLY_CHAOS_SEED", 1))
SEATS, QUEUE = 8, 8  # of the server
CLIENTS = 2 * (SEATS + QUEUE)
CONTEXT = 1024
FLAGS = ("--max-seqs", SEATS, "--max-queue", QUEUE, "--max-model-len", CONTEXT, "--block-tokens", "16", "--timeout-head", "2s",
         "--timeout-body-gap", "2s", "--timeout-write-stall", "2s", "--limit-body", "256KiB")  # fmt: skip
GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPTS = ["the light of the sea and", "under the old ship " * 20, "seven green boats sail " * 40, [5, 6, 7, 8] * 30, "two"]
GOOD = [{"prompt": prompt, "max_tokens": tokens, **GREEDY} for prompt in PROMPTS for tokens in (1, 9, 40)]
REFUSED = {503: "overloaded", 504: "deadline_exceeded"}  # what may come instead of an answer
# Name: (path, body, status, code); bytes are sent as they are.
BAD = {
    "no JSON": ("/v1/completions", b'{"prompt": ', 400, "invalid_json"),
    "deep": ("/v1/completions", b"[" * 100_000, 400, "invalid_json"),
    "a field out of range": ("/v1/completions", {"prompt": "x", "temperature": 3}, 400, "invalid_value"),
    "no prompt": ("/v1/completions", {}, 400, "missing_required_parameter"),
    "no such model": ("/v1/completions", {"model": "x\n<b>", "prompt": "x"}, 404, "model_not_found"),
    "no such route": ("/v1/nothing", {}, 404, "not_found"),
    "not built": ("/v1/embeddings", {"input": "x"}, 501, "not_supported"),
    "a schema without an end": ("/v1/completions", {"prompt": "x", "structured_outputs": {"json": {"type": 5}}}, 400, "invalid_schema"),
    "too long": ("/v1/completions", {"prompt": [9] * (CONTEXT + 1)}, 400, "context_length_exceeded"),
    "far too long": ("/v1/completions", {"prompt": [9] * 50_000}, 400, "context_length_exceeded"),
    "over the body cap": ("/v1/completions", {"prompt": "x" * 300_000}, 413, "request_too_large"),
}  # fmt: skip
NO_HTTP = [b"\x16\x03\x01" + bytes(200), b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 5\r\n\r\n",
           b"A" * 70_000, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: 1\r\n 2\r\n\r\n"]  # fmt: skip


class Chaos:
    def __init__(self, server, seconds, seed):
        self.server, self.seed = server, seed
        self.golden = [server.complete(**body)["choices"][0]["text"] for body in GOOD]
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.seen, self.failures = Counter(), []

    def run(self):
        clients = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients):
            assert self.server.get("/livez").status == 200
            time.sleep(0.1)
        return self

    def count(self, what):
        with self.lock:
            self.seen[what] += 1

    def client(self, index):
        dice = random.Random(f"{self.seed} {index}")
        kinds = [self.whole, self.streamed, self.choices, self.bad, self.no_http, self.byte_by_byte, self.never_ends, self.reads_slowly,
                 self.stops_reading, self.leaves, self.huge, self.in_a_hurry]  # fmt: skip
        weights = [20, 20, 5, 10, 5, 4, 1, 3, 1, 20, 8, 5]
        first = kinds[index % len(kinds)]  # every kind at least once
        while time.monotonic() < self.end and not self.failures:
            kind, first = first or dice.choices(kinds, weights)[0], None
            try:
                kind(dice)
                self.count(kind.__name__)
            except Exception as failure:  # told by the test, from its own thread
                self.failures.append(f"client {index}, {kind.__name__}: {failure!r}")

    # ---- what an answer may be ----

    def refused(self, reply, statuses=(503,)):
        """True for a refusal, which must say what, and when to come again."""
        if reply.status == 200:
            return False
        assert reply.status in statuses and reply.error["code"] == REFUSED[reply.status], reply
        if reply.status == 503:
            assert 1 <= int(reply.headers["retry-after"]) <= 60, reply
        self.count(REFUSED[reply.status])
        time.sleep(0.1)  # less than it was asked for, and enough that more than refusals happen
        return True

    def check(self, reply, at):
        if not self.refused(reply):
            (choice,) = reply.json["choices"]
            assert (choice["text"], choice["finish_reason"]) == (self.golden[at], "length"), (GOOD[at], reply)
            self.count("right")

    def check_stream(self, events, at):
        if events.status != 200:
            self.refused(events.refused)
            return
        answer = Streamed(events)  # fails unless it ends as a stream does
        assert answer.error is None and (answer.text, answer.finish_reason) == (self.golden[at], "length"), (GOOD[at], answer.text)
        self.count("right")

    def pick(self, dice):
        at = dice.randrange(len(GOOD))
        return at, {"model": self.server.model, **GOOD[at]}

    @staticmethod
    def bytes_of(body, path="/v1/completions"):
        data = json.dumps(body).encode()
        return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data

    # ---- kinds of requests ----

    def whole(self, dice):
        at, body = self.pick(dice)
        self.check(self.server.post("/v1/completions", body), at)

    def streamed(self, dice):
        at, body = self.pick(dice)
        with self.server.wire() as wire:
            self.check_stream(Events(wire.request("POST", "/v1/completions", body | {"stream": True})), at)

    def choices(self, dice):
        at, body = self.pick(dice)
        reply = self.server.post("/v1/completions", body | {"n": 3})
        if not self.refused(reply):
            assert [c["text"] for c in reply.json["choices"]] == [self.golden[at]] * 3, reply
            self.count("right")

    def bad(self, dice):
        path, body, status, code = BAD[dice.choice(sorted(BAD))]
        if isinstance(body, dict):
            body = {"model": self.server.model, **body}
        try:
            reply = self.server.post(path, body)
        except (ConnectionResetError, BrokenPipeError):
            assert status == 413, body  # it hung up on what it need not read
            return
        if reply.status == 503 and status == 400:  # where the queue is known to be full nothing is looked at
            self.refused(reply)
        else:
            assert (reply.status, reply.error["code"]) == (status, code), reply

    def no_http(self, dice):
        with self.server.wire() as wire:
            try:
                wire.send(dice.choice(NO_HTTP))
                assert wire.reply().status in (400, 414, 431)
            except (ConnectionResetError, BrokenPipeError):
                pass  # it hung up on what it need not read

    def byte_by_byte(self, dice):
        """Slow, but within the limits: it gets its answer."""
        at, body = self.pick(dice)
        data = self.bytes_of(body)
        cuts = sorted(dice.sample(range(1, len(data)), 8))
        with self.server.wire() as wire:
            for begin, end in zip([0, *cuts], [*cuts, len(data)]):
                wire.send(data[begin:end])
                time.sleep(dice.random() * 0.03)
            self.check(wire.reply(), at)

    def never_ends(self, dice):
        """Slower than the limits: 408, and the end."""
        data = self.bytes_of(self.pick(dice)[1])
        with self.server.wire() as wire:
            reply = wire.send(data[: dice.randrange(1, len(data))]).reply()
            assert (reply.status, reply.error["code"]) == (408, "request_timeout") and wire.closed(), reply

    def reads_slowly(self, dice):
        at, body = self.pick(dice)
        with self.server.wire() as wire:
            events = Events(wire.request("POST", "/v1/completions", body | {"stream": True}))
            if events.status == 200:
                time.sleep(dice.random())
            self.check_stream(events, at)

    def stops_reading(self, dice):
        """An answer larger than what waits for it anywhere: given up at the write stall, or it fitted and nobody cares."""
        body = {"model": self.server.model, "prompt": "x", "max_tokens": 900, "logprobs": 20, "stream": True, "n": 2, **GREEDY}
        with self.server.wire() as wire:
            wire.request("POST", "/v1/completions", body)
            time.sleep(2.5)
            wire.reset()

    def leaves(self, dice):
        body = {"model": self.server.model, "prompt": dice.choice(PROMPTS), "max_tokens": 300, "stream": dice.random() < 0.7, **GREEDY}
        data = self.bytes_of(body)
        with self.server.wire() as wire:
            wire.send(data[: dice.randrange(1, len(data))] if dice.random() < 0.3 else data)
            time.sleep(dice.random() * 0.2)
            if dice.random() < 0.5:
                wire.reset()

    def huge(self, dice):
        """Up to the last token of the context, and as many prompts as a request may have."""
        long = {"prompt": [dice.randrange(100, 900) for _ in range(CONTEXT - 4)], "max_tokens": 4}
        many = {"prompt": ["the sea"] * SEATS, "max_tokens": 4, "logprobs": 5}
        body = dice.choice([long, many])
        reply = self.server.post("/v1/completions", {"model": self.server.model, **body, **GREEDY})
        if not self.refused(reply):
            assert all(c["finish_reason"] == "length" for c in reply.json["choices"]), reply

    def in_a_hurry(self, dice):
        at, body = self.pick(dice)
        seconds = f"{dice.uniform(0.005, 0.5):.3f}"
        with self.server.wire() as wire:
            events = Events(wire.request("POST", "/v1/completions", body | {"stream": True}, [("x-request-timeout", seconds)]))
            if events.status != 200:
                self.refused(events.refused, (503, 504))
                return
            answer = Streamed(events)
            assert self.golden[at].startswith(answer.text) and (answer.error or answer.text == self.golden[at])
            assert answer.error is None or answer.error["code"] == "deadline_exceeded"


def settled(server):
    """At rest, with nothing cached: what the server holds when it holds nothing. Its memory, bytes."""
    server.at_rest()
    server.post("/reset_prefix_cache", b"")
    blocks = server.blocks()
    assert blocks == {"free": server.pool_blocks(), "held": 0, "cached": 0}, blocks
    return server.metrics()["tally_memory_rss_anon_bytes"]


def test_twice_as_much_as_there_is_room_for(start):
    is_tiny = SHORT or not LONG_RUN
    server = start(TINY if is_tiny else SMOL, "--kv-pool", "600KiB" if is_tiny else "13MiB", *FLAGS)  # a little more than one context
    if LONG_RUN:
        Chaos(server, SECONDS / 20, SEED + 1).run()  # what a first crowd makes a process keep is no leak
    memory = settled(server)
    chaos = Chaos(server, SECONDS, SEED).run()
    assert not chaos.failures, (SEED, chaos.failures)
    assert chaos.seen["right"] > 0 and chaos.seen["overloaded"] > 0, chaos.seen
    assert len([kind for kind in chaos.seen if hasattr(Chaos, kind)]) == 12, f"a kind of request never came: {chaos.seen}"
    memory_after = settled(server)
    print(f"seed {SEED}, {SECONDS} s: {dict(chaos.seen)}, {memory / 1e6:.1f} MB before and {memory_after / 1e6:.1f} after")
    assert [server.complete(**body)["choices"][0]["text"] for body in GOOD] == chaos.golden
    metrics = server.metrics()
    assert metrics['tally_requests_ended_total{reason="error"}'] == 0 and metrics["vllm:corrupted_requests_total"] == 0
    assert metrics['tally_requests_ended_total{reason="disconnect"}'] > 0 and metrics["tally_stalled_writers"] == 0
    assert metrics["tally_kv_evictions_total"] > 0, "the pool was large enough for all"
    eventually(lambda: server.metrics()['tally_http_connections{state="writing"}'] == 0, "no connection writes")
    if not SHORT:  # a sanitizer keeps freed memory for a while
        assert memory_after <= (1.01 * memory if LONG_RUN else memory + (64 << 20)), (memory, memory_after)
