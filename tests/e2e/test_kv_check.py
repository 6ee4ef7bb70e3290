"""--kv-check: layers that a KV type does not suit keep bf16, said in a warning and in the accounts."""

import pytest

from rig import ROOT, SMOL, tally

GEMMA = ROOT / "models/gemma3-270m-q4_k_m.gguf"
SMALL = ("--kv-pool", "64MiB", "--max-model-len", "1024", "--max-seqs", "4")


def blocks(start, model, *flags):
    server = start(model, *SMALL, *flags)
    answer = server.complete("One, two, three,", max_tokens=8, temperature=0)
    accounts = server.get("/v1/accounts")
    server.stop()
    assert answer["usage"]["completion_tokens"] == 8
    for account in accounts.json["accounts"].values():
        for name, part in account["parts"].items():
            assert name in ("token streams", "requests") or part["planned_bytes"] == part["reserved_bytes"], (name, part)
    return accounts.json["blocks"], server.stderr


# Gemma 3 attends to all positions in every sixth layer, with one KV head whose few outlier columns 4 bits do not hold.
def test_layers_that_four_bits_do_not_suit_keep_bf16(start):
    checked, log = blocks(start, GEMMA, "--kv-type", "int4")
    assert checked["bf16_layers"] == [5, 11] and checked["kv_type"] == "int4"
    assert "--kv-type int4 does not suit 2 of 18 layers (5, 11)" in log
    off, quiet = blocks(start, GEMMA, "--kv-type", "int4", "--kv-check", "off")
    assert off["bf16_layers"] == [] and "does not suit" not in quiet
    # d = 256, one KV head: a head block of bf16 has 64 KiB, one of int4 20 KiB.
    assert checked["block_bytes"] - off["block_bytes"] == 2 * (64 - 20) * 1024
    assert checked["total"] < off["total"]


# The pool is divided again when the rope tables are there already, longer than what the context then is.
def test_a_pool_that_lowers_the_context_is_divided_again(start):
    server = start(GEMMA, "--kv-pool", "64MiB", "--kv-type", "int4")
    accounts = server.get("/v1/accounts").json
    server.stop()
    assert accounts["blocks"]["bf16_layers"] == [5, 11]
    rope = accounts["accounts"]["weights"]["parts"]["rope tables"]
    assert rope["planned_bytes"] == rope["reserved_bytes"] > 0
    assert accounts["reserved_bytes"] <= accounts["planned_bytes"]


@pytest.mark.parametrize("flags", [("--kv-type", "k8v4"), ("--kv-type", "int8", "--kv-check", "on"), ("--kv-type", "bf16", "--kv-check", "on")])
def test_a_type_that_suits_all_layers_is_kept(start, flags):
    checked, log = blocks(start, SMOL, *flags)
    assert checked["bf16_layers"] == [] and "does not suit" not in log


def test_the_choices_are_named():
    done = tally("serve", str(SMOL), "--kv-check", "maybe")
    assert done.returncode == 64 and "--kv-check: 'maybe' is not allowed; allowed: auto | on | off" in done.stderr
