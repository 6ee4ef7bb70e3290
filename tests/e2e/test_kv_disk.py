"""--kv-disk: prefixes that left the pool come back from a file, also after a restart or a crash, with the same bits."""

import os

from rig import SMOL, eventually, tally

# A pool of 640 tokens: a prompt of some 300 does not outlive two others.
SMALL = ("--kv-pool", "7.5MiB", "--max-seqs", "4", "--kv-disk-size", "64MiB")
PROMPTS = [f"Story number {n}. " + " ".join(f"On day {d} the {n + d} sailors saw an island." for d in range(25)) for n in range(3)]


def ask(server, n):
    answer = server.complete(PROMPTS[n], max_tokens=12, temperature=0, logprobs=2)
    return answer["choices"][0]["text"], answer["choices"][0]["logprobs"], answer["receipt"]["kv_disk_tokens"]


def kinds(server):
    counts = {k: v for k, v in server.metrics().items() if k.startswith("tally_kv_disk_blocks_total")}
    return {what: sum(v for k, v in counts.items() if f'"{what}"' in k) for what in ("written", "damaged")}


def test_a_prefix_comes_back_from_the_file(start, tmp_path):
    plain = start(SMOL, "--max-seqs", "4", "--kv-pool", "64MiB")
    golden = [ask(plain, n)[:2] for n in range(3)]
    plain.stop()

    server = start(SMOL, *SMALL, "--kv-disk", str(tmp_path))
    for n in (0, 1, 2):
        *answer, from_disk = ask(server, n)
        assert tuple(answer) == golden[n] and from_disk == 0
    *answer, from_disk = ask(server, 0)
    assert tuple(answer) == golden[0] and from_disk >= 192
    assert kinds(server)["written"] >= 3
    parts = server.get("/v1/accounts").json["accounts"]["runtime"]["parts"]
    assert parts["kv disk"]["planned_bytes"] == parts["kv disk"]["reserved_bytes"]
    second = tally("serve", str(SMOL), "--port", "0", *SMALL, "--kv-disk", str(tmp_path))
    assert second.returncode == 78 and "in use by another server" in second.stderr
    server.stop()

    # A drain saves what the pool still has: all three are there for the next process.
    server = start(SMOL, *SMALL, "--kv-disk", str(tmp_path))
    for n in range(3):
        *answer, from_disk = ask(server, n)
        assert tuple(answer) == golden[n] and from_disk >= 192
    server.kill()
    start.started.remove(server)

    # A crash loses nothing that was written.
    server = start(SMOL, *SMALL, "--kv-disk", str(tmp_path))
    *answer, from_disk = ask(server, 0)
    assert tuple(answer) == golden[0] and from_disk >= 192
    server.stop()

    # Bits that changed: at worst they are computed.
    path, = tmp_path.iterdir()
    with open(path, "r+b") as file:
        for at in range(8192, os.path.getsize(path), 300_001):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
    server = start(SMOL, *SMALL, "--kv-disk", str(tmp_path))
    for n in range(3):
        *answer, from_disk = ask(server, n)
        assert tuple(answer) == golden[n] and from_disk == 0
    assert kinds(server)["damaged"] > 0
    server.stop()

    # A reset reaches the file of a server that nobody asks for anything.
    server = start(SMOL, *SMALL, "--kv-disk", str(tmp_path))
    assert ask(server, 0)[2] >= 192
    with open(path, "rb") as file:
        header = file.read(72)
        assert server.post("/reset_prefix_cache", {}).status == 200
        eventually(lambda: os.pread(file.fileno(), 72, 0) != header, "the file forgets")
    server.kill()
    start.started.remove(server)
    server = start(SMOL, *SMALL, "--kv-disk", str(tmp_path))
    *answer, from_disk = ask(server, 0)
    assert tuple(answer) == golden[0] and from_disk == 0
    server.stop()


def test_what_cannot_be_is_said(tmp_path):
    def start(*flags):
        return tally("serve", str(SMOL), "--port", "0", "--kv-disk", str(tmp_path), *flags)

    large = start("--kv-disk-size", "40TiB")
    assert large.returncode == 74 and "--kv-disk: " in large.stderr and "cannot be had" in large.stderr
    off = start("--prefix-cache", "off")
    assert off.returncode == 78 and "--prefix-cache on" in off.stderr
    small = start("--kv-disk-size", "4KiB")
    assert small.returncode == 78 and "one KV block takes" in small.stderr
    assert list(tmp_path.iterdir()) == [] or os.path.getsize(next(tmp_path.iterdir())) == 0
