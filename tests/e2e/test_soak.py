"""Many streams at once, many of them left by their clients: nothing fails but what was cancelled, nothing is kept."""

import itertools
import random
import socket
import threading
import time
from collections import Counter

import pytest

from rig import LONG_RUN, SHORT, SMOL, TINY, Events, Streamed, eventually

STREAMS = 32
WORDS = "the a cat sea ship of and to in light green old he she saw went under over two seven".split()
PROBE = {"prompt": "the light of the sea and", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2}
LEAVING = ("at once", "unread", "after some", "half-close", "not streamed")


class Crowd:
    """STREAMS clients that ask again and again until the time is up."""

    def __init__(self, server, seconds, longest):
        self.server, self.longest = server, longest
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.finished, self.left, self.failures = 0, Counter(), []

    def run(self):
        threads = [threading.Thread(target=self.client, args=(seed,)) for seed in range(STREAMS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for path in ("/livez", "/readyz", "/metrics"):
                assert self.server.get(path).status == 200
            threads[0].join(0.5)
            for thread in threads[1:]:
                thread.join(0.01)
        return self

    def client(self, seed):
        rng = random.Random(seed)
        turns = itertools.chain([LEAVING[seed % len(LEAVING)], None, None], itertools.repeat(""))
        for how in turns:
            if how == "":
                if time.monotonic() >= self.end:
                    return
                how = rng.choice(LEAVING) if rng.random() < 0.4 else None
            try:
                (self.leave if how else self.read)(rng, how)
                with self.lock:
                    self.left[how] += 1
            except Exception as failure:  # told by the test, from its own thread
                with self.lock:
                    self.failures.append(f"{how}: {failure!r}")
                return

    def body(self, rng):
        words = " ".join(rng.choices(WORDS, k=int(2 ** rng.uniform(0, 7))))
        tokens = int(2 ** rng.uniform(0, 6 if self.longest == 64 else 8))
        options = {"max_tokens": tokens, "ignore_eos": True, "stream_options": {"include_usage": True}}
        options["temperature"] = rng.choice([0, 0.7, 1.5])
        if rng.random() < 0.3:
            options["logprobs" if rng.random() < 0.5 else "top_k"] = 5
        if rng.random() < 0.5 and "logprobs" not in options:
            return "/v1/chat/completions", {"messages": [{"role": "user", "content": words}], **options}
        return "/v1/completions", {"prompt": words, **options}

    def read(self, rng, _):
        path, body = self.body(rng)
        with self.server.wire() as wire:
            answer = Streamed(self.server.events(wire, path, body))
        assert answer.error is None, answer.error
        assert answer.finish_reason == "length" and answer.usage["completion_tokens"] == body["max_tokens"]
        with self.lock:
            self.finished += 1

    def leave(self, rng, how):
        path, body = self.body(rng)
        body["max_tokens"] = max(body["max_tokens"], 40)
        wire = self.server.wire()
        body |= {"model": self.server.model, "stream": how != "not streamed"}
        if how == "not streamed":
            del body["stream_options"]
        wire.request("POST", path, body)
        if how == "after some":
            events = iter(Events(wire))
            for _ in range(rng.randint(1, 5)):
                if next(events, None) is None:
                    break  # it ended before so many events: tokens without text make none
        elif how in ("half-close", "not streamed"):
            time.sleep(rng.random() * 0.05)
        elif how == "unread":
            wire.more()
        if how == "half-close":
            wire.sock.shutdown(socket.SHUT_WR)
            while wire.more():  # the server hangs up, by itself
                pass
            wire.sock.close()
        elif rng.random() < 0.5:
            wire.reset()
        else:
            wire.sock.close()


def soak(server, seconds, longest):
    before = server.complete(**PROBE)["choices"]
    memory_before = server.metrics()["tally_memory_rss_anon_bytes"]
    crowd = Crowd(server, seconds, longest).run()
    assert not crowd.failures, crowd.failures
    assert crowd.finished >= STREAMS and sum(crowd.left[how] for how in LEAVING) >= STREAMS, (crowd.finished, crowd.left)
    assert set(LEAVING) <= set(crowd.left), crowd.left
    blocks = server.at_rest()
    metrics = server.metrics()
    assert metrics['tally_requests_ended_total{reason="error"}'] == 0
    assert metrics["vllm:corrupted_requests_total"] == 0
    assert metrics["tally_stalled_writers"] == 0
    assert metrics['tally_requests_ended_total{reason="disconnect"}'] > 0
    assert metrics['tally_requests_ended_total{reason="length"}'] >= crowd.finished
    eventually(lambda: server.metrics()['tally_http_connections{state="writing"}'] == 0, "no connection writes")
    assert server.complete(**PROBE)["choices"] == before, "the same request gives another answer afterwards"
    if not SHORT:  # a sanitizer keeps freed memory for a while
        assert metrics["tally_memory_rss_anon_bytes"] < memory_before + (64 << 20)
        assert metrics["tally_memory_rss_anon_bytes"] < metrics["tally_memory_cap_bytes"]
    return blocks, metrics


@pytest.mark.sanitizer
def test_32_streams_on_a_small_pool(start):
    """Blocks run out all the time: preemption, eviction and cancellation meet."""
    server = start(TINY, "--kv-pool", "1MiB", "--block-tokens", "16", "--max-seqs", "24", "--step-tokens", "64")
    _, metrics = soak(server, 15, 256)
    assert metrics["vllm:num_preemptions_total"] > 0, "the pool was not small enough for this test"
    assert metrics["tally_kv_evictions_total"] > 0


@pytest.mark.sanitizer
def test_without_prefix_cache_all_blocks_are_free(start):
    server = start(TINY, "--kv-pool", "8MiB", "--prefix-cache", "off")
    blocks, _ = soak(server, 4 if SHORT else 6, 256)
    assert blocks["cached"] == 0 and blocks["free"] == server.pool_blocks()


def test_32_streams_on_the_real_model_for_a_minute(start):
    server = start(SMOL, "--kv-pool", "128MiB")
    soak(server, 1200 if LONG_RUN else 60, 64)
