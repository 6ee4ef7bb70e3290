"""tally quantize: every type, read back by the gguf Python package, and every way it can fail, which must leave nothing behind."""

import json
import os
import resource
import signal
import subprocess
import time

import gguf
import numpy as np
import pytest

from rig import BINARY, DEADLINE_S, ROOT, SMOL, TINY, clean_environment, tally
from test_cli import bad_models, refused

TINY_F32 = ROOT / "tests/golden/tiny/tiny-f32.gguf"
SOURCES = [TINY_F32, *(ROOT / "tests/golden/arch" / name for name in ("llama_gqa.gguf", "gemma3.gguf"))]
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17,
    "Q6_K": 18, "BF16": 32,
}  # fmt: skip
# Largest relative error (RMS) of a tensor of normal values.
ERRORS = {"F32": 0, "F16": 3e-4, "BF16": 2e-3, "Q8_0": 0.008, "Q6_K": 0.02, "Q5_K": 0.05, "Q5_1": 0.045, "Q5_0": 0.055, "Q4_K": 0.09, "Q4_1": 0.09, "Q4_0": 0.11}
# Those that the gguf package can write too.
SAME_BYTES = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"}
QUANTUM = {"general.file_type", "general.quantization_version"}


def quantize(source, out, kind, *flags):
    done = tally("quantize", source, out, kind, "--threads", "2", *flags)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def fields(reader):
    """Metadata as stored: key -> (types, bytes of every part)."""
    own = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")
    return {k: (f.types, [p.tobytes() for p in f.parts[2:]]) for k, f in reader.fields.items() if k not in own}


def values(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def source_files():
    return [(source, kind) for source in SOURCES for kind in FILE_TYPES]


@pytest.mark.parametrize(("source", "kind"), source_files(), ids=lambda v: getattr(v, "stem", v))
def test_read_back(tmp_path, source, kind):
    out, again = tmp_path / "out.gguf", tmp_path / "f32.gguf"
    report = json.loads(quantize(source, out, kind.lower(), "--json"))
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(out)
    was, now = fields(before), fields(after)
    assert {k: v for k, v in was.items() if k not in QUANTUM} == {k: v for k, v in now.items() if k not in QUANTUM}
    assert [k for k in now if k in was] == list(was)
    assert after.fields["general.file_type"].contents() == FILE_TYPES[kind] and after.fields["general.quantization_version"].contents() == 2
    assert [(t.name, list(t.shape)) for t in after.tensors] == [(t.name, list(t.shape)) for t in before.tensors]
    assert [(t.name, t.tensor_type.name) for t in after.tensors] == [(t["name"], t["to"]) for t in report["tensors"]]
    assert report["bytes_after"] == out.stat().st_size and sorted(os.listdir(tmp_path)) == ["out.gguf"]

    quantize(out, again, "F32", "--allow-requantize")
    ours = {t.name: values(t) for t in gguf.GGUFReader(again).tensors}
    for old, new in zip(before.tensors, after.tensors):
        x, y = values(old), values(new)
        assert np.array_equal(ours[new.name], y), new.name
        error = np.sqrt(np.sum((x - y) ** 2.0) / np.sum(x**2.0))
        assert error <= ERRORS[new.tensor_type.name], (new.name, new.tensor_type.name, error)
        if old.shape.size < 2 or "norm" in new.name:
            assert new.tensor_type.name == "F32"
        if new.tensor_type.name in SAME_BYTES:
            assert np.array_equal(new.data, gguf.quants.quantize(x, new.tensor_type)), (new.name, new.tensor_type.name)


def made(path, tensors, alignment=None):
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    for name, data, kind in tensors:
        raw = gguf.quants.quantize(data, kind) if kind not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16) else data
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_experts_routers_and_odd_rows(tmp_path):
    random = np.random.default_rng(3)
    kinds = gguf.GGMLQuantizationType

    def normal(*shape):
        return random.normal(0, 0.1, shape).astype(np.float32)

    source = made(
        tmp_path / "moe.gguf",
        [
            ("blk.0.ffn_gate_exps.weight", normal(4, 96, 256), kinds.BF16), ("blk.0.ffn_gate_inp.weight", normal(4, 256), kinds.F32),
            ("blk.0.attn_norm.weight", normal(256).astype(np.float16), kinds.F16), ("blk.0.attn_q.weight", normal(8, 96), kinds.F32),
            ("blk.0.attn_k.weight", normal(8, 100), kinds.F32), ("position_embd.weight", normal(16, 256), kinds.F32),
            ("output.weight", normal(300, 256).astype(np.float16), kinds.F16), ("blk.0.attn_q.bias", normal(8), kinds.F32),
        ],
        alignment=128,
    )  # fmt: skip
    quantize(source, tmp_path / "out.gguf", "Q4_K_M")
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "out.gguf")
    types = {t.name: t.tensor_type.name for t in after.tensors}
    assert types == {
        "blk.0.ffn_gate_exps.weight": "Q4_K", "blk.0.ffn_gate_inp.weight": "F32", "blk.0.attn_norm.weight": "F32", "blk.0.attn_q.weight": "Q5_0",
        "blk.0.attn_k.weight": "F16", "position_embd.weight": "F32", "output.weight": "Q6_K", "blk.0.attn_q.bias": "F32",
    }  # fmt: skip
    assert after.alignment == 128 and all(t.data_offset % 128 == 0 for t in after.tensors)
    for old, new in zip(before.tensors, after.tensors):
        x, y = values(old), values(new)
        assert x.shape == y.shape and np.sqrt(np.sum((x - y) ** 2.0) / np.sum(x**2.0)) <= ERRORS[new.tensor_type.name]
        if new.tensor_type.name == "F32":
            assert np.array_equal(x.astype(np.float32), y)


