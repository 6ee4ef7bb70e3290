"""Several answers to one prompt: n, best_of, beams; each choice is what it would be alone."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from rig import SHORT, SMOL, TINY, Events, eventually

sanitizer = pytest.mark.sanitizer

PROMPT = "The lighthouse keeper counted the ships as they passed, and every evening he wrote"
USER = [{"role": "user", "content": "Name three colours."}]
SAMPLED = {"temperature": 0.8, "seed": 5, "max_tokens": 12, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PREFILLED = 'tally_step_rows_total{what="prefill"}'


@pytest.fixture(scope="module")
def server(start_shared):
    flags = ("--kv-pool", "4MiB", "--threads", "1") if SHORT else ("--kv-pool", "96MiB")
    return start_shared(TINY if SHORT else SMOL, *flags)


def exact(text):
    """Numbers stay as they were printed."""
    return json.loads(text, parse_float=str)


def ask(server, path="/v1/completions", **body):
    reply = server.post(path, {"model": server.model, **body})
    assert reply.status == 200, reply
    answer = exact(reply.body)
    assert [c["index"] for c in answer["choices"]] == list(range(len(answer["choices"])))
    return answer


def said(answer):
    """Of each choice: its text, its logprobs, why it ended."""
    return [(c["text"], c["logprobs"], c["finish_reason"]) for c in answer["choices"]]


def mean_logprob(choice):
    values = [float(v) for v in choice["logprobs"]["token_logprobs"]]
    return math.fsum(values) / len(values)


@sanitizer
def test_sampled_choices_are_reproducible_and_the_first_is_that_of_n_1(server):
    one = ask(server, prompt=PROMPT, logprobs=2, **SAMPLED)
    four, again = (ask(server, prompt=PROMPT, logprobs=2, n=4, **SAMPLED) for _ in range(2))
    assert said(four) == said(again)
    assert said(four)[0] == said(one)[0]
    # The tiny model has hardly a choice; that its draws differ is for the engine's own test.
    assert SHORT or len({text for text, _, _ in said(four)}) > 1, "every choice draws on its own"
    assert four["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert four["usage"]["completion_tokens"] == 4 * 12
    assert four["timings"]["predicted_n"] == 4 * 12


@sanitizer
def test_more_choices_do_not_change_the_first_ones(server):
    three, eight = (ask(server, prompt=PROMPT, logprobs=0, n=n, **SAMPLED) for n in (3, 8))
    assert said(eight)[:3] == said(three)


@sanitizer
def test_greedy_choices_are_all_equal(server):
    one = ask(server, prompt=PROMPT, logprobs=2, **GREEDY)
    eight = ask(server, prompt=PROMPT, logprobs=2, n=8, **GREEDY)
    assert said(eight) == said(one) * 8


@sanitizer
def test_the_prompt_is_computed_once(server):
    ids = [(7 * i) % 500 + 3 for i in range(70 if SHORT else 300)]
    assert server.post("/reset_prefix_cache", {}).status == 200
    before = server.metrics()[PREFILLED]
    answer = ask(server, prompt=ids, n=8, **SAMPLED)
    assert server.metrics()[PREFILLED] - before == len(ids)
    assert answer["usage"]["prompt_tokens"] == len(ids) and answer["usage"]["completion_tokens"] == 8 * 12


@sanitizer
def test_prompts_times_choices(server):
    answer = ask(server, prompt=[PROMPT, "Once"], logprobs=0, n=3, **SAMPLED)
    apart = [said(ask(server, prompt=p, logprobs=0, n=3, **SAMPLED)) for p in (PROMPT, "Once")]
    assert said(answer) == apart[0] + apart[1]


@sanitizer
def test_streams_say_the_same(server):
    whole = ask(server, prompt=PROMPT, n=3, **SAMPLED)
    texts, ends, usage = [""] * 3, [None] * 3, None
    body = {"prompt": PROMPT, "n": 3, "stream_options": {"include_usage": True}, **SAMPLED}
    with server.wire() as wire:
        for event in server.events(wire, "/v1/completions", body):
            usage = event.get("usage")
            for choice in event["choices"]:
                assert ends[choice["index"]] is None, "an event after the end of its choice"
                texts[choice["index"]] += choice["text"]
                ends[choice["index"]] = choice["finish_reason"]
    assert [(t, e) for t, e in zip(texts, ends)] == [(t, e) for t, _, e in said(whole)]
    assert usage["completion_tokens"] == 36


# Not for a sanitizer: the tiny model has no chat template.
def test_chat_streams_begin_each_choice_with_its_role(server):
    options = {"messages": USER, "n": 2, "max_tokens": 12, "seed": 3}
    whole = ask(server, "/v1/chat/completions", **options)
    texts, roles = [""] * 2, [0] * 2
    with server.wire() as wire:
        for event in server.events(wire, "/v1/chat/completions", options):
            for choice in event["choices"]:
                index, delta = choice["index"], choice["delta"]
                assert ("role" in delta) == (roles[index] == 0)
                roles[index] += "role" in delta
                texts[index] += delta.get("content", "")
    assert roles == [1, 1] and texts == [c["message"]["content"] for c in whole["choices"]]


@sanitizer
def test_choices_in_a_crowd_are_the_same(server):
    bodies = [{"prompt": PROMPT[: 20 + 9 * i], "n": 1 + i % 4, "logprobs": 1, **SAMPLED} for i in range(6)]
    alone = [said(ask(server, **body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        assert [said(a) for a in pool.map(lambda body: ask(server, **body), bodies)] == alone


@sanitizer
def test_best_of_tells_the_likeliest_and_counts_all(server):
    four = ask(server, prompt=PROMPT, logprobs=0, n=4, **SAMPLED)
    ranked = sorted(four["choices"], key=lambda c: (-mean_logprob(c), c["index"]))
    best = ask(server, prompt=PROMPT, n=2, best_of=4, **SAMPLED)
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in ranked[:2]]
    assert all(c["logprobs"] is None for c in best["choices"])
    assert best["usage"]["completion_tokens"] == 4 * 12
    assert best["usage"]["prompt_tokens"] == four["usage"]["prompt_tokens"]


@sanitizer
def test_one_beam_is_greedy(server):
    options = {"prompt": PROMPT, "logprobs": 3, "max_tokens": 12, "ignore_eos": True}
    beam, greedy = ask(server, use_beam_search=True, **options), ask(server, temperature=0, **options)
    assert said(beam) == said(greedy)


@sanitizer
def test_beams_tell_alternatives(server):
    """Those of a beam's tokens are what the model says after the same text, whoever says it."""
    options = {"max_tokens": 6, "ignore_eos": True, "logprobs": 4, "use_beam_search": True}
    for choice in ask(server, prompt=PROMPT, n=3, **options)["choices"]:
        logprobs = choice["logprobs"]
        assert all(len(best) >= 4 for best in logprobs["top_logprobs"])
        assert all(best[token] == pytest.approx(logprob) for best, token, logprob in zip(
            logprobs["top_logprobs"], logprobs["tokens"], logprobs["token_logprobs"]) if token in best)
    (one,) = ask(server, prompt=PROMPT, n=1, best_of=3, **options)["choices"]
    (greedy,) = ask(server, prompt=PROMPT, max_tokens=1, temperature=0, logprobs=4)["choices"]
    assert one["logprobs"]["top_logprobs"][0].items() >= greedy["logprobs"]["top_logprobs"][0].items()


