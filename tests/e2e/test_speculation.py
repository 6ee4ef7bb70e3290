"""--speculate lookup on the real model: no bit of an answer depends on it, fewer steps do the work, and everything tells so."""

import json

import pytest

from rig import LONG_RUN, ROOT, SMOL, TINY, tally
from test_law1 import CASES, GREEDY, Run, alone, ask, check, completion, together

POOL = ("--kv-pool", "96MiB", "--prefix-cache", "off")
LOOKUP = ("--speculate", "lookup")
SAMPLED = {"temperature": 0.7, "top_p": 0.95}


def workload(name):
    return [json.loads(line) for line in (ROOT / f"share/tally/workloads/{name}.jsonl").read_text().splitlines()]


def quoting(count, tokens, **options):
    """Prompts whose answers quote them."""
    return [completion(w["prompt"], max_tokens=tokens, ignore_eos=True, **options) for w in workload("copy")[:count]]


QUOTES = quoting(3, 32, **GREEDY) + quoting(2, 24, seed=5, **SAMPLED)
OTHERS = [CASES[i] for i in (4, 9)]


@pytest.fixture(scope="module")
def off(start_shared):
    return start_shared(SMOL, *POOL)


@pytest.fixture(scope="module")
def on(start_shared):
    return start_shared(SMOL, *POOL, *LOOKUP)


def drafted(server):
    m = server.metrics()
    return {what: m[f"vllm:spec_decode_num_{what}_total"] for what in ("drafts", "draft_tokens", "accepted_tokens")}


