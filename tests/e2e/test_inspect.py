"""tally inspect: what people and programs are told of a model file, also of one that cannot be served."""

import json
import lzma
import os
import time

import pytest

from gguf_file import ARRAY, F32, STRING, U32, GgufFile
from rig import ROOT, SHORT, TINY, tally
from test_cli import count, refused

ARCH = sorted((ROOT / "tests/golden/arch").glob("*.gguf"))
TINY_FILES = sorted((ROOT / "tests/golden/tiny").glob("*.gguf"))
VOCAB = sorted((ROOT / "tests/golden/vocab").glob("*.gguf.xz"))
KEYS = {
    "architecture", "name", "parameters", "context_length", "file", "spec", "metadata", "tensors", "types", "tokenizer", "template",
    "template_error", "chat", "kernels", "memory", "odd", "refused", "unused_tensors",
}  # fmt: skip
BLOCK = 64  # tokens
FAST_S = 20 if SHORT else 5  # one second is promised; a loaded machine is no failure


def page_of(path, *flags, code=0):
    done = tally("inspect", path, "--json", *flags)
    assert done.returncode == code, (path, done.returncode, done.stderr)
    assert done.stderr.count("\n") == (0 if code == 0 else 1) and done.stdout.count("\n") == 1 and done.stdout.isascii()
    page = json.loads(done.stdout)
    assert set(page) == KEYS and (page["refused"] is None) == (code == 0)
    return page


def people_of(path, *flags, code=0):
    done = tally("inspect", path, *flags)
    assert done.returncode == code, (path, done.returncode, done.stderr)
    assert "\x1b" not in done.stdout and not any(ord(c) < 32 and c != "\n" for c in done.stdout)
    return done.stdout


def check_against_file(page, file):
    """Everything that Python can read for itself."""
    assert page["architecture"] == file.meta["general.architecture"][1].decode()
    assert [(t["name"], t["shape"]) for t in page["tensors"]] == [(t[0], t[1]) for t in file.tensors]
    assert [t["bytes"] for t in page["tensors"]] == [len(t[3]) for t in file.tensors]
    assert page["parameters"] == sum(count(t[1]) for t in file.tensors)
    assert sum(t["bytes"] for t in page["types"].values()) == sum(len(t[3]) for t in file.tensors)
    assert sum(t["tensors"] for t in page["types"].values()) == len(file.tensors)
    assert set(page["metadata"]) == set(file.meta)
    for key, (kind, value) in file.meta.items():
        if kind == ARRAY:
            assert page["metadata"][key] == {"element_type": value[0], "entries": len(value[1])}
        elif kind not in (STRING, F32):
            assert page["metadata"][key] == value


def test_the_files_of_the_tests_are_put_together_as_they_were(tmp_path):
    for path in (ARCH[0], *TINY_FILES):
        assert GgufFile(path).write(tmp_path / "again.gguf").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", [*ARCH, *TINY_FILES], ids=lambda p: p.stem)