@sanitizer
def test_beams_come_best_first_and_do_not_change(server):
    options = {"prompt": PROMPT, "logprobs": 0, "max_tokens": 12, "ignore_eos": True, "use_beam_search": True}
    four, again = (ask(server, n=4, **options) for _ in range(2))
    assert said(four) == said(again)
    scores = [mean_logprob(c) for c in four["choices"]]
    assert scores == sorted(scores, reverse=True)
    assert len({json.dumps(c["logprobs"]["tokens"]) for c in four["choices"]}) == 4
    two = ask(server, n=2, best_of=4, **options)
    assert said(two) == said(four)[:2], "the width decides, n is what is told"
    assert two["usage"]["prompt_tokens"] == four["usage"]["prompt_tokens"]
    assert four["usage"]["completion_tokens"] == 4 * 12


@sanitizer
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beams_that_may_end(server, early_stopping):
    options = {"prompt": PROMPT, "max_tokens": 12, "use_beam_search": True, "n": 3, "length_penalty": 0.5}
    answer = ask(server, early_stopping=early_stopping, **options)
    assert len(answer["choices"]) == 3 and all(c["finish_reason"] in ("stop", "length") for c in answer["choices"])


BAD = [
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": "2"}, "n"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"n": 2, "best_of": 17}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt": ["x"] * 64, "n": 5}, "n"),
    ({"use_beam_search": True, "n": 2, "stream": True}, "stream"),
    ({"use_beam_search": True, "n": 2, "stop": "x"}, "stop"),
    ({"use_beam_search": True, "length_penalty": 100}, "length_penalty"),
    ({"use_beam_search": True, "early_stopping": "sometimes"}, "early_stopping"),
    ({"use_beam_search": True, "presence_penalty": 1}, "presence_penalty"),
    ({"length_penalty": 2}, "length_penalty"),
    ({"early_stopping": True}, "early_stopping"),
]


@sanitizer
@pytest.mark.parametrize(("options", "param"), BAD, ids=[str(o)[:60] for o, _ in BAD])
def test_bad_values(server, options, param):
    reply = server.post("/v1/completions", {"model": server.model, "prompt": PROMPT, "max_tokens": 2, **options})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", param), reply


@sanitizer
def test_more_than_can_run_at_once(start):
    server = start(TINY, "--kv-pool", "4MiB", "--max-seqs", "3")
    for options, param in (({"n": 4}, "n"), ({"n": 2, "best_of": 4}, "best_of"), ({"n": 4, "use_beam_search": True}, "n")):
        reply = server.post("/v1/completions", {"model": server.model, "prompt": "x", "max_tokens": 2, **options})
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", param), reply
        assert "--max-seqs" in reply.error["message"]
    assert len(server.complete("x", max_tokens=2, n=3)["choices"]) == 3
    server.at_rest()


@sanitizer
def test_a_client_that_leaves_gives_everything_back(server):
    with server.wire() as wire:
        body = {"model": server.model, "prompt": PROMPT, "n": 8, "stream": True, "temperature": 1, "ignore_eos": True}
        events = iter(Events(wire.request("POST", "/v1/completions", body)))
        next(events)
        if not SHORT:  # the tiny model's context is full at once
            assert server.metrics()["vllm:num_requests_running"] == 8
        wire.reset()
    eventually(lambda: server.metrics()["vllm:num_requests_running"] == 0, "all of them are cancelled")
    server.at_rest()
