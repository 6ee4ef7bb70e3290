"""What requests share of the KV pool, and what a pool that is too small costs: figures of docs/performance.md, by counting."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from rig import SMOL

BLOCK_BYTES = 64 * 12240  # of SmolLM2 in int8: 30 layers, 3 KV heads of 64 and their scales


def ids(seed, count):
    return random.Random(seed).choices(range(1000, 40000), k=count)


def answer(server, prompt, **options):
    reply = server.post("/v1/completions", {"model": server.model, "prompt": prompt, "temperature": 0, "ignore_eos": True, **options})
    assert reply.status == 200, reply
    return reply.json


def computed(server):
    return server.metrics()['tally_step_rows_total{what="prefill"}']


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(SMOL, "--kv-pool", "200MiB")


def test_a_common_prefix_is_computed_once(server):
    prefix, before = ids("system", 500), computed(server)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: answer(server, prefix + ids(i, 20), max_tokens=4), range(32)))
    prompts = sum(a["usage"]["prompt_tokens"] for a in answers)
    assert prompts == 32 * 520
    assert computed(server) - before <= 0.15 * prompts
    # All but the first find the whole prefix: seven blocks, and 52 rows of the eighth.
    assert sorted(a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)[1] == 500


def shared_by_beams(server):
    """Parts of the logical blocks that are another beam's, too, at every look at a search of 4 beams behind 500 tokens."""
    shares = []
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(answer, server, ids("beams", 500), max_tokens=64, use_beam_search=True, n=4)
        while not search.done():
            owners = [b["owners"] for b in server.get("/v1/blocks").json["blocks"] if b["owners"]]
            if sum(owners) > len(owners):
                shares.append(1 - len(owners) / sum(owners))
    assert len(search.result()["choices"]) == 4
    return shares


def test_beams_share_most_of_their_blocks(server):
    # The least: nothing but the prompt's whole blocks, 7 of the 9 that a beam ends with.
    shares = shared_by_beams(server)
    assert shares and min(shares) >= 1 - (7 + 4 * 2) / (4 * 9)


def test_beams_share_more_in_small_blocks(start_shared):
    # 31 of 36.
    shares = shared_by_beams(start_shared(SMOL, "--kv-pool", "200MiB", "--block-tokens", "16"))
    assert shares and min(shares) >= 1 - (31 + 4 * 5) / (4 * 36) > 0.6


def test_half_of_the_memory_fails_nobody(start):
    needed = 16 * -(-(300 + 100) // 64)
    server = start(SMOL, "--kv-pool", str(needed // 2 * BLOCK_BYTES))
    assert server.get("/v1/blocks").json["total"] == needed // 2
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: answer(server, ids(i, 300), max_tokens=100), range(16)))
    assert all(a["usage"]["completion_tokens"] == 100 for a in answers)
    metrics = server.metrics()
    assert metrics["vllm:num_preemptions_total"] > 0
    assert metrics["tally_recomputed_tokens_total"] <= 0.15 * 16 * 400