def test_every_architecture(path):
    file = GgufFile(path)
    page = page_of(path)
    check_against_file(page, file)
    spec, a = page["spec"], page["architecture"]
    assert spec["layers"] == file.meta[f"{a}.block_count"][1] and page["context_length"] == file.meta[f"{a}.context_length"][1]
    assert spec["embedding"] == file.meta[f"{a}.embedding_length"][1] and spec["vocabulary"] == page["tokenizer"]["vocabulary"]
    assert sorted(i for group in spec["layer_groups"] for i in group["layers"]) == list(range(spec["layers"]))
    assert spec["tied_output"] == all(t[0] != "output.weight" for t in file.tensors)
    # KV: every layer, KV head and codec, with scales, and padding to 16 columns, to 32 where there are nibbles: 32 columns
    # of these share four bytes of step and low. All layers of these files are alike.
    k, v = ((spec[dim] + 15) // 16 * 16 for dim in ("key_dim", "value_dim"))
    wide_k, wide_v = ((spec[dim] + 31) // 32 * 32 for dim in ("key_dim", "value_dim"))
    per_head = {"f32": 4 * (k + v), "bf16": 2 * (k + v), "int8": k + 4 + v + 4, "k8v4": wide_k + 4 + wide_v * 5 // 8, "int4": (wide_k + wide_v) * 5 // 8}
    heads = spec["layers"] * spec["kv_heads"]
    assert page["memory"]["kv_bytes_per_token"] == {codec: heads * size for codec, size in per_head.items()}
    blocks = -(-page["context_length"] // BLOCK)
    for codec, size in page["memory"]["kv_bytes_at_context"].items():
        assert size == blocks * BLOCK * page["memory"]["kv_bytes_per_token"][codec]
    assert page["memory"]["weights_bytes"] > sum(t["bytes"] for t in page["tensors"]) // 2
    matrices = {t["type"] for t in page["tensors"] if len(t["shape"]) > 1}
    families = page["kernels"]["families"]
    assert {f"linear {kind}" for kind in matrices} <= set(families) and "none" not in families.values()
    people = people_of(path)
    for line in [*spec["words"], *(group["words"] for group in spec["layer_groups"]), *page["odd"]]:
        assert line in people
    for part in ("spec", "tensors by type", "tokenizer", "chat template", "kernels", "memory", "odd about this file", "metadata"):
        assert f"\n{part}" in people, part
    assert file.tensors[0][0] not in people and file.tensors[0][0] in people_of(path, "--tensors")


def words_of(stem):
    page = page_of(ROOT / f"tests/golden/arch/{stem}.gguf")
    return "\n".join([*page["spec"]["words"], *(group["words"] for group in page["spec"]["layer_groups"])])


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        ("llama_gqa", ("grouped-query", "RMSNorm", "before attention and FFN", "SwiGLU", "rope NORM")),
        ("llama_mha_tied", ("multi-head", "the token embedding (tied)")),
        ("llama_linear", ("positions / ",)),
        ("llama_yarn", ("YaRN x ", "magnitude")),
        ("llama_rope3", ("divisor from rope_freqs",)),
        ("llama_bias", ("q, k and v have biases",)),
        ("phi3_longrope", ("(longrope)",)),
        ("mixtral", ("experts of", "a token (softmax")),
        ("qwen2moe", ("a shared expert of",)),
        ("gemma2", ("soft-capped at", "(sandwich)", "GeGLU", "window of", "sees everything", "embedding x")),
        ("cohere", ("side by side", "LayerNorm", "logits x")),
        ("falcon7b", ("multi-query", "share one KV head")),
        ("bloom", ("ALiBi", "no rope", "one more on the token's embedding")),
        ("gpt2", ("positions: learned", "GELU", "no gate")),
        ("olmo2", ("behind attention and FFN", "q and k are normalised")),
        ("gptoss", ("with sinks", "clamped SwiGLU")),
        ("deepseek2", ("latent",)),
    ],
)
def test_spec_in_words(stem, words):
    said = words_of(stem)
    for word in words:
        assert word in said, (word, said)


def test_tools_and_thoughts_of_the_template(tmp_path):
    def chat_of(name):
        source = (ROOT / f"tests/golden/templates/{name}.jinja").read_text()
        path = GgufFile(TINY).set("tokenizer.chat_template", STRING, source).write(tmp_path / "model.gguf")
        return page_of(path)["chat"], people_of(path)

    page, people = chat_of("Qwen-Qwen3-0.6B")
    assert page == {"shows_tools": True, "tool_format": "hermes", "thoughts": ["<think>", "</think>"]}
    assert "calls as hermes" in people and "between <think> and </think>" in people
    page, people = chat_of("GLM-4.6")
    assert page == {"shows_tools": True, "tool_format": "none", "thoughts": ["<think>", "</think>"]}
    assert "calls in a way that is not read" in people
    page, people = chat_of("SmolLM2-135M-Instruct")
    assert page == {"shows_tools": False, "tool_format": "none", "thoughts": None} and "not shown to the model" in people


@pytest.mark.skipif(SHORT, reason="big vocabularies")
@pytest.mark.parametrize(
    ("name", "template", "odd"),
    [
        ("smollm2-135m-instruct-q4_1", "can be rendered", ["the vocabulary has no piece for 8 bytes: 04 06 13 14 16 1D F1 F2; text with them gives the unknown token"]),
        ("gemma3-270m-q4_k_m", "none", ["no chat template: chats need --chat-template"]),
    ],
)
def test_downloaded_models(name, template, odd):
    path = ROOT / f"models/{name}.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    page = page_of(path)
    assert page["odd"] == odd and page["template_error"] is None and (page["template"] is None) == (template == "none")
    assert page["tokenizer"]["eog"] and "eos" in page["tokenizer"]["special"]
    assert page["memory"]["weights_bytes"] >= sum(t["bytes"] for t in page["tensors"] if len(t["shape"]) > 1)
    people = people_of(path)
    assert template in people[people.index("\nchat template") :].splitlines()[2 if template == "none" else 3], people


@pytest.mark.skipif(SHORT, reason="big vocabularies")
@pytest.mark.parametrize("packed", VOCAB, ids=lambda p: p.name)
def test_vocabulary_only(tmp_path, packed):
    path = tmp_path / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    page = page_of(path)
    assert page["tensors"] == [] and page["types"] == {} and page["parameters"] == 0 and page["spec"] is None
    assert page["tokenizer"]["vocabulary"] == page["metadata"]["tokenizer.ggml.tokens"]["entries"]
    assert page["memory"]["weights_bytes"] is None and any("vocabulary without weights" in line for line in page["odd"])
    assert "vocabulary without weights" in people_of(path)


def split(folder, source, parts):
    """`source` as split files: (the first, all)."""
    file = GgufFile(source)
    paths = []
    for part in range(parts):
        piece = GgufFile()
        piece.meta = dict(file.meta) if part == 0 else {}
        piece.set("split.no", 2, part).set("split.count", 2, parts).set("split.tensors.count", 5, len(file.tensors))
        piece.tensors = file.tensors[part::parts]
        paths.append(piece.write(folder / f"model-{part + 1:05}-of-{parts:05}.gguf"))
    return paths


def test_split_files(tmp_path):
    first, second, third = split(tmp_path, TINY, 3)
    page, whole = page_of(first), page_of(TINY)
    assert {t["shard"] for t in page["tensors"]} == {0, 1, 2} and page["file"]["shards"] == 3
    assert {t["name"] for t in page["tensors"]} == {t["name"] for t in whole["tensors"]}
    assert all(page[key] == whole[key] for key in ("parameters", "types", "spec", "tokenizer", "memory", "kernels"))
    assert page["file"]["bytes"] == sum(p.stat().st_size for p in (first, second, third))
    assert any("split over 3 files" in line for line in page["odd"])
    third.unlink()
    refused(66, "inspect", first, says="00003-of-00003")


def odd_of(folder, change, source=TINY):
    file = GgufFile(source)
    change(file)
    return page_of(file.write(folder / "odd.gguf"))["odd"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.drop("tokenizer.ggml.pre"), "tokenizer.ggml.pre is missing"),
        (lambda f: f.drop("tokenizer.chat_template"), "no chat template"),
        (lambda f: f.drop("tokenizer.ggml.eos_token_id"), "tokenizer.ggml.eos_token_id is missing"),
        (lambda f: f.set("general.file_type", U32, 15), "general.file_type says 15 (Q4_K_M), but no matrix is Q4_K"),
        (lambda f: f.set("general.alignment", U32, 64), "general.alignment is 64"),
        (lambda f: setattr(f, "version", 2), "GGUF version 2"),
        (lambda f: f.set("llama.context_length", U32, 131072), "context 131072 with rope base 10000 and no scaling"),
        (lambda f: f.set("llama.rope.scaling.original_context_length", U32, 512), "trained for 512, and no rope scaling"),
        (lambda f: f.set("llama.vocab_size", U32, 1000), "llama.vocab_size is 1000, the tokenizer has 1024 pieces"),
        (lambda f: f.set("qwen2.block_count", U32, 2), "has keys of qwen2"),
        (lambda f: f.set("tokenizer.chat_template", STRING, "a\n{% include 'x' %}"), "line 2 column 4: statement 'include'"),
        (lambda f: f.set("tokenizer.ggml.suppress_tokens", ARRAY, (5, [7, 8])), "2 tokens are never sampled"),
    ],
)
def test_what_is_odd(tmp_path, change, says):
    odd = odd_of(tmp_path, change)
    assert [line for line in odd if says in line], odd
    assert "\n  " + next(line for line in odd if says in line) in people_of(tmp_path / "odd.gguf")