@pytest.mark.sanitizer
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M", "F16"])
def test_result_runs(tmp_path, kind):
    out = tmp_path / "out.gguf"
    report = json.loads(quantize(TINY, out, kind, "--allow-requantize", "--check", "--json"))
    check = report["check"]
    assert check["prompt"] == "text" and check["positions"] > 50
    assert 0 <= check["mean_kld"] < 0.2 and 0.7 < check["top1_agreement"] <= 1, check
    for tensor in report["tensors"]:
        assert (tensor["relative_rms"] == 0) == (tensor["from"] == tensor["to"]) or tensor["relative_rms"] < 0.1, tensor
    page = json.loads(tally("inspect", out, "--json").stdout)
    assert {t["name"]: t["type"] for t in page["tensors"]} == {t["name"]: t["to"] for t in report["tensors"]}
    done = tally("run", out, "--raw", "The sea", "--max-tokens", "4", "--kv-pool", "16MiB", "--threads", "1")
    assert done.returncode == 0, done.stderr


def test_check_is_about_the_loss(tmp_path):
    """More bits, less divergence; without loss hardly any."""
    divergence = {}
    for kind in ("F32", "Q8_0", "Q4_0"):
        report = json.loads(quantize(TINY_F32, tmp_path / "out.gguf", kind, "--check", "--json"))
        divergence[kind] = report["check"]["mean_kld"]
    assert divergence["F32"] < 1e-6 < divergence["Q8_0"] < divergence["Q4_0"], divergence
    text = quantize(TINY_F32, tmp_path / "out.gguf", "Q4_0", "--check")
    assert all(part in text for part in ("bits per weight", "mean KLD", "best token agrees", "blk.0.attn_q.weight")), text


