"""Commands and flags: every wrong one gets one clear line and the right exit code, before anything is done."""

import json
import os
import re
import shlex
import shutil
import socket
import time

import pytest

from rig import ROOT, SMOL, TINY, tally

COMMANDS = (
    "serve", "run", "inspect", "tokenize", "quantize", "plan", "snapshot", "bench engine", "bench kernel", "bench attention", "bench load",
    "simulate", "compare", "ablate", "eval ppl", "eval kld", "eval kv", "explain", "doctor", "top", "runs", "report", "trace", "help",
)  # fmt: skip
SMALL = ("--kv-pool", "16MiB", "--threads", "1")


def refused(code, *arguments, says=(), **options):
    """The command must fail with `code` and one line on stderr, and print nothing else."""
    done = tally(*arguments, **options)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" and done.stderr.startswith("tally: ") and done.stderr.count("\n") == 1, done
    for part in (says,) if isinstance(says, str) else says:
        assert part in done.stderr, (part, done.stderr)
    return done.stderr


def test_help():
    page = tally("help")
    assert page.returncode == 0 and page.stderr == ""
    assert tally().stdout == page.stdout == tally("--help").stdout == tally("-h").stdout
    listed = re.findall(r"^  ([a-z]+(?: [a-z]+)?) ", page.stdout, re.M)
    assert listed == [*COMMANDS]
    for name in COMMANDS:
        own = tally("help", *name.split())
        assert own.returncode == 0 and own.stdout.startswith(f"tally {name}") and own.stdout == tally(*name.split(), "--help").stdout
    assert "--kv-type" in tally("help", "serve").stdout and "--kv-type" not in tally("help", "tokenize").stdout
    refused(64, "help", "nothing", says="nothing")


def test_version():
    done = tally("--version")
    assert done.returncode == 0 and re.fullmatch(r"tally \d+\.\d+\.\d+\n", done.stdout)


def test_settings_page_is_current():
    assert (ROOT / "docs/settings.md").read_text() == tally("help", "--markdown").stdout, "build/release/tally help --markdown >docs/settings.md"


@pytest.mark.parametrize(("given", "meant"), [("serv", "serve"), ("inspct", "inspect"), ("tokenise", "tokenize")])
def test_unknown_command(given, meant):
    refused(64, given, TINY, says=(given, f"did you mean {meant}?"))


def test_unknown_command_without_a_near_one():
    assert "did you mean" not in refused(64, "frobnicate-it-all", says="frobnicate-it-all")
    assert "\x1b" not in refused(64, "\x1b[31mred")


@pytest.mark.parametrize(
    "flags",
    [("--kv-sinks", "4"), ("--log-content", "on")],
)  # fmt: skip
def test_flags_that_are_not_built(flags):
    refused(64, "serve", TINY, *flags, says=(flags[0], "not supported yet"))


@pytest.mark.parametrize(("given", "meant"), [("--prot", "--port"), ("--kv-typ", "--kv-type"), ("--max-model-length", "--max-model-len")])
def test_unknown_flag(given, meant):
    refused(64, "serve", TINY, given, "4", says=(given, f"did you mean {meant}?"))
    refused(64, "serve", TINY, f"{given}=4", says=f"did you mean {meant}?")


def test_unknown_flag_c1():
    refused(64, "serve", TINY, "--contxt", "4096", says="--contxt")
    refused(64, "inspect", TINY, "--port", "1", says="--port")  # of another command


BAD_VALUES = {
    "--port": ("70000", "-1", "80x", "", "1.5"),  # C2
    "--threads": ("0", "-4", "100000", "two"),  # C3
    "--max-model-len": ("999999999999", "0", "-1"),  # C4
    "--memory": ("nan", "-1G", "1.5XB", "1e30", "0", "inf"),  # C5
    "--kv-pool": ("0", "-5MiB", "lots"),
    "--max-queue": ("-1", "65537"),
    "--step-tokens": ("0", "8193"),
    "--block-tokens": ("48", "0"),
    "--kv-type": ("q4", "INT8"),
    "--prefix-cache": ("maybe", ""),
    "--isa": ("sse2",),
    "--drain-timeout": ("-1s", "3 weeks", "nan"),
    "--log-level": ("loud",),
    "--limit-key-requests": ("-1", "65537"),
    "--limit-key-tokens": ("-1", "2000000000"),
}


