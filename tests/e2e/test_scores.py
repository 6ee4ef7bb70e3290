"""What the model makes of a prompt: echo with logprobs, and prompt_logprobs; the same numbers whatever else runs, and the right ones."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rig import ROOT, SHORT, SMOL, TINY, Events, eventually, tally

sanitizer = pytest.mark.sanitizer
GEMMA = ROOT / "models/gemma3-270m-q4_k_m.gguf"
TEXT = ROOT / "share/tally/english.txt"
ALONE = {"max_tokens": 0, "echo": True, "logprobs": 3, "temperature": 0}  # a prompt and nothing more
PROMPTS = [[(31 * i + 7 * n) % 900 + 100 for i in range(n)] for n in (2, 17, 40, 75, 110, 160)]
SCORED_ROWS = sum(len(ids) for ids in PROMPTS) - len(PROMPTS)


def exact(text):
    """Numbers stay as they were printed."""
    return json.loads(text, parse_float=str)


def ask(server, prompt, path="/v1/completions", **body):
    reply = server.post(path, {"model": server.model, "prompt": prompt, **body})
    assert reply.status == 200, reply
    return exact(reply.body)


def scores(server, prompt, **body):
    return ask(server, prompt, **{**ALONE, **body})["choices"][0]["logprobs"]


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(TINY, "--kv-pool", "4MiB", "--block-tokens", "16")


@pytest.fixture(scope="module")
def reference(server):
    return [scores(server, ids) for ids in PROMPTS]


@sanitizer
def test_scores_are_what_generation_tells(server, reference):
    """The same token generated, forced by a bias, has the same log-probability and the same ones beside it."""
    ids, told = PROMPTS[2], reference[2]
    assert told["token_logprobs"][0] is None and told["top_logprobs"][0] is None
    for i in (1, 2, 15, 16, 17, len(ids) - 1):
        forced = ask(server, ids[:i], max_tokens=1, temperature=0, logprobs=3, logit_bias={str(ids[i]): 100})["choices"][0]["logprobs"]
        for key in ("tokens", "token_logprobs", "top_logprobs"):
            assert forced[key] == [told[key][i]], (i, key)
    body = {"max_tokens": 20, "temperature": 0, "logprobs": 3, "ignore_eos": True}
    plain, whole = (ask(server, ids, **body, echo=echo)["choices"][0]["logprobs"] for echo in (False, True))
    for key in ("tokens", "token_logprobs", "top_logprobs"):
        assert whole[key] == told[key] + plain[key]


@sanitizer
def test_together_and_beside_others(server, reference):
    with ThreadPoolExecutor(12) as pool:
        others = [pool.submit(ask, server, ids, max_tokens=40, ignore_eos=True) for ids in PROMPTS]
        got = list(pool.map(lambda ids: scores(server, ids), PROMPTS))
        assert all(len(other.result()["choices"]) == 1 for other in others)
    assert got == reference
    assert [c["logprobs"] for c in ask(server, PROMPTS, **ALONE)["choices"]] == reference, "a list of prompts"
    server.at_rest()


@sanitizer
def test_cut_otherwise_and_preempted(start, server, reference):
    """Few rows with logits, small steps, a pool that is too small: the same numbers, each row scored once."""
    flags = ("--block-tokens", "16", "--step-tokens", "24", "--max-seqs", "3", "--threads", "2")
    block_bytes = server.metrics()["tally_kv_block_bytes"]
    small = start(TINY, *flags, "--kv-pool", int(13 * block_bytes))
    with ThreadPoolExecutor(16) as pool:
        # Two in step need 14 blocks at their end.
        running = [pool.submit(ask, small, [PROMPTS[0]] * 2, max_tokens=110, ignore_eos=True) for _ in range(6)]
        assert list(pool.map(lambda ids: scores(small, ids), PROMPTS)) == reference
        generated = sum(r.result()["usage"]["completion_tokens"] for r in running)
    assert small.metrics()["vllm:num_preemptions_total"] > 0, "the pool was meant to be too small"
    steps = small.get("/v1/steps?last=8192").json["steps"]
    assert max(s["logits_rows"] for s in steps) <= 3
    # The last row of a prompt alone has logits where it is in one chunk with rows that score.
    assert 0 <= sum(s["logits_rows"] for s in steps) - SCORED_ROWS - generated <= len(PROMPTS)
    small.at_rest()


@sanitizer
def test_the_prefix_cache(server, reference):
    assert server.post("/reset_prefix_cache", {}).status == 200
    for _ in range(2):  # what is scored is computed
        answer = ask(server, PROMPTS[4], **ALONE)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer["choices"][0]["logprobs"] == reference[4]
    plain = ask(server, PROMPTS[4], max_tokens=1)
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] >= 96, "its blocks are there for others"


@sanitizer
def test_choices_and_streams(server, reference):
    body = {"echo": True, "logprobs": 3, "max_tokens": 4, "n": 3, "seed": 5, "ignore_eos": True}
    whole = ask(server, PROMPTS[2], **body)
    for choice in whole["choices"]:
        assert choice["logprobs"]["token_logprobs"][: len(PROMPTS[2])] == reference[2]["token_logprobs"]
    plain = ask(server, PROMPTS[2], **{**body, "echo": False})
    text = server.post("/detokenize", {"tokens": PROMPTS[2]}).json["prompt"]
    assert [c["text"] for c in whole["choices"]] == [text + c["text"] for c in plain["choices"]]
    assert whole["usage"] == plain["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}
    told = [("", {}) for _ in range(3)]
    with server.wire() as wire:
        wire.request("POST", "/v1/completions", {"model": server.model, "prompt": PROMPTS[2], "stream": True, **body})
        for event in Events(wire, exact):
            for choice in event["choices"]:
                said, lists = told[choice["index"]]
                assert said or choice["text"].startswith(text), "the prompt comes with the first event"
                for key, values in choice["logprobs"].items():
                    lists.setdefault(key, []).extend(values)
                told[choice["index"]] = (said + choice["text"], lists)
    assert told == [(c["text"], c["logprobs"]) for c in whole["choices"]]


@sanitizer
def test_prompt_logprobs(server, reference):
    listed = ask(server, PROMPTS[3], max_tokens=1, prompt_logprobs=3)["choices"][0]["prompt_logprobs"]
    assert listed[0] is None and len(listed) == len(PROMPTS[3])
    for i, entries in enumerate(listed[1:], 1):
        own = entries[str(PROMPTS[3][i])]
        assert own["logprob"] == reference[3]["token_logprobs"][i] and own["decoded_token"] == reference[3]["tokens"][i]
        ranks = sorted(e["rank"] for e in entries.values())
        assert ranks[:3] == [1, 2, 3] and len(ranks) == (3 if own["rank"] <= 3 else 4)
        best = sorted(entries.values(), key=lambda e: e["rank"])
        assert [float(e["logprob"]) for e in best] == sorted((float(e["logprob"]) for e in best), reverse=True)
    chat = server.post("/v1/chat/completions", {"model": server.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "prompt_logprobs": 0})
    assert chat.status == 200 and len(chat.json["prompt_logprobs"]) == chat.json["usage"]["prompt_tokens"], chat


@sanitizer
def test_a_client_that_leaves_gives_everything_back(server):
    with server.wire() as wire:
        wire.request("POST", "/v1/completions", {"model": server.model, "prompt": PROMPTS, "n": 4, "echo": True, "logprobs": 20, "max_tokens": 500, "ignore_eos": True})
        eventually(lambda: server.metrics()["vllm:num_requests_running"] > 0, "it runs")
        wire.reset()
    server.at_rest()


def test_the_same_as_eval(server, tmp_path):
    """tally eval reads the text in windows over stored KV and scores what lies behind the first 64 rows."""
    context, tokens = 300, 600
    done = tally("eval", "ppl", TINY, "--json", "--text", TEXT, "--out", tmp_path, "--tokens", tokens, "--context", context, "--threads", 1)
    assert done.returncode == 0, done.stderr
    (codec,) = json.loads(done.stdout)["results"]["codecs"]
    ids = server.post("/tokenize", {"prompt": TEXT.read_text()}).json["tokens"][:tokens]
    windows = [ids[at : at + context] for at in range(0, tokens, context)]
    logprobs = [float(v) for window in windows for v in scores(server, window)["token_logprobs"][65:]]
    assert codec["text"]["positions"] == len(logprobs)
    assert codec["text"]["nll"]["value"] == pytest.approx(-math.fsum(logprobs) / len(logprobs), abs=1e-6)


def golden(name):
    return json.loads((ROOT / f"tests/golden/{name}.json").read_text())


def check_golden(server, wanted, kinds):
    """Positions whose token is among the five likeliest are held to the golden file's tolerance, and the mean to a tenth of it."""
    deltas, means = [], []
    for prompt in (p for p in wanted["prompts"] if p["id"] in kinds):
        asked = prompt["text"] if prompt["kind"] == "raw" else prompt["ids"]
        choice = server.complete(asked, **ALONE, prompt_logprobs=0)["choices"][0]
        ranks = [next(iter(e.values()))["rank"] for e in choice["prompt_logprobs"][1:]]
        ids = [prompt["ids"][0], *(int(next(iter(e))) for e in choice["prompt_logprobs"][1:])]
        assert ids == prompt["ids"]
        found = choice["logprobs"]["token_logprobs"][1:]
        assert len(found) == len(prompt["next_logprob"])
        deltas += [abs(a - b) for a, b, rank in zip(found, prompt["next_logprob"], ranks) if rank <= 5]
        means += [a - b for a, b in zip(found, prompt["next_logprob"])]
    deltas.sort()
    assert deltas[int(0.99 * len(deltas))] <= wanted["tolerance"]["top5_abs_dlogprob_p99"]
    assert deltas[-1] <= wanted["tolerance"]["top5_abs_dlogprob_max"]
    assert abs(sum(means)) / len(means) <= wanted["tolerance"]["top5_abs_dlogprob_p99"] / 10