def test_nothing_odd_about_a_good_file(tmp_path):
    good = ROOT / "tests/golden/arch/llama_gqa.gguf"
    assert odd_of(tmp_path, lambda f: f.set("tokenizer.chat_template", STRING, "{{ messages }}"), good) == []
    assert "odd about this file\n  nothing\n" in people_of(tmp_path / "odd.gguf")


def test_tensors_that_nothing_reads_are_odd(tmp_path):
    names = [f"mystery.{i}.weight" for i in range(5)]

    def change(file):
        for name in names:
            file.add(name, [32])

    odd = odd_of(tmp_path, change)
    assert any(line == f"5 tensors are read by nothing: {', '.join(names[:4])}, ..." for line in odd), odd
    assert page_of(tmp_path / "odd.gguf")["unused_tensors"] == names


def test_bytes_behind_the_last_tensor_are_odd(tmp_path):
    path = tmp_path / "long.gguf"
    path.write_bytes(TINY.read_bytes() + bytes(10_000))
    assert any("behind the last tensor" in line for line in page_of(path)["odd"])


def test_bytes_that_no_piece_stands_for_are_odd(tmp_path):
    def change(file):
        inner, pieces = file.meta["tokenizer.ggml.tokens"][1]
        file.set("tokenizer.ggml.tokens", ARRAY, (inner, [b"<gone>" if piece == b"!" else piece for piece in pieces]))
        merges = file.meta["tokenizer.ggml.merges"][1][1]
        file.set("tokenizer.ggml.merges", ARRAY, (STRING, [m for m in merges if b"!" not in m]))

    gaps = "the vocabulary has no piece for {} bytes: {}; text with them gives the unknown token"
    assert page_of(TINY)["odd"] == [gaps.format(8, "04 06 13 14 16 1D F1 F2")]
    assert odd_of(tmp_path, change) == [gaps.format(9, "04 06 13 14 16 1D 21 F1 ...")]


