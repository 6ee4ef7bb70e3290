"""Law 1 through HTTP on the real model: a request's bits do not depend on what else runs, nor on how the work is cut."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from rig import SMOL, TINY, Events, tally

POOL = ("--kv-pool", "96MiB")
STORY = (
    "The lighthouse keeper counted the ships as they passed. Every evening he wrote the number in a book with a green cover, and "
    "every morning he read the number of the day before. In forty years the book had never been wrong, because nobody had ever "
    "counted again. Then, one winter, a girl from the village began to count the ships as well, from the window of her school. "
)
ARTICLE = (
    "A cache keeps the answers to questions that were asked before. It is useful only if the same question comes again, and it is "
    "right only if the answer has not changed meanwhile. " * 9
)


def chat(text, system=None, **options):
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": text}]
    return "/v1/chat/completions", {"messages": messages, "logprobs": True, "top_logprobs": 3, **options}


def completion(prompt, **options):
    return "/v1/completions", {"prompt": prompt, "logprobs": 3, **options}


GREEDY = {"temperature": 0}
CASES = [
    chat("Name three colours.", max_tokens=32, **GREEDY),
    chat("Why is the sky blue?", system="You answer in one short sentence.", max_tokens=24, **GREEDY),
    completion("The capital of France is", max_tokens=40, ignore_eos=True, **GREEDY),
    completion(STORY, max_tokens=20, ignore_eos=True, **GREEDY),
    completion(STORY + "The first day they", max_tokens=20, seed=7, temperature=0.8),
    completion(STORY + "The girl's number was", max_tokens=20, **GREEDY),
    chat("Write a line about rain.", max_tokens=32, seed=11, temperature=1.0, top_p=0.9),
    chat("Name three colours.", max_tokens=40, seed=12, temperature=1.3, top_k=40, ignore_eos=True),
    completion([504, 3575, 282, 4649, 314], max_tokens=40, ignore_eos=True, **GREEDY),
    completion(
        "One two three four", max_tokens=40, seed=2**62 + 1, temperature=0.9, frequency_penalty=0.5, presence_penalty=0.3,
        repetition_penalty=1.1, logit_bias={"28": -5, "30": 2.5}, ignore_eos=True,
    ),
    completion(ARTICLE + "In short,", max_tokens=16, ignore_eos=True, **GREEDY),
    completion("Grüße aus 東京 🗼:", max_tokens=40, seed=3, min_p=0.02, ignore_eos=True),
]
SHORT_CASES = [
    completion("The capital of France is", max_tokens=4, ignore_eos=True, **GREEDY),
    completion("One two", max_tokens=4, seed=5, temperature=0.9, ignore_eos=True),
]


def exact(text):
    """Numbers stay as they were printed: equal bits print equal digits, and nothing is rounded on the way."""
    return json.loads(text, parse_float=str)


def bits(path, answer):
    """What must not change: text, tokens, logprobs, the reason of the end, the counts."""
    choice, usage = answer["choices"][0], answer["usage"]
    assert choice["logprobs"] is not None and usage["completion_tokens"] > 0
    return {
        "text": choice["message"]["content"] if "message" in choice else choice["text"],
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "fingerprint": answer["system_fingerprint"],
    }


class Run:
    """The answers of one way to run the cases."""

    def __init__(self, cases, answers):
        self.answers = answers
        self.bits = [bits(path, answer) for (path, _), answer in zip(cases, answers, strict=True)]

    def total(self, key):
        return sum(answer["receipt"][key] for answer in self.answers)


def ask(server, case):
    path, body = case
    reply = server.post(path, {"model": server.model, **body})
    assert reply.status == 200, reply
    return exact(reply.body)


def alone(server, cases=CASES):
    return Run(cases, [ask(server, case) for case in cases])


def together(server, cases=CASES):
    with ThreadPoolExecutor(len(cases)) as pool:
        return Run(cases, list(pool.map(lambda case: ask(server, case), cases)))


def check(run, reference, what):
    for index, (got, wanted) in enumerate(zip(run.bits, reference.bits, strict=True)):
        assert got == wanted, f"case {index} differs {what}"


@pytest.fixture(scope="module")
def plain(start_shared):
    """A server without prefix cache; the reference: each case alone on it."""
    return start_shared(SMOL, *POOL, "--prefix-cache", "off", "--threads", "2")


@pytest.fixture(scope="module")
def reference(plain):
    run = alone(plain)
    assert len({b["text"] for b in run.bits}) >= 10, "the cases hardly differ"
    assert run.total("preemptions") == 0
    return run


def test_alone_again(plain, reference):
    check(alone(plain), reference, "when asked alone again")


def test_batch_of_12(plain, reference):
    for _ in range(2):
        check(together(plain), reference, "in a batch of 12")


def test_streams_say_the_same(plain, reference):
    def stream(case):
        path, body = case
        with plain.wire() as wire:
            body = {**body, "model": plain.model, "stream": True, "stream_options": {"include_usage": True}}
            wire.request("POST", path, body)
            chunks = list(Events(wire, exact))
        text, lists, finish = "", {}, None
        for chunk in chunks:
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                finish = choice["finish_reason"]
                for key, value in choice["logprobs"].items():
                    lists.setdefault(key, []).extend(value or [])
        return text, lists, finish, chunks[-1]["usage"]

    with ThreadPoolExecutor(len(CASES)) as pool:
        streams = list(pool.map(stream, CASES))
    for index, ((text, lists, finish, usage), wanted) in enumerate(zip(streams, reference.bits, strict=True)):
        assert text == wanted["text"], f"case {index}"
        assert finish == wanted["finish_reason"] and usage["completion_tokens"] == wanted["completion_tokens"]
        assert lists == {key: value or [] for key, value in wanted["logprobs"].items()}, f"case {index}"


VARIANTS = {
    "step-tokens-16": ("--prefix-cache", "off", "--step-tokens", "16"),
    "step-tokens-512-threads-1": ("--prefix-cache", "off", "--step-tokens", "512", "--threads", "1"),
    "block-tokens-16": ("--prefix-cache", "off", "--block-tokens", "16"),
    "static": ("--batching", "static", "--max-seqs", "5"),
    "reserve": ("--allocator", "reserve", "--max-model-len", "1024", "--max-seqs", "6"),
    "step-latency": ("--step-latency", "20", "--block-tokens", "16"),
    "all-at-once": ("--block-tokens", "16", "--step-tokens", "24", "--threads", "1", "--max-seqs", "5"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_cut_otherwise(start, reference, name):
    server = start(SMOL, *POOL, *VARIANTS[name])
    check(together(server), reference, f"in a batch with {name}")


@pytest.mark.parametrize("block_tokens", [16, 64])
def test_prefix_cache(start, reference, block_tokens):
    server = start(SMOL, *POOL, "--prefix-cache", "on", "--block-tokens", block_tokens)
    first = together(server)
    check(first, reference, "with an empty prefix cache")
    second = alone(server)
    check(second, reference, "with a prefix hit")
    hits = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in second.answers]
    for hit, answer in zip(hits, second.answers):
        prompt = answer["usage"]["prompt_tokens"]
        full = (prompt - 1) // block_tokens * block_tokens
        assert hit >= full, "every full block before the last token is a hit"
        assert hit < prompt and (hit == full or hit - full >= block_tokens // 4), "and rows of the next, if not too few"
    assert any(hit % block_tokens for hit in hits), "a hit inside a block"
    check(together(server), reference, "with prefix hits in a batch")


@pytest.mark.parametrize("prefix_cache", ["off", "on"])
def test_preemption(start, plain, reference, prefix_cache):
    block_bytes = plain.metrics()["tally_kv_block_bytes"] / 64 * 16
    longest = max(b["prompt_tokens"] + b["completion_tokens"] for b in reference.bits)
    blocks = longest // 16 + 3
    server = start(SMOL, "--kv-pool", int(blocks * block_bytes), "--block-tokens", "16", "--prefix-cache", prefix_cache)
    assert server.pool_blocks() == blocks
    run = together(server)
    check(run, reference, "when blocks run out")
    # More of the cases that grow, so that they meet whatever the order of arrival was.
    growing = [case for case, b in zip(CASES, reference.bits) if b["completion_tokens"] >= 32]
    wanted = Run(growing, [a for a, b in zip(reference.answers, reference.bits) if b["completion_tokens"] >= 32])
    many = together(server, growing * 4)
    check(many, Run(growing * 4, wanted.answers * 4), "when blocks run out")
    preempted = run.total("preemptions") + many.total("preemptions")
    assert preempted > 0, "the pool was not small enough for this test"
    assert server.metrics()["vllm:num_preemptions_total"] == preempted
    assert run.total("recomputed_tokens") + many.total("recomputed_tokens") > 0
    server.at_rest()


@pytest.mark.parametrize("kv_type", ["int8", "bf16", "f32", "k8v4", "int4"])
def test_each_kv_type_with_itself(start, kv_type):
    cases = CASES[:6] + CASES[9:]
    calm = start(SMOL, *POOL, "--kv-type", kv_type, "--prefix-cache", "off")
    wanted = alone(calm, cases)
    calm.stop()
    busy = start(SMOL, *POOL, "--kv-type", kv_type, "--block-tokens", "16", "--step-tokens", "16", "--threads", "1")
    check(together(busy, cases), wanted, f"with {kv_type}")
    check(together(busy, cases), wanted, f"with {kv_type} and prefix hits")


def test_instruction_sets(start, plain):
    """Every tier this CPU has gives the same bits; every other one is refused before anything is loaded."""
    wanted = alone(plain, SHORT_CASES)
    ran = []
    for isa in ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx"):
        shown = tally("inspect", TINY, "--isa", isa)
        if shown.returncode == 0:
            server = start(SMOL, *POOL, "--isa", isa)
            assert server.get("/version").json["isa"] == isa
            check(together(server, SHORT_CASES), wanted, f"with --isa {isa}")
            server.stop()
            ran.append(isa)
        else:
            refused = tally("serve", SMOL, "--port", "0", "--isa", isa)
            assert (shown.returncode, refused.returncode) == (78, 78)
            assert f"--isa {isa}" in refused.stderr and "this CPU has scalar" in refused.stderr
    assert "scalar" in ran and len(ran) >= 2, f"this CPU has only {ran}"


@pytest.mark.parametrize("isa", ["avx2", "avx512vnni"])
def test_instruction_set_on_long_prompts(start, reference, isa):
    """The two SIMD tiers on all cases; a CPU without one refuses it, which is checked above."""
    if tally("inspect", TINY, "--isa", isa).returncode != 0:
        isa = "best"
    server = start(SMOL, *POOL, "--isa", isa, "--prefix-cache", "off")
    check(together(server), reference, f"with --isa {isa}")