def test_usage(tmp_path):
    out = tmp_path / "out.gguf"
    refused(64, "quantize", TINY_F32, out, "Q9_0", says=("Q9_0", *FILE_TYPES))
    refused(64, "quantize", TINY_F32, out, says=("2 arguments", "IN.gguf OUT.gguf TYPE"))
    refused(64, "quantize", TINY_F32, out, "Q4_0", "more", says="4 arguments")
    refused(64, "quantize", TINY_F32, out, "Q4_0", "--alow-requantize", says="--allow-requantize")
    refused(65, "quantize", TINY, out, "Q8_0", says=("tensor 'token_embd.weight'", "Q6_K", "--allow-requantize"))
    refused(78, "quantize", TINY_F32, TINY_F32, "Q4_0", says=(str(TINY_F32), "input"))
    assert os.listdir(tmp_path) == []


def test_bad_input(tmp_path):
    (tmp_path / "out").mkdir()
    for path, code, says in bad_models(tmp_path):
        refused(code, "quantize", path, tmp_path / "out/m.gguf", "Q8_0", says=(str(path), says))
    assert os.listdir(tmp_path / "out") == []


def test_bad_output(tmp_path):
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "none/m.gguf", tmp_path / "folder", "/dev/null", "/proc/m.gguf", tmp_path / ("x" * 300)):
        refused(74, "quantize", TINY_F32, out, "Q8_0", says=str(out)[:40])
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == []


@pytest.mark.parametrize(("value", "kind", "says"), [("nan", "Q4_K_M", "not a finite number"), ("inf", "F16", "not a finite number"), ("1e9", "F16", "beyond what F16")])
def test_bad_values(tmp_path, value, kind, says):
    data = np.full((40, 256), 0.5, np.float32)
    data[33, 7] = float(value)
    source = made(tmp_path / "bad.gguf", [("blk.0.attn_q.weight", data, gguf.GGMLQuantizationType.F32)])
    refused(65, "quantize", source, tmp_path / "out.gguf", kind, says=("blk.0.attn_q.weight", "row 33 column 7", says))
    assert os.listdir(tmp_path) == ["bad.gguf"]


def test_full_disk_keeps_what_was_there(tmp_path):
    out = tmp_path / "out.gguf"
    out.write_text("before")
    done = subprocess.run(
        [str(BINARY), "quantize", str(TINY_F32), str(out), "Q8_0", "--threads", "1"], capture_output=True, text=True, env=clean_environment(),
        timeout=DEADLINE_S, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)),
    )  # fmt: skip
    assert done.returncode == 74 and str(out) in done.stderr and done.stderr.count("\n") == 1, done
    assert out.read_text() == "before" and os.listdir(tmp_path) == ["out.gguf"]
    quantize(TINY_F32, out, "Q8_0")
    assert gguf.GGUFReader(out).tensors and os.listdir(tmp_path) == ["out.gguf"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, number):
    out = tmp_path / "out.gguf"
    process = subprocess.Popen(
        [str(BINARY), "quantize", str(SMOL), str(out), "Q6_K", "--allow-requantize", "--threads", "1"], stderr=subprocess.PIPE, text=True,
        env=clean_environment(),
    )  # fmt: skip
    end = time.monotonic() + DEADLINE_S
    while not os.listdir(tmp_path) and time.monotonic() < end:
        time.sleep(0.01)
    assert os.listdir(tmp_path) and not out.exists()  # the temporary file
    process.send_signal(number)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130 and "interrupted" in stderr, stderr
    assert os.listdir(tmp_path) == []


def test_memory_stays_small(tmp_path):
    """A model of 94 MB through a few MiB a thread: the header is what is left."""
    script = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], capture_output=True); "
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [str(BINARY), "quantize", str(SMOL), str(tmp_path / "out.gguf"), "Q8_0", "--allow-requantize", "--threads", "2"]
    done = subprocess.run(["python3", "-c", script, *command], capture_output=True, text=True, env=clean_environment(), timeout=DEADLINE_S)
    code, peak_kib = map(int, done.stdout.split())
    assert code == 0 and peak_kib < 64 * 1024, done