def test_an_unknown_architecture_is_shown_as_far_as_it_goes(tmp_path):
    file = GgufFile(TINY).set("general.architecture", STRING, "mamba9")
    path = file.write(tmp_path / "mamba.gguf")
    page = page_of(path, code=65)
    check_against_file(page, file)
    assert page["architecture"] == "mamba9" and page["spec"] is None and page["tokenizer"]["vocabulary"] == 1024
    assert "mamba9" in page["refused"] and "llama" in page["refused"]
    done = tally("inspect", path)
    assert done.returncode == 65 and "tokenizer\n  gpt2" in done.stdout and "tensors by type" in done.stdout
    assert done.stderr == f"tally: {page['refused']}\n"
    refused(65, "serve", path, "--port", "0", says=("mamba9", "llama"))


def test_a_weight_type_without_kernels_is_shown_and_refused(tmp_path):
    file = GgufFile(TINY)
    name, dims, _, _ = tensor = file.tensor("blk.0.attn_q.weight")
    tensor[2], tensor[3] = 24, bytes(count(dims))
    page = page_of(file.write(tmp_path / "i8.gguf"), code=65)
    assert page["kernels"]["families"]["linear I8"] == "none" and name in page["refused"] and page["spec"] is not None
    assert page["types"]["I8"]["bits_per_weight"] == 8 and page["memory"]["weights_bytes"] is None
    assert "(this weight type is not supported)" in tally("inspect", tmp_path / "i8.gguf").stdout


