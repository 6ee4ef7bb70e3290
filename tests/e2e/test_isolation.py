"""I5: under eviction, sharing, forks and clients that leave, every answer is of its own prompt: nobody gets what is another's."""

import random
import threading
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