@pytest.mark.parametrize(("flag", "value"), [(f, v) for f, values in BAD_VALUES.items() for v in values])
def test_bad_value(flag, value):
    line = refused(64, "serve", TINY, f"{flag}={value}", says=(flag, "allowed"))
    assert value[:20] in line
    variable = "TALLY_" + flag[2:].upper().replace("-", "_")
    refused(64, "serve", TINY, env={variable: value}, says=(variable, "allowed"))


def test_arguments():
    refused(64, "serve", says="MODEL is missing")
    refused(64, "serve", TINY, "another", says="another")
    refused(64, "serve", TINY, "--port", says="--port")


def test_lists_of_words():
    refused(64, "serve", TINY, "--metrics-compat", "llamacpp,vllm", says=("--metrics-compat: 'vllm'", "allowed: vllm-legacy llamacpp"))


def test_more_threads_than_cpus_are_clamped(start):
    server = start(TINY, *SMALL[:2], "--threads", "1024")
    assert "--threads 1024" in server.stderr and server.metrics()["process_threads"] < 64 + 4 * os.cpu_count()


def test_legal_but_impossible():
    refused(78, "serve", TINY, "--max-model-len", "2049", says=("--max-model-len 2049", "2048"))
    assert re.search(r"\d+ bytes", refused(69, "serve", TINY, "--memory", "8MiB", says="does not fit"))
    refused(69, "serve", TINY, "--kv-pool", "500GiB", "--memory", "1GiB", says="--kv-pool")
    refused(69, "serve", TINY, "--kv-pool", "1MiB", "--max-model-len", "2048", says="--max-model-len 2048")


def test_host_without_a_key(start):
    refused(78, "serve", TINY, *SMALL, "--port", "0", "--host", "0.0.0.0", says=("--host 0.0.0.0", "--api-key-file", "--allow-unauthenticated"))


def test_key_files(tmp_path):
    keys = tmp_path / "keys"
    serve = ("serve", TINY, *SMALL, "--port", "0", "--api-key-file", keys)
    refused(66, *serve, says="--api-key-file")
    keys.write_text("ann:secret\n")
    keys.chmod(0o644)
    assert "secret" not in refused(78, *serve, says="chmod 600")
    keys.chmod(0o600)
    for text, says in (("", "no key"), ("# only a comment\n\n", "no key"), ("ann:k\nsecret\n", "line 2"), (":secret\n", "line 1"), ("ann:\n", "line 1")):
        keys.write_text(text)
        assert "secret" not in refused(78, *serve, says=says)
    refused(64, "serve", TINY, "--api-key", "secret", says="--api-key")


def test_config_file(tmp_path, start):
    config = tmp_path / "config.json"
    refused(66, "serve", TINY, "--config", config, says="--config")
    for text, says in (
        (b'{"port": 1,\n"port": 2}', "port"),
        (b'{"port": 1,\n oops}', "line 2"),
        (b'{"model-name":\n"\xff"}', "line 2"),
        (b"[]", "object"),
        (b"", "line 1"),
        (b" " * (2 << 20), "bytes"),
    ):
        config.write_bytes(text)
        refused(78, "serve", TINY, "--config", config, says=("--config", says))
    for text, says in (({"prot": 1}, "did you mean port?"), ({"port": 70000}, "70000"), ({"port": [1]}, "port"), ({"kv-type": "q4"}, "q4")):
        config.write_text(json.dumps(text))
        refused(64, "serve", TINY, "--config", config, says=("--config", says))
    # C13: CLI > environment > file > default.
    config.write_text(json.dumps({"model-name": "of-file", "block-tokens": "16", "max-seqs": 3, "receipts": False}))
    environment = {"TALLY_MODEL_NAME": "of-environment", "TALLY_BLOCK_TOKENS": "32"}
    server = start(TINY, *SMALL, "--config", config, "--model-name", "of-cli", env=environment)
    assert server.get("/v1/models").json["data"][0]["id"] == "of-cli"
    server.model = "of-cli"
    assert 'block_size="32"' in server.get("/metrics").body.decode()
    assert "receipt" not in server.complete("x", max_tokens=1)


