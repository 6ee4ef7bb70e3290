"""Files that are damaged or made to do harm: one line, exit 65, little time and memory, nothing bound."""

import os
import shutil
import struct
import subprocess

import gguf
import pytest

from rig import BINARY, DEADLINE_S, ROOT, SANITIZER_REPORT, SHORT, TINY, clean_environment

U32, STRING, ARRAY = 4, 8, 9
SECONDS_MAX = 1  # of the processor: a loaded machine is no failure
KIB_MAX = 64 << 10


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def head(entries=(), tensors=(), *, version=3, n_entries=None, n_tensors=None):
    counts = (len(tensors) if n_tensors is None else n_tensors, len(entries) if n_entries is None else n_entries)
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)


def tensor(name, dims, kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def good():
    return TINY.read_bytes()


def changed(key, value):
    """The tiny model with another u32 as the value of a key."""
    data = good()
    at = data.index(text(key)) + len(text(key))
    assert struct.unpack_from("<I", data, at)[0] == U32
    return data[: at + 4] + struct.pack("<I", value) + data[at + 8 :]


def renamed(name):
    data = good()
    at = data.index(text(name)) + 8
    return data[:at] + b"X" + data[at + 1 :]


NESTED = struct.pack("<IQ", ARRAY, 1) * 100_000
MERGES = entry("tokenizer.ggml.merges", ARRAY, struct.pack("<IQ", STRING, 1) + text("a b c"))
BAD = {
    "empty": (b"", "truncated at 0"),
    "other": (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
    "version": (head(version=1) + bytes(99), "version 1"),
    "swapped": (head(version=3 << 24) + bytes(99), "big-endian"),
    "header-cut": (good()[:5000], "truncated at 5000"),
    "data-cut": (good()[:-1000], "truncated at"),
    "tensor-count": (head(n_tensors=2**64 - 1) + bytes(99), "tensor count"),
    "entry-count": (head(n_entries=2**63) + bytes(99), "metadata count"),
    "key-length": (head(n_entries=1) + struct.pack("<Q", 2**64 - 1) + bytes(99), "length"),
    "string-length": (head([text("general.name") + struct.pack("<IQ", STRING, 2**63)]) + bytes(99), "general.name"),
    "array-length": (head([entry("a", ARRAY, struct.pack("<IQ", STRING, 2**40))]) + bytes(99), "array"),
    "nested": (head([entry("a", ARRAY, NESTED)]) + bytes(99), "array of arrays"),
    "value-type": (head([entry("a", 13, b"")]) + bytes(99), "13"),
    "duplicate": (head([entry("a", U32, bytes(4))] * 2) + bytes(99), "duplicate key"),
    "alignment": (head([entry("general.alignment", U32, struct.pack("<I", 3))]) + bytes(99), "general.alignment"),
    "dims": (head(tensors=[tensor("w", (2**63 - 1, 2))]) + bytes(99), "'w'"),
    "product": (head(tensors=[tensor("w", (2**32, 2**32))]) + bytes(99), "'w'"),
    "extent": (head(tensors=[tensor("w", (2**30, 2**10))]) + bytes(99), "'w'"),
    "tensor-type": (head(tensors=[tensor("w", (32,), 2**31 - 1)]) + bytes(99), "'w'"),
    "no-architecture": (renamed("general.architecture"), "general.architecture"),
    "architecture": (good().replace(text("llama"), text("mamba"), 1), "mamba: supported are"),
    "block-count": (changed("llama.block_count", 0), "llama.block_count"),
    "block-count-2": (changed("llama.block_count", 2**31), "llama.block_count"),
    "block-count-3": (changed("llama.block_count", 1000), "is missing"),
    "heads": (changed("llama.attention.head_count", 0), "llama.attention.head_count"),
    "heads-2": (changed("llama.attention.head_count_kv", 7), "llama.attention.head_count_kv"),
    "context": (changed("llama.context_length", 0), "llama.context_length"),
    "rope": (changed("llama.rope.dimension_count", 3), "llama.rope.dimension_count"),
    "embedding": (changed("llama.embedding_length", 0), "llama.embedding_length"),
    "tensor-lost": (renamed("blk.1.ffn_down.weight"), "blk.1.ffn_down.weight"),
    "embedding-lost": (renamed("token_embd.weight"), "token_embd.weight"),
}


def run(*arguments):
    """The exit code, both outputs, and what the process used: (code, stdout, stderr, processor seconds, peak KiB)."""
    child = subprocess.Popen(
        [str(BINARY), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env=clean_environment(),
    )  # fmt: skip
    out, err = child.stdout.read(), child.stderr.read()  # a line each: no pipe fills
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close(), child.stderr.close()
    assert not SANITIZER_REPORT.search(err.decode()), err
    return child.returncode, out.decode(), err.decode(), used.ru_utime + used.ru_stime, used.ru_maxrss


@pytest.fixture(scope="module")
def start_kib(tmp_path_factory):
    """The peak of a process that found no file."""
    code, _, _, _, kib = run("serve", tmp_path_factory.mktemp("none") / "missing.gguf", "--port", "0")
    assert code == 66
    return kib


@pytest.mark.parametrize("name", BAD)
def test_refused(name, tmp_path, start_kib):
    data, says = BAD[name]
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(data)
    code, out, err, seconds, kib = run("serve", path, "--port", "0")
    assert (code, out) == (65, ""), (code, out, err)
    assert err.startswith("tally: ") and err.count("\n") == 1 and says in err and "\x1b" not in err, err
    if not SHORT:
        assert seconds < SECONDS_MAX and kib < start_kib + KIB_MAX, (seconds, kib, start_kib)
    code, _, err, _, _ = run("inspect", path)  # what it can show, it may
    assert code == 65 and err.count("\n") == 1 and says in err, (code, err)


def test_a_header_full_of_tokens_is_bounded(tmp_path, start_kib):
    """Two million empty strings, and nothing else."""
    count = 2_000_000
    tokens = entry("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, count) + bytes(8 * count))
    path = tmp_path / "tokens.gguf"
    path.write_bytes(head([entry("general.architecture", STRING, text("llama")), tokens]))
    code, out, err, _, kib = run("serve", path, "--port", "0")
    assert (code, out) == (65, "") and err.count("\n") == 1, err
    if not SHORT:
        assert kib < start_kib + 5 * (path.stat().st_size >> 10) + KIB_MAX


def test_g26_what_happens_to_the_file_while_serving_changes_nothing(start, tmp_path):
    path = tmp_path / TINY.name
    shutil.copy(TINY, path)
    server = start(path)
    before = server.complete([5, 6, 7], max_tokens=8, temperature=0)["choices"]
    with open(path, "r+b") as file:
        file.truncate(100)
    assert server.complete([5, 6, 7], max_tokens=8, temperature=0)["choices"] == before
    (tmp_path / "new").write_bytes(b"something else")
    os.replace(tmp_path / "new", path)
    assert server.complete([5, 6, 7], max_tokens=8, temperature=0)["choices"] == before


def untied():
    """The tiny model with its embedding once more as the output matrix, and where the embedding lies in the file."""
    data, reader = good(), gguf.GGUFReader(TINY)
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    start = int(reader.data_offset)
    end = max(int(t.data_offset) + t.n_bytes for t in reader.tensors)
    body = data[start:end] + bytes(-(end - start) % 32)
    matrix = data[int(embedding.data_offset) :][: embedding.n_bytes]
    # The records end before the padding, which begins after the last of them: eight bytes of an offset.
    last = max(reader.tensors, key=lambda t: t.field.offset)
    records_end = last.field.offset + sum(int(part.nbytes) for part in last.field.parts)
    record = tensor("output.weight", [int(n) for n in embedding.shape], int(embedding.tensor_type), len(body))
    header = bytearray(data[:records_end] + record)
    struct.pack_into("<Q", header, 8, len(reader.tensors) + 1)
    header += bytes(-len(header) % 32)
    return bytes(header) + body + matrix, len(header) + int(embedding.data_offset) - start, embedding


def test_g24_a_number_that_is_none_fails_the_request_that_meets_it(start, tmp_path):
    data, at, embedding = untied()
    poisoned = 9
    row_bytes = embedding.n_bytes // int(embedding.shape[1])
    path, sound_path = tmp_path / "nan.gguf", tmp_path / "sound.gguf"
    sound_path.write_bytes(data)
    broken = bytearray(data)
    assert embedding.tensor_type == gguf.GGMLQuantizationType.Q6_K and row_bytes == 210
    struct.pack_into("<H", broken, at + poisoned * row_bytes + 208, 0x7E00)  # the scale of a block: NaN
    path.write_bytes(broken)
    server, sound = start(path), start(sound_path)
    ask = {"max_tokens": 4, "temperature": 0, "logit_bias": {str(poisoned): -100}}
    golden = sound.complete([5, 6, 7], **ask)["choices"][0]["text"]
    for _ in range(2):
        reply = server.post("/v1/completions", {"model": server.model, "prompt": [5, poisoned, 7], **ask})
        assert reply.status == 500 and reply.error["code"] == "non_finite_logits", reply
        assert server.complete([5, 6, 7], **ask)["choices"][0]["text"] == golden
    server.at_rest()