def test_no_bit_depends_on_drafts(off, on):
    cases = QUOTES + OTHERS
    reference = alone(off, cases)
    assert reference.total("draft_tokens") == 0 and drafted(off) == {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    run = alone(on, cases)
    check(run, reference, "with drafts")
    batch = together(on, cases)
    check(batch, reference, "with drafts in a batch")
    accepted = run.total("accepted_tokens")
    assert accepted > 0, "answers that quote their prompts are drafted"
    assert run.total("steps") + accepted == reference.total("steps"), "each draft that is right saves a step"
    told = drafted(on)
    assert told["accepted_tokens"] == accepted + batch.total("accepted_tokens")
    assert told["draft_tokens"] == run.total("draft_tokens") + batch.total("draft_tokens") >= told["accepted_tokens"]
    m = on.metrics()
    by_place = [m[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}'] for i in range(16)]
    assert sum(by_place) == told["accepted_tokens"] and by_place == sorted(by_place, reverse=True)
    assert m['tally_step_rows_total{what="draft"}'] == told["draft_tokens"]
    assert m["tally_speculation_ratio"] > 0
    gaps = m["vllm:inter_token_latency_seconds_count"]
    assert gaps == sum(b["completion_tokens"] - 1 for b in run.bits + batch.bits), "one gap for each token after the first"
    on.at_rest()


def test_steps_streams_and_explain_tell_drafts(on):
    body = {**QUOTES[1][1], "stream_options": {"include_usage": True}}
    body.pop("logprobs")
    since = on.get("/v1/steps?last=1").json["steps"][-1]["step"]
    streamed = on.stream("/v1/completions", body)
    receipt = streamed.last["receipt"]
    assert streamed.usage["completion_tokens"] == body["max_tokens"]
    assert sum(1 for c in streamed.chunks if c["choices"] and c["choices"][0].get("text")) <= receipt["steps"], "one event a step"
    assert streamed.text == ask(on, QUOTES[1])["choices"][0]["text"]
    steps = [s for s in on.get("/v1/steps?last=200").json["steps"] if since < s["step"] <= since + receipt["steps"]]
    assert sum(s["draft_tokens"] for s in steps) == receipt["draft_tokens"]
    assert sum(s["accepted_tokens"] for s in steps) == receipt["accepted_tokens"]
    assert all(s["decode_tokens"] <= 1 for s in steps)
    shown = tally("explain", on.url, "--roofs", "off", "--json")
    assert shown.returncode == 0, shown.stderr


def test_speculate_max_bounds_drafts(start, off):
    on = start(SMOL, *POOL, *LOOKUP, "--speculate-max", "2", "--kv-type", "int8", "--block-tokens", "16")
    case = QUOTES[1]
    check(Run([case], [ask(on, case)]), Run([case], [ask(off, case)]), "with two drafts")
    m = on.metrics()
    places = [k for k in m if k.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total")]
    assert places == [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}' for i in range(2)]
    assert max(s["draft_tokens"] for s in on.get("/v1/steps?last=100").json["steps"]) <= 2


@pytest.mark.parametrize(("flags", "code", "says"), [
    (("--speculate", "draft"), 64, "--draft-model FILE says which"),
    (("--speculate-verify", "reject"), 64, "--speculate-verify reject: --speculate is off"),
    (("--speculate", "lookup", "--speculate-verify", "reject"), 64, "--speculate-verify reject: --speculate is lookup"),
    (("--draft-model", TINY), 64, "--speculate is off"),
    (("--speculate", "draft", "--draft-model", "none.gguf"), 66, "none.gguf"),
    (("--speculate", "draft", "--draft-model", TINY), 78, "token 1024 differs, of 49152 and 1024"),
])  # fmt: skip
def test_draft_models_that_cannot_be(flags, code, says):
    for command in ("serve", "run", "plan"):
        done = tally(command, SMOL, *flags)
        assert (done.returncode, done.stdout) == (code, "") and done.stderr.count("\n") == 1 and says in done.stderr, done


def test_a_model_drafts(start):
    """A model for itself: what counts is that everything comes together, not that it pays."""
    plain = start(TINY)
    server = start(TINY, "--speculate", "draft", "--draft-model", TINY, "--speculate-max", "3")
    body = {"max_tokens": 40, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    assert server.complete("ab ab ab", **body)["choices"] == plain.complete("ab ab ab", **body)["choices"]
    accounts = server.get("/v1/accounts").json
    assert accounts["accounts"]["weights"]["reserved_bytes"] > plain.get("/v1/accounts").json["accounts"]["weights"]["reserved_bytes"]
    assert accounts["accounts"]["weights"]["reserved_bytes"] == accounts["accounts"]["weights"]["planned_bytes"]
    server.at_rest()


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The model with four bytes a weight: a pass takes so long that drafts of the file it was made from pay."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    assert tally("quantize", SMOL, path, "f32", "--allow-requantize").returncode == 0
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def rejecting(start_shared, wide):
    return start_shared(wide, *POOL, "--speculate", "draft", "--draft-model", SMOL, "--speculate-verify", "reject", "--speculate-max", "4")


def of_the_model(server):
    m = server.metrics()
    return {what: m[f'tally_{what}_tokens_total{{proposer="model"}}'] for what in ("draft", "accepted_draft")}


def test_rejection_sampling_is_for_seeds_that_were_drawn(start, wide, rejecting):
    plain = start(wide, *POOL)
    cases = [CASES[0], CASES[6], completion("The sea", max_tokens=24, seed=8, temperature=1.0, ignore_eos=True)]
    check(alone(rejecting, cases), alone(plain, cases), "greedy, or with a seed of the request")
    compared = of_the_model(rejecting)
    assert compared["accepted_draft"] > 0, "greedy ones are drafted and compared"
    told = rejecting.complete("The sea", max_tokens=64, temperature=1.0, ignore_eos=True)["receipt"]
    rejected = of_the_model(rejecting)
    assert rejected["accepted_draft"] > compared["accepted_draft"], "the pair is nearly the same: most guesses hold"
    assert told["steps"] + told["accepted_tokens"] == 64
    assert told["accepted_tokens"] >= rejected["accepted_draft"] - compared["accepted_draft"]
    by_proposer = [rejecting.metrics()[f'tally_accepted_draft_tokens_total{{proposer="{who}"}}'] for who in ("lookup", "constraint", "model")]
    assert sum(by_proposer) == drafted(rejecting)["accepted_tokens"] and by_proposer[1] == 0
    by_step = [s["drafts"]["model"] for s in rejecting.get("/v1/steps?last=500").json["steps"]]
    assert sum(s["accepted_tokens"] for s in by_step) == rejected["accepted_draft"]
    assert sum(s["draft_tokens"] for s in by_step) == rejected["draft"]
    again = [rejecting.complete("The sea", max_tokens=24, seed=told["seed"], temperature=1.0, ignore_eos=True)["choices"] for _ in range(2)]
    assert again[0] == again[1], "a seed that was told is a seed of the request when it is given"
    rejecting.at_rest()


if LONG_RUN:

    @pytest.mark.parametrize("kv_type", ["int8", "bf16", "int4"])
    def test_equality_at_length(start, kv_type):
        """Every length of a draft, alone and in batches, with prefix hits and blocks that run out."""
        plain = start(SMOL, *POOL, "--kv-type", kv_type)
        cases = quoting(14, 96, **GREEDY) + quoting(14, 96, seed=3, **SAMPLED)
        cases += [completion(w["prompt"], max_tokens=64, seed=w["id"], temperature=0.3 * (w["id"] % 4)) for w in workload("free")] + CASES
        wanted = alone(plain, cases)
        plain.stop()
        for most in (1, 2, 3, 5, 8, 16):
            small = ("--kv-pool", "12MiB", "--block-tokens", "16", "--max-seqs", "4")
            server = start(SMOL, *small, "--kv-type", kv_type, *LOOKUP, "--speculate-max", most)
            check(alone(server, cases), wanted, f"with {most} drafts")
            check(together(server, cases), wanted, f"with {most} drafts, in batches and with prefix hits")
            assert drafted(server)["accepted_tokens"] > 500
            server.stop()

    def test_a_requantized_copy_drafts(start, tmp_path):
        copy = tmp_path / "copy.gguf"
        assert tally("quantize", SMOL, copy, "q4_0", "--allow-requantize").returncode == 0
        plain = start(SMOL, *POOL)
        server = start(SMOL, *POOL, "--speculate", "draft", "--draft-model", copy, "--speculate-max", "4")
        cases = quoting(6, 64, **GREEDY) + CASES
        check(alone(server, cases), alone(plain, cases), "with a model that drafts")
