"""I5: under eviction, sharing, forks and clients that leave, every answer is of its own prompt: nobody gets what is another's."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rig import LONG_RUN, SHORT, TINY, Events

pytestmark = pytest.mark.sanitizer
ANSWERS = 100_000 if LONG_RUN else 100 if SHORT else 4_000
USERS = 16
VOCABULARY = 1024


def prompt_of(user, turn):
    """Of a user's own ids, behind a beginning that others have too."""
    draw = random.Random(user)
    own = [draw.randrange(100, VOCABULARY) for _ in range(40 + 20 * turn)]
    return [7] * (16 * (turn % 4)) + own


def ask(server, key, prompt, **options):
    body = {"model": server.model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **options}
    reply = server.post("/v1/completions", body, [("Authorization", f"Bearer {key}")])
    assert reply.status == 200, reply
    return reply.json


def test_nobody_gets_what_is_anothers(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"k{i}:secret{i}\n" for i in range(4)))
    keys.chmod(0o600)
    server = start(TINY, "--kv-pool", "2MiB", "--block-tokens", "16", "--max-seqs", "8", "--api-key-file", keys, "--public-metrics")
    alone = {}
    for user in range(USERS):
        for turn in range(4):
            answer = ask(server, "secret0", prompt_of(user, turn))
            alone[user, turn] = answer["choices"][0]["text"]
    # I1: what one key has cached is new to another. I2: and not to itself.
    last = prompt_of(USERS - 1, 3)
    cached = [ask(server, key, last)["usage"]["prompt_tokens_details"]["cached_tokens"] for key in ("secret0", "secret1", "secret1")]
    assert cached[0] > 0 and cached[1] == 0 and cached[2] > 0
    assert len(set(alone.values())) > len(alone) // 2, "answers tell prompts apart"

    left = threading.Semaphore(ANSWERS)
    wrong = []

    def use(user):
        draw, key = random.Random(f"user {user}"), f"secret{user % 4}"
        while left.acquire(blocking=False):
            turn, kind = draw.randrange(4), draw.randrange(8)
            if kind == 0:  # leaves in the middle
                with server.wire() as wire:
                    body = {"model": server.model, "prompt": prompt_of(user, turn), "max_tokens": 200, "ignore_eos": True, "stream": True}
                    next(iter(Events(wire.request("POST", "/v1/completions", body, [("Authorization", f"Bearer {key}")]))))
                    wire.reset()
                continue
            choices = ask(server, key, prompt_of(user, turn), n=1 + (kind == 1))["choices"]
            wrong.extend((user, turn, c["text"]) for c in choices if c["text"] != alone[user, turn])

    with ThreadPoolExecutor(USERS) as pool:
        for future in [pool.submit(use, user) for user in range(USERS)]:
            future.result()
    assert wrong == []
    metrics = server.metrics()
    assert metrics["tally_kv_evictions_total"] > 0 and metrics["vllm:prefix_cache_hits_total"] > 0 and metrics["tally_forks_total"] > 0
    server.at_rest()


def told_apart(slower, faster):
    """How well a time tells which of two it was: the share of pairs it puts right (the area under the curve), .5 by chance."""
    ranked = sorted([(t, 1) for t in slower] + [(t, 0) for t in faster])
    below = right = 0
    for _, is_slower in ranked:
        right += below * is_slower
        below += 1 - is_slower
    return right / (len(slower) * len(faster))


if LONG_RUN and not SHORT:

    def test_time_tells_nothing_of_what_another_key_asked(start, tmp_path):
        """I1, I2: whether somebody else has asked a prompt before shows in no answer's time; whether the same key has, in each."""
        keys = tmp_path / "keys"
        keys.write_text("spy:spy\nvictim:victim\n")
        keys.chmod(0o600)
        server = start(TINY, "--kv-pool", "4MiB", "--block-tokens", "16", "--api-key-file", keys, "--public-metrics")
        dice, headers = random.Random(1), {key: [("Authorization", f"Bearer {key}")] for key in ("spy", "victim")}
        wire, asked = server.wire(), 0

        def ask(key, prompt):
            nonlocal wire, asked
            body = json.dumps({"model": server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}).encode()
            asked += 1
            if asked % 900 == 0:  # before the server ends the connection by itself
                wire.sock.close()
                wire = server.wire()
            begin = time.perf_counter()
            reply = wire.request("POST", "/v1/completions", body, headers[key]).reply()
            seconds = time.perf_counter() - begin
            assert reply.status == 200, reply
            return seconds

        def separation(first, trials):
            """`first` asks a prompt or another one, and then the spy asks that prompt."""
            times = {True: [], False: []}
            for _ in range(trials):
                secret, other = ([dice.randrange(100, VOCABULARY) for _ in range(400)] for _ in range(2))
                was_asked = dice.random() < 0.5
                ask(first, secret if was_asked else other)
                times[was_asked].append(ask("spy", secret))
            return told_apart(slower=times[False], faster=times[True])

        separation("victim", 50)  # the first requests of a process are slower
        own, others = separation("spy", 300), separation("victim", 3000)
        wire.sock.close()
        print(f"told apart by time: one's own {own:.3f}, another's {others:.3f}")
        assert own >= 0.95 and abs(others - 0.5) <= 0.05, (own, others)
