"""--weights stream: the answers of weights in memory, within a budget that they do not fit into."""

import os

from rig import SMOL, eventually, tally

SEQUENCES = ("--max-seqs", "2", "--max-model-len", "1024", "--kv-pool", "32MiB")
PROMPT = "The history of the lighthouse begins"


def ask(server):
    choice = server.complete(PROMPT, max_tokens=16, temperature=0, logprobs=2)["choices"][0]
    return choice["text"], choice["logprobs"]


def not_ready(server):
    """Waits until the server says that it can take nobody, which it does before it ends."""
    def look():
        try:
            reply = server.get("/readyz")
        except OSError:
            return True  # it has ended already
        return reply.status != 200 and reply.error["message"] == "The engine has failed."

    return eventually(look, "readiness ends")


def test_answers_of_streamed_weights(start, tmp_path):
    whole = start(SMOL, *SEQUENCES)
    golden = ask(whole)
    planned = sum(a["planned_bytes"] for a in whole.get("/v1/accounts").json["accounts"].values())
    whole.stop()

    budget = planned - (40 << 20)
    refused = tally("plan", str(SMOL), *SEQUENCES, "--memory", str(budget - (100 << 20)))
    assert refused.returncode == 69 and "does not fit" in refused.stderr
    server = start(SMOL, *SEQUENCES, "--memory", str(budget), "--weights", "stream", "--weights-dir", str(tmp_path))
    assert ask(server) == golden
    page = server.get("/v1/accounts").json
    parts = page["accounts"]["weights"]["parts"]
    assert parts["ring"]["planned_bytes"] == parts["ring"]["reserved_bytes"] > 0
    assert sum(a["planned_bytes"] for a in page["accounts"].values()) <= budget
    metrics = server.metrics()
    assert metrics["tally_weight_stream_layers"] > 0 and metrics["tally_weight_stream_predicted_bytes_per_second"] > 0
    assert metrics["tally_weight_stream_bytes_total"] >= 16 * metrics["tally_weight_stream_pass_bytes"]
    assert metrics["tally_memory_rss_anon_bytes"] <= budget
    stream = server.get("/v1/settings").json["weight_stream"]
    assert stream["layers"] == metrics["tally_weight_stream_layers"] and stream["measured_bytes_per_s"] > 0
    explained = tally("explain", server.url, "--json")
    assert explained.returncode == 0, explained.stderr

    # A file that is cut under a running server: no token from bytes that are not there, and no more requests.
    assert server.get("/readyz").status == 200
    path, = (p for p in tmp_path.iterdir() if p.name.startswith("weights-"))
    os.truncate(path, 8192)
    failed = server.post("/v1/completions", {"model": server.model, "prompt": PROMPT, "max_tokens": 16})
    assert (failed.status, failed.error["type"]) == (500, "server_error"), failed.body
    assert not_ready(server)
    assert server.wait() == 74
    start.started.remove(server)
    assert f"{path}: " in server.stderr and "the file ends before" in server.stderr, server.stderr