if not SHORT:

    def test_golden_values_and_memory(start):
        """A26: a prompt that fills the context, scored with as many of the best as can be asked for, stays within the plan."""
        wanted = golden("smollm2")
        (longest,) = [p for p in wanted["prompts"] if p["id"] == "long"]
        context = len(longest["ids"])
        server = start(SMOL, "--max-model-len", context, "--kv-pool", "32MiB")
        check_golden(server, wanted, ("short", "list", "chat-1", "cjk-emoji"))

        def resident():
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            return int(status.split("RssAnon:")[1].split()[0]) * 1024

        before = resident()
        choice = server.complete(longest["ids"], **ALONE | {"logprobs": 20})["choices"][0]
        found = choice["logprobs"]["token_logprobs"][1:]
        error = sum(a - b for a, b in zip(found, longest["next_logprob"], strict=True)) / len(found)
        assert abs(error) <= wanted["tolerance"]["top5_abs_dlogprob_p99"] / 10
        # All rows at once would be 168 MB; the answer itself is some.
        assert resident() - before < 40 << 20
        accounts = server.get("/v1/accounts").json["accounts"]
        for name, account in accounts.items():
            assert account["peak_bytes"] <= account["planned_bytes"], name
        refused = server.post("/v1/completions", {"model": server.model, "prompt": longest["ids"], "echo": True, "max_tokens": 1})
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        server.at_rest()

    def test_golden_values_behind_a_bos(start):
        """The first token that the tokenizer adds is an entry without text."""
        server = start(GEMMA, "--max-model-len", "512", "--kv-pool", "16MiB")
        check_golden(server, golden("gemma3"), ("short", "one-token", "list"))
        choice = server.complete("The capital of France is", **ALONE)["choices"][0]
        assert choice["text"] == "The capital of France is"
        logprobs = choice["logprobs"]
        assert logprobs["tokens"][:2] == ["<bos>", "The"] and logprobs["text_offset"][:3] == [0, 0, 3]
        assert logprobs["token_logprobs"][0] is None and logprobs["token_logprobs"][1] < 0
        bos = server.complete("", **ALONE)["choices"][0]
        assert bos["text"] == "" and bos["logprobs"]["tokens"] == ["<bos>"]