def test_a_weight_type_of_no_known_layout_is_named(tmp_path):
    """Where the tensors end cannot be checked, so nothing of such a file is trusted."""
    file = GgufFile(TINY)
    tensor = file.tensor("blk.0.ffn_up.weight")
    tensor[2], tensor[3] = 16, bytes(count(tensor[1]) // 256 * 66)
    refused(65, "inspect", file.write(tmp_path / "iq2.gguf"), says=("blk.0.ffn_up.weight", "IQ2_XXS"))


def test_a_tokenizer_that_is_not_supported_is_named(tmp_path):
    page = page_of(GgufFile(TINY).set("tokenizer.ggml.model", STRING, "bert").write(tmp_path / "bert.gguf"), code=65)
    assert page["tokenizer"] is None and "bert" in page["refused"] and page["spec"] is not None


# ---- Hostile files through the real binary: one line, exit code 65, at once ---------------------------------------------------


def refused_at_once(path, says, commands=("serve", "run")):
    for command in commands:
        begun = time.monotonic()
        more = {"serve": ("--port", "0"), "run": ("hello",), "inspect": ()}[command]
        refused(65, command, path, *more, says=says)
        assert time.monotonic() - begun < FAST_S
    done = tally("inspect", path)
    assert done.returncode == 65 and done.stderr.count("\n") == 1
    for part in (says,) if isinstance(says, str) else says:
        assert part in done.stderr, done.stderr


def test_g22_embedding_and_vocabulary_differ(tmp_path):
    file = GgufFile(TINY)
    embedding = file.tensor("token_embd.weight")
    embedding[1], embedding[3] = [256, 1000], embedding[3][: 1000 * 210]
    refused_at_once(file.write(tmp_path / "rows.gguf"), ("1024", "1000"))


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_down.weight"])
def test_g22_a_tensor_is_missing(tmp_path, name):
    file = GgufFile(TINY)
    file.tensors.remove(file.tensor(name))
    refused_at_once(file.write(tmp_path / "missing.gguf"), name)


def test_g22_the_output_has_other_rows(tmp_path):
    refused_at_once(GgufFile(TINY).add("output.weight", [256, 1000]).write(tmp_path / "output.gguf"), "output.weight")


@pytest.mark.parametrize(("key", "value"), [("split.count", 65000), ("split.no", 7), ("split.count", 0)])
def test_g23_split_numbers_that_are_wrong(tmp_path, key, value):
    first, *_ = split(tmp_path, TINY, 3)
    path = GgufFile(first).set(key, 2, value).write(first)
    code = tally("inspect", path).returncode
    if (key, value) == ("split.count", 0):
        assert code in (0, 65)
        return
    for command in ("serve", "run", "inspect"):
        refused(65, command, path, *(("--port", "0") if command == "serve" else ()), says=key)


def test_g23_a_shard_is_missing_or_of_another_model(tmp_path):
    first, second, _ = split(tmp_path, TINY, 3)
    kept = second.read_bytes()
    second.unlink()
    for command in ("serve", "run", "inspect"):
        refused(66, command, first, says="model-00002-of-00003.gguf")
    second.write_bytes(TINY.read_bytes())
    refused(65, "inspect", first, says="model-00002-of-00003.gguf")
    second.unlink()
    (tmp_path / "elsewhere.gguf").write_bytes(kept)
    os.symlink(tmp_path / "elsewhere.gguf", second)
    for command in ("serve", "run", "inspect"):
        assert "symbolic link" in refused(66, command, first)


HOSTILE_NAME = "<script>alert(1)</script>\x1b[31mred\x07\r\nforged: line\u009b" + "x" * (1 << 20)


def test_g28_names_are_escaped_and_cut(tmp_path, start):
    file = GgufFile(TINY).set("general.name", STRING, HOSTILE_NAME).set("general.license", STRING, HOSTILE_NAME)
    path = file.write(tmp_path / "name.gguf")
    people = people_of(path)
    assert len(people) < 100_000 and "\\x1b[31mred\\x07\\x0d\\x0aforged" in people and "forged: line" not in people.splitlines()
    assert "\u009b" not in people
    page = page_of(path)
    assert len(json.dumps(page)) < 200_000 and len(page["name"]) < 200 and "\x1b" not in page["name"]
    assert len(page["metadata"]["general.license"]) < 2000
    server = start(path, "--kv-pool", "16MiB")
    assert all("\x1b" not in line and len(line) < 2000 for line in server.stderr_lines)
    for route in ("/v1/models", "/version", "/metrics", "/"):
        reply = server.get(route)
        assert b"\x1b" not in reply.body and b"<script>alert(1)" not in reply.body, route


def test_g28_hostile_keys_tokens_and_template(tmp_path):
    file = GgufFile(TINY)
    inner, pieces = file.meta["tokenizer.ggml.tokens"][1]
    file.set("tokenizer.ggml.tokens", ARRAY, (inner, [*pieces[:2], b"\x1b[2J<b>\xff" * 1000, *pieces[3:]]))
    file.set("tokenizer.chat_template", STRING, "\x1b]0;title\x07" + "{{ x }}" * 10)
    path = file.write(tmp_path / "tokens.gguf")
    people = people_of(path)
    assert "\\x1b[2J<b>\\xff" in people and "\\x1b]0;title\\x07" in people and max(map(len, people.splitlines())) < 1000
    page = page_of(path)
    assert [token["id"] for token in page["tokenizer"]["eog"]] == [0, 2] and page["template"].startswith("\x1b]0;")


@pytest.mark.parametrize("pieces", [0, 1])
def test_g29_a_tiny_vocabulary(tmp_path, pieces):
    file = GgufFile(TINY).drop(*(f"tokenizer.ggml.{role}_token_id" for role in ("bos", "eos", "unknown", "padding")))
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        inner, values = file.meta[key][1]
        file.set(key, ARRAY, (inner, values[:pieces]))
    file.set("tokenizer.ggml.merges", ARRAY, (STRING, []))
    refused_at_once(file.write(tmp_path / "tiny.gguf"), "tokenizer.ggml.token")
    # The vocabulary by itself.
    file.tensors = []
    done = tally("tokenize", file.write(tmp_path / "alone.gguf"), "hello")
    assert done.returncode == 65 and done.stderr.splitlines()[-1].startswith("tally: ")


@pytest.mark.skipif(SHORT, reason="takes long with a sanitizer")
def test_g29_ten_million_pieces(tmp_path):
    file = GgufFile(TINY)
    file.tensors = []
    file.set("tokenizer.ggml.tokens", ARRAY, (STRING, []))
    path = file.write(tmp_path / "huge.gguf")
    data = path.read_bytes()
    pieces = 10_000_000
    mark = b"tokenizer.ggml.tokens" + (9).to_bytes(4, "little") + (8).to_bytes(4, "little")
    begin = data.index(mark) + len(mark)
    many = (b"\x01" + bytes(7) + b"a") * pieces
    path.write_bytes(data[:begin] + pieces.to_bytes(8, "little") + many + data[begin + 8 :])
    begun = time.monotonic()
    done = tally("tokenize", path, "hello")
    assert done.returncode == 65 and done.stderr.count("\n") == 1 and "tokenizer.ggml.tokens" in done.stderr
    assert time.monotonic() - begun < 10 * FAST_S