def bad_models(folder):
    """Files that are no model: (path, exit code, what the line says)."""
    whole = TINY.read_bytes()
    text, empty, cut, header_cut, magic = (folder / n for n in ("notes.gguf", "empty.gguf", "cut.gguf", "head.gguf", "magic.gguf"))
    text.write_text("Dear diary,\n" * 1000)
    empty.write_bytes(b"")
    cut.write_bytes(whole[: len(whole) // 2])
    header_cut.write_bytes(whole[:1000])
    magic.write_bytes(b"GGUF" + b"\xff" * 60)
    fifo, unreadable = folder / "fifo", folder / "missing.gguf"
    os.mkfifo(fifo)
    return [
        (text, 65, "not a GGUF file"), (empty, 65, ""), (cut, 65, ""), (header_cut, 65, ""), (magic, 65, "4294967295"),
        (folder, 66, ""), (fifo, 66, ""), (unreadable, 66, ""), ("/dev/zero", 66, ""),
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["serve", "run", "inspect", "tokenize"])
def test_bad_model_files(tmp_path, command):
    more = {"serve": ("--port", "0"), "run": ("hello",), "inspect": (), "tokenize": ("hello",)}[command]
    for path, code, says in bad_models(tmp_path):
        if command == "tokenize" and code == 65 and path.name == "cut.gguf":
            continue  # the tokenizer is in the part that is left
        refused(code, command, path, *more, says=(str(path), says), timeout=60)


@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_file_cut_anywhere(tmp_path, command):
    whole = TINY.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (1, 3, 4, 8, 23, 24, 100, 5000, 20_000, len(whole) - 40_000, len(whole) - 1):
        cut.write_bytes(whole[:length])
        refused(65, command, cut, *(("--port", "0") if command == "serve" else ()), says=str(cut))


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        begun = time.monotonic()
        refused(69, "serve", SMOL if SMOL.is_file() else TINY, *SMALL, "--log-level", "off", "--port", port, says=str(port))
        assert time.monotonic() - begun < 15  # one second is promised; a loaded machine is no failure


def test_tokenize_round_trip():
    for text in ("Hello, world!", " two  blanks ", "Grüße aus 東京 🗼", "line\nline\t", "<|im_end|>"):
        made = tally("tokenize", TINY, "--json", stdin=text.encode())
        reply = json.loads(made.stdout)
        assert made.returncode == 0 and reply["count"] == len(reply["tokens"]) > 0
        ids = map(str, reply["tokens"])
        back = tally("tokenize", TINY, "--decode", "--json", "--special", *ids)
        assert json.loads(back.stdout) == {"prompt": text}
    plain = tally("tokenize", TINY, "--json", "<|im_end|>")
    special = tally("tokenize", TINY, "--json", "--special", "<|im_end|>")
    assert json.loads(plain.stdout)["count"] > 1 and json.loads(special.stdout) == {"count": 1, "tokens": [2]}
    lines = tally("tokenize", TINY, "the sea").stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == json.loads(tally("tokenize", TINY, "--json", "the sea").stdout)["tokens"]
    for bad in ("1024", "-1", "1.5", "x", "99999999999999999999"):
        assert tally("tokenize", TINY, "--decode", "--", "5", bad).returncode in (64, 65), bad
    refused(65, "tokenize", TINY, "--decode", "5", "1024", says=("1024", "0..1023"))


def test_inspect_json():
    shown = tally("inspect", TINY, "--json")
    page = json.loads(shown.stdout)
    assert {"architecture", "parameters", "context_length", "tensors", "types", "tokenizer", "template", "kernels"} <= set(page)
    assert page["architecture"] == "llama" and page["context_length"] == 2048
    assert page["tokenizer"]["vocabulary"] == 1024 and "<|im_start|>" in page["template"]
    sizes = {t["name"]: t for t in page["tensors"]}
    assert len(sizes) == 20 and sizes["token_embd.weight"]["shape"] == [256, 1024]
    assert page["parameters"] == sum(count(t["shape"]) for t in page["tensors"])
    assert sum(t["bytes"] for t in page["tensors"]) == sum(t["bytes"] for t in page["types"].values())
    assert sum(t["tensors"] for t in page["types"].values()) == 20 and "Q4_0" in {name.upper() for name in page["types"]}
    assert page["kernels"]["isa"] and page["kernels"]["families"]
    assert json.loads(tally("inspect", TINY, "--json", "--isa", "scalar").stdout)["kernels"]["isa"] == "scalar"
    people = tally("inspect", TINY)
    assert people.returncode == 0 and all(word in people.stdout for word in ("metadata", "tensors", "tokenizer", "kernels"))


def count(shape):
    total = 1
    for dim in shape:
        total *= dim
    return total


def test_isa_this_cpu_has_not():
    refused(64, "inspect", TINY, "--isa", "neon", says="--isa")
    for isa in ("amx", "avx512vnni", "avxvnni"):
        shown = tally("inspect", TINY, "--isa", isa)
        if shown.returncode != 0:
            refused(78, "inspect", TINY, "--isa", isa, says=(f"--isa {isa}", "this CPU has scalar"))
            refused(78, "serve", TINY, "--port", "0", "--isa", isa, says=(f"--isa {isa}", "this CPU has scalar"))


def test_run():
    first = tally("run", SMOL, "What is the capital of France?", "--max-tokens", "24", "--receipt", *SMALL)
    assert first.returncode == 0 and len(first.stdout) > 20
    assert "receipt" in first.stderr and re.search(r"generated +\d+ tokens", first.stderr), first.stderr
    assert all(word in first.stderr for word in ("prompt", "time", "weights", "kv", "seed"))
    piped = tally("run", SMOL, "--max-tokens", "24", *SMALL, stdin=b"What is the capital of France?")
    assert (piped.returncode, piped.stdout) == (0, first.stdout) and "receipt" not in piped.stderr
    raw = tally("run", SMOL, "--raw", "The capital of France is", "--max-tokens", "4", *SMALL)
    assert raw.returncode == 0 and "Paris" in raw.stdout
    seeded = [tally("run", SMOL, "Hi", "--max-tokens", "8", "--temperature", "1.5", "--seed", s, *SMALL).stdout for s in (1, 1, 2)]
    assert seeded[0] == seeded[1]
    refused(64, "run", SMOL, *SMALL, says="PROMPT")


def test_run_says_the_same_as_serve(start):
    server = start(SMOL, *SMALL)
    asked = {"model": server.model, "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 16, "temperature": 0}
    served = server.post("/v1/chat/completions", asked).json["choices"][0]["message"]["content"]
    assert tally("run", SMOL, "Name a colour.", "--max-tokens", "16", *SMALL).stdout == served + "\n"


def console_commands():
    """Every line of a console block in README.md that calls the binary."""
    blocks = re.findall(r"^```(?:console|sh|bash|shell)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        line = line.removeprefix("$ ").strip()
        if line.startswith("build/release/tally"):
            yield shlex.split(line.split(" | ")[0].split(" #")[0].split(" > ")[0].removesuffix(" &"))[1:]


def test_commands_of_the_readme_parse():
    """Run without their model, server or runs: whatever was wrong with the command itself would be told first, with 64."""
    commands = list(console_commands())
    assert commands, "README.md shows no command"
    missing = {"http://127.0.0.1:8000": ("http://127.0.0.1:9", 69), "runs": ("/nonexistent", 66)}
    for arguments in commands:
        if arguments[0] in ("help", "doctor", "--version", "--help"):
            assert tally(*arguments, env={"TALLY_ROOFS": "off"}).returncode == 0, arguments
            continue
        allowed = 0
        elsewhere = []
        for argument in arguments:
            there, code = missing.get(argument, ("/nonexistent.gguf", 66) if argument.endswith(".gguf") else (argument, 0))
            elsewhere.append(there)
            allowed = max(allowed, code)
        assert allowed, arguments
        done = tally(*elsewhere)
        assert done.returncode == allowed, (arguments, done.returncode, done.stderr)


def test_model_replaced_while_serving(start, tmp_path):
    """G26: the weights are in memory; what happens to the file is of no concern."""
    model = tmp_path / "model.gguf"
    shutil.copy(TINY, model)
    server = start(model, *SMALL)
    before = server.complete("the sea", max_tokens=10, temperature=0, logprobs=1)["choices"]
    os.truncate(model, 100)
    assert server.complete("the sea", max_tokens=10, temperature=0, logprobs=1)["choices"] == before
    model.unlink()
    assert server.complete("the sea", max_tokens=10, temperature=0, logprobs=1)["choices"] == before
