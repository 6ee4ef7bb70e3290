"""tally plan, /v1/accounts, /v1/steps and tally snapshot: what memory a model takes, told before and measured after."""

import concurrent.futures
import json
import re
import struct
import threading
import time
from pathlib import Path

import pytest

from gguf_file import F32, STRING, U32, GgufFile, packed, tensor_bytes, text
from rig import LONG_RUN, ROOT, SMOL, TINY, Events, Streamed, eventually, tally
from test_cli import refused

GIB = 1 << 30
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "q4_k": 12, "q6_k": 14}


def planned(*arguments, code=0):
    done = tally("plan", *arguments, "--json")
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    assert done.stdout.count("\n") == 1 and done.stdout.isascii()
    page = json.loads(done.stdout)
    accounts = {a["name"]: a for a in page["accounts"]}
    assert list(accounts) == ["weights", "kv", "activations", "runtime"]
    assert page["total_bytes"] == sum(a["bytes"] for a in page["accounts"])
    for account in page["accounts"]:
        assert account["bytes"] == sum(p["bytes"] for p in account["parts"])
        assert all(p["formula"] for p in account["parts"])
    page["of"] = {(a["name"], p["name"]): p["bytes"] for a in page["accounts"] for p in a["parts"]}
    page["by_type"] = {k["kv_type"]: k for k in page["kv_types"]}
    return page


def header_file(path, keys, tensors):
    """A model's header, and a hole where its weights would be."""
    meta = {f"{keys['general.architecture']}.{k}" if "." not in k or k.startswith("attention") or k.startswith("rope") else k: v for k, v in keys.items()}
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    for key, value in meta.items():
        kind = STRING if isinstance(value, str) else F32 if isinstance(value, float) else U32
        out += text(key) + struct.pack("<I", kind) + packed(kind, value)
    offset = 0
    for name, dims, kind in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)
        offset += -(-tensor_bytes(dims, kind) // 32) * 32
    with open(path, "wb") as file:
        file.write(out)
        file.truncate(-(-len(out) // 32) * 32 + offset)
    return path


def llama(layers, heads, kv_heads, embedding, ffn, vocab, kind, **more):
    """Keys and tensors of a llama; head size 128."""
    keys = {
        "general.architecture": "llama", "block_count": layers, "context_length": 4096, "embedding_length": embedding, "feed_forward_length": ffn,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128,
    }  # fmt: skip
    keys.update(more.pop("keys", {}))
    experts = more.pop("experts", 0)
    tensors = [("token_embd.weight", [embedding, vocab], kind), ("output_norm.weight", [embedding], 0)]
    if not more.pop("tied", False):
        tensors.append(("output.weight", [embedding, vocab], kind))
    for i in range(layers):
        matrices = {"attn_q": (embedding, heads * 128), "attn_k": (embedding, kv_heads * 128), "attn_v": (embedding, kv_heads * 128), "attn_output": (heads * 128, embedding)}
        if experts:
            tensors += [(f"blk.{i}.ffn_{n}_exps.weight", [*d, experts], kind) for n, d in (("gate", (embedding, ffn)), ("up", (embedding, ffn)), ("down", (ffn, embedding)))]
            tensors.append((f"blk.{i}.ffn_gate_inp.weight", [embedding, experts], 0))
        else:
            matrices |= {"ffn_gate": (embedding, ffn), "ffn_up": (embedding, ffn), "ffn_down": (ffn, embedding)}
        tensors += [(f"blk.{i}.{name}.weight", [*dims], kind) for name, dims in matrices.items()]
        tensors += [(f"blk.{i}.{name}.weight", [embedding], 0) for name in ("attn_norm", "ffn_norm")]
    return keys, tensors


MODELS = {  # keys and tensors, KV values of a token
    "7b": (llama(32, 32, 32, 4096, 11008, 32000, TYPES["q4_k"]), 32 * 32 * 256),
    "13b": (llama(40, 40, 40, 5120, 13824, 32000, TYPES["q4_k"]), 40 * 40 * 256),
    "70b": (llama(80, 64, 8, 8192, 28672, 32000, TYPES["q4_k"]), 80 * 8 * 256),
    "70b-f16": (llama(80, 64, 8, 8192, 28672, 32000, TYPES["f16"]), 80 * 8 * 256),
    "8b-gqa": (llama(32, 32, 8, 4096, 14336, 128256, TYPES["q8_0"]), 32 * 8 * 256),
    "1b-tied": (llama(16, 16, 4, 2048, 8192, 128256, TYPES["q6_k"], tied=True), 16 * 4 * 256),
    "mqa": (llama(24, 16, 1, 2048, 5632, 32000, TYPES["q4_0"]), 24 * 256),
    "moe": (llama(32, 32, 8, 4096, 14336, 32000, TYPES["q4_k"], experts=8, keys={"expert_count": 8, "expert_used_count": 2}), 32 * 8 * 256),
}


@pytest.mark.parametrize("name", MODELS)
def test_headers_of_models_that_are_not_here(name, tmp_path):
    (keys, tensors), kv_values = MODELS[name]
    page = planned(header_file(tmp_path / f"{name}.gguf", keys, tensors), "--memory", "900GiB", "--kv-type", "bf16")
    # Packing pads rows to groups of 32, and unfolds the scales of K-quants.
    file_bytes = sum(tensor_bytes(dims, kind) for _, dims, kind in tensors)
    assert 1 <= page["of"]["weights", "packed weights"] / file_bytes < (1.01 if name.endswith("f16") else 1.1)
    assert page["kv_bytes_per_token"] == kv_values * 2
    assert page["by_type"]["f32"]["bytes_per_token"] == kv_values * 4
    scales = kv_values // 128 * 4  # int8: one of 4 bytes for each head's K and V
    assert page["by_type"]["int8"]["bytes_per_token"] == kv_values + scales
    assert page["architecture"] == "llama" and page["context_length"] == 4096 and page["fits"] == {"max_model_len": 4096, "max_seqs": 64}
    tokens = page["by_type"]["bf16"]["break_even_tokens"]
    weights = sum(v for (account, _), v in page["of"].items() if account == "weights")
    assert (tokens - 64) * kv_values * 2 < weights <= tokens * kv_values * 2
    assert page["notes"] and "tokenizer" in page["notes"][0]


ARCHITECTURES = {  # of tests/golden/arch: values of a token's KV, all heads and layers, padded to 16 columns
    "gemma3": "sliding", "deepseek2": "MLA", "gptoss": "MoE and sliding", "qwen3moe": "MoE", "llama_mha_tied": "tied", "bloom": "ALiBi", "gpt2": "learned positions",
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures(name):
    path = ROOT / f"tests/golden/arch/{name}.gguf"
    page = planned(path, "--memory", "1GiB", "--kv-type", "f32")
    file = GgufFile(path)
    assert page["of"]["weights", "packed weights"] >= sum(len(t[3]) for t in file.tensors if t[2] == 0) * 0.5
    assert page["kv_bytes_per_token"] == page["by_type"]["f32"]["bytes_per_token"] > page["by_type"]["bf16"]["bytes_per_token"]
    assert page["by_type"]["f32"]["bytes_per_token"] == 2 * page["by_type"]["bf16"]["bytes_per_token"]


CLASSIC = "layers=32,heads=32,kv-heads=32,head-dim=128,embedding=4096,ffn=11008,vocab=32000,context=4096"


def test_the_classic_sum():
    page = planned("--shape", CLASSIC, "--memory", "64GiB", "--kv-type", "bf16")
    per_token = page["kv_bytes_per_token"]
    assert per_token == 2 * 2 * 32 * 32 * 128 == 524_288
    assert round(2000 * per_token / 1e9, 1) == 1.0 and round(16 * 2000 * per_token / 1e9) == 17 and 16 * 2048 * per_token == 16 * GIB
    groups = planned("--shape", CLASSIC.replace("kv-heads=32", "kv-heads=8"), "--memory", "64GiB", "--kv-type", "bf16")
    assert groups["kv_bytes_per_token"] * 4 == per_token
    heads = 32 * 32
    by_type = {name: page["by_type"][name]["bytes_per_token"] for name in page["by_type"]}
    assert by_type["int8"] == heads * 2 * (128 + 4)  # a scale of 4 bytes
    if "k8v4" in by_type:
        assert by_type["k8v4"] == heads * (128 + 4 + 64 + 128 // 32 * 4)  # and of 4 bytes a group of 32
        assert by_type["int4"] == heads * 2 * (64 + 128 // 32 * 4)


def test_what_fits_and_what_does_not():
    page = planned("--shape", CLASSIC, "--memory", "24GiB", "--kv-type", "bf16")
    for kind in page["kv_types"]:
        for cell in kind["table"]:
            assert cell["fits"] == (cell["total_bytes"] <= 24 * GIB)
        longest = [c["max_model_len"] for c in kind["longest"]]
        assert longest == sorted(longest, reverse=True) and longest[0] > 0
    assert page["by_type"]["int8"]["most"][-1]["seqs"] > page["by_type"]["bf16"]["most"][-1]["seqs"] > 0

    page = planned("--shape", CLASSIC, "--memory", "1GiB", code=69)
    assert page["refused"].startswith("the model does not fit") and page["fits"] == {"max_model_len": 0, "max_seqs": 0}
    assert page["total_bytes"] > page["budget_bytes"] == GIB
    done = tally("plan", "--shape", CLASSIC, "--memory", "1GiB")
    assert done.returncode == 69 and "weights" in done.stdout and done.stderr.count("\n") == 1


DEEPSEEK3 = ("layers=61,heads=128,head-dim=192,value-dim=128,rope-dim=64,kv-rank=512,q-rank=1536,embedding=7168,ffn=18432,vocab=129280,context=8192,"
             "experts=256,experts-used=8,expert-ffn=2048,shared-experts=1,dense-layers=3,type=q8_0")  # fmt: skip
SHAPES = {  # what --shape says, the KV values of a token, parameters
    "gemma3-4b": ("layers=34,heads=8,kv-heads=4,head-dim=256,embedding=2560,ffn=10240,vocab=262144,context=8192,window=1024,window-period=6,tied=1,type=q8_0", 34 * 4 * 512, 3.88e9),
    "mixtral": ("layers=32,heads=32,kv-heads=8,head-dim=128,embedding=4096,ffn=14336,vocab=32000,experts=8,experts-used=2,type=q8_0", 32 * 8 * 256, 46.7e9),
    "sliding-moe": ("layers=24,heads=64,kv-heads=8,head-dim=64,embedding=2880,ffn=2880,vocab=201088,experts=32,experts-used=4,window=128,window-period=2,type=q8_0", 24 * 8 * 128, 20.9e9),
    "all-slide": ("layers=32,heads=32,kv-heads=8,window=4096,window-period=1024,ffn=14336,vocab=32000,type=q8_0", 32 * 8 * 256, 7.24e9),
    "deepseek3": (DEEPSEEK3, 61 * 128 * (192 + 128), 671e9),
    "deepseek2-lite": ("layers=27,heads=16,head-dim=192,value-dim=128,kv-rank=512,embedding=2048,ffn=10944,vocab=102400,experts=64,experts-used=6,expert-ffn=1408,shared-experts=2,dense-layers=1,type=q8_0",
                       27 * 16 * (192 + 128), 15.7e9),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_with_windows_experts_and_latents(name):
    shape, kv_values, parameters = SHAPES[name]
    page = planned("--shape", shape, "--memory", "900GiB", "--kv-type", "bf16", "--max-seqs", "1")
    assert page["kv_bytes_per_token"] == kv_values * 2  # what is allocated: layers that slide keep all, latents are expanded
    packed = page["of"]["weights", "packed weights"]
    assert packed == pytest.approx(parameters * 34 / 32, rel=0.02)  # as their authors count them


def test_standard_attention_shows_its_matrix():
    shape = "layers=24,heads=16,kv-heads=16,head-dim=64,embedding=1024,ffn=2816,vocab=32000,context=4096"
    flags = ("--shape", shape, "--memory", "32GiB", "--step-tokens", "4096")
    standard = planned(*flags, "--attention", "standard")
    assert standard["of"]["activations", "score matrix"] == 16 * 4096**2 * 4 == GIB
    assert ("activations", "score matrix") not in planned(*flags)["of"]


def test_bad_input(tmp_path):
    refused(64, "plan")
    refused(64, "plan", TINY, "--shape", CLASSIC, says="exclude")
    refused(64, "plan", "--shape", "layers=0", says=("layers=0", "1..1024"))
    refused(64, "plan", "--shape", "wheels=4", says=("wheels", "layers"))
    refused(64, "plan", "--shape", "type=q9", says=("type=q9", "q4_k"))
    refused(64, "plan", "--shape", "embedding=1000,type=q4_k", says=("embedding 1000", "256"))
    refused(64, "plan", "--shape", "layers", says="key=value")
    refused(64, "plan", "--shape", "window=512,kv-rank=512", says="exclude each other")
    refused(64, "plan", "--shape", "window-period=1", says=("window-period=1", "2..1024"))
    refused(64, "plan", "--shape", "q-rank=64", says="needs kv-rank")
    refused(64, "plan", "--shape", "kv-rank=512,kv-heads=4", says=("kv-heads=4", "32"))
    refused(64, "plan", "--shape", "kv-rank=512,rope-dim=128", says=("rope-dim=128", "at most 126"))
    refused(64, "plan", "--shape", "kv-rank=100,type=q4_k", says=("kv-rank 100", "256"))
    refused(64, "plan", "--shape", "experts=4,experts-used=5", says=("experts-used=5", "at most 4"))
    refused(64, "plan", "--shape", "shared-experts=1", says="need experts")
    refused(66, "plan", tmp_path / "nothing.gguf")
    refused(78, "plan", TINY, "--max-model-len", "16000000", says="context")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(40))
    refused(65, "plan", tmp_path / "bad.gguf")


# ---- a server, against its plan --------------------------------------------------------------------------------------------


def accounts_of(server):
    page = server.get("/v1/accounts").json
    assert set(page["accounts"]) == {"weights", "kv", "activations", "runtime"}
    for account in page["accounts"].values():
        for key in ("planned_bytes", "reserved_bytes", "peak_bytes"):
            assert account[key] >= sum(p[key] for p in account["parts"].values()) or key == "peak_bytes"
        assert account["used_bytes"] <= account["reserved_bytes"] <= account["peak_bytes"]
    assert page["reserved_bytes"] == sum(a["reserved_bytes"] for a in page["accounts"].values())
    measured = page["measured_rss_anon_bytes"] + page["measured_swap_bytes"]
    assert page["unaccounted_bytes"] == measured - page["reserved_bytes"]
    return page


def check_truth(page):
    assert abs(page["unaccounted_bytes"]) <= 32 << 20, page
    assert abs(page["measured_rss_anon_bytes"] / page["planned_bytes"] - 1) <= 0.03, page


def test_the_plan_is_true_at_start_and_at_peak(start):
    plan = planned(SMOL, "--kv-pool", "512MiB", "--memory", "4GiB")
    server = start(SMOL, "--kv-pool", "512MiB", "--memory", "4GiB")
    page = accounts_of(server)
    assert page["planned_bytes"] == plan["total_bytes"] and page["cap_bytes"] == 4 * GIB
    assert {(a, p): v["planned_bytes"] for a, x in page["accounts"].items() for p, v in x["parts"].items() if v["planned_bytes"]} == plan["of"]
    check_truth(page)
    body = {"model": server.model, "prompt": "word " * 150, "max_tokens": 16, "ignore_eos": True, "stream": True}
    pages = []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(server.stream, "/v1/completions", body | {"seed": i, "cache_salt": str(i)}) for i in range(16)]
        while not all(a.done() for a in answers):
            pages.append(accounts_of(server))
            time.sleep(0.1)
    assert all(a.result().finish_reason == "length" for a in answers)
    for page in pages:
        check_truth(page)
    assert max(p["accounts"]["kv"]["used_bytes"] for p in pages) > 16 * 150 * plan["kv_bytes_per_token"] / 2
    assert any("unwritten tail" in p["fragmentation"]["verdict"] for p in pages)
    check_truth(accounts_of(server))


if LONG_RUN:

    def test_the_plan_and_64_mib_hold_the_fullest_load(start):
        """Q15: every seat and most of the queue taken, alternatives for each token, and readers that do not read: what the server holds
        of its own never passes what a cgroup of that size would end it for (pages of files are given back under pressure)."""
        server = start(SMOL, "--kv-pool", "256MiB", "--max-seqs", "32")
        planned = accounts_of(server)["planned_bytes"]
        status = Path(f"/proc/{server.process.pid}/status")

        def held():
            return sum(int(kib) << 10 for kib in re.findall(r"^(?:RssAnon|RssShmem|VmSwap|VmPTE):\s+(\d+) kB$", status.read_text(), re.M))

        peak, is_over = held(), threading.Event()

        def watch():
            nonlocal peak
            while not is_over.wait(0.01):
                peak = max(peak, held())

        watcher = threading.Thread(target=watch)
        watcher.start()
        body = {"model": server.model, "prompt": "word " * 120, "max_tokens": 16, "ignore_eos": True, "stream": True, "logprobs": 20}
        wires = [server.wire().request("POST", "/v1/completions", body | {"cache_salt": str(i)}) for i in range(160)]
        answers = [Streamed(Events(wire)) for wire in wires]  # read one after the other: the others' events wait
        is_over.set()
        watcher.join()
        for wire in wires:
            wire.sock.close()
        assert all(answer.finish_reason == "length" for answer in answers)
        assert 0.9 * planned < peak <= planned + (64 << 20), (planned, peak)


def test_steps_follow_the_engine(start):
    server = start(TINY, "--kv-pool", "2MiB")
    assert server.get("/v1/steps").json["steps"] == []
    server.complete([5, 6, 7, 8], max_tokens=20, ignore_eos=True)
    # A step is told once it is over, and the last token leaves before that.
    eventually(lambda: server.get("/v1/steps").json["last_step"] == 20, "20 steps")
    page = server.get("/v1/steps").json
    steps = page["steps"]
    assert [s["step"] for s in steps] == list(range(1, page["last_step"] + 1)) and not page["dropped"]
    assert [s["kind"] for s in steps] == ["prefill"] + ["decode"] * 19
    assert steps[0]["prefill_tokens"] == 4 and sum(s["decode_tokens"] for s in steps) == 19
    for step in steps:
        assert sum(step["phases_us"].values()) == step["duration_us"] > 0
        assert step["weight_bytes"] > 0 and step["kv_bytes"] > 0 and step["flops"] > 0
        assert step["predicted_us"] > 0  # without --step-latency too
    assert [s["ctx_sum"] for s in steps] == [4, *range(5, 24)]
    assert server.get("/v1/steps?last=3").json["steps"] == steps[-3:]
    assert server.get(f"/v1/steps?since={steps[-2]['step']}").json["steps"] == steps[-1:]
    assert server.get("/v1/steps?since=1000000").json["dropped"]
    for query in ("since=x", "last=", "since=1&last=2", "since=1&since=2"):
        assert server.get("/v1/steps?" + query).status == 400


def test_snapshots(start, tmp_path):
    server = start(TINY, "--kv-pool", "2MiB", "--block-tokens", "16")
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert tally("snapshot", server.url, "-o", before).returncode == 0
    server.complete([(7 * i) % 900 + 3 for i in range(70)], max_tokens=1)
    assert tally("snapshot", server.url, "--out", after).returncode == 0
    done = tally("snapshot", "diff", before, after, "--json")
    assert done.returncode == 0, done.stderr
    diff = json.loads(done.stdout)
    assert diff["blocks"]["cached"] == [0, 4, 4] and diff["blocks"]["free"][2] == -4 and diff["changed_blocks"] == 4
    assert diff["accounts"]["kv"]["reserved_bytes"][2] == 0 < diff["accounts"]["kv"]["used_bytes"][2]
    people = tally("snapshot", "diff", before, after).stdout
    assert "cached" in people and "+4.0" in people
    shown = tally("snapshot", server.url)
    assert shown.returncode == 0 and "unaccounted" in shown.stdout and "pool" in shown.stdout
    refused(64, "snapshot")
    refused(64, "snapshot", "diff", before, says="two are needed")
    refused(66, "snapshot", "diff", before, tmp_path / "none.json")
    after.write_text('{"schema":1,"accounts":{"accounts":{"kv":7}}}')
    refused(65, "snapshot", "diff", before, after, says="after.json")
    refused(69, "snapshot", "http://127.0.0.1:1")
