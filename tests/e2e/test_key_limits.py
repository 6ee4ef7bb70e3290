"""Limits of a key on the real engine: what is paid, and who may look inside."""

import pytest

from rig import TINY, Events, eventually


@pytest.fixture(scope="module")
def server(start_shared, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("admin:ka\nuser:ku\nother:ko\n")
    keys.chmod(0o600)
    return start_shared(TINY, "--kv-pool", "4MiB", "--api-key-file", keys, "--public-metrics",
                        "--limit-key-requests", "2", "--limit-key-tokens", "60")  # fmt: skip


def ask(server, key, prompt_tokens, **options):
    body = {"model": server.model, "prompt": [5] * prompt_tokens, "temperature": 0, "ignore_eos": True, **options}
    return server.post("/v1/completions", body, [("Authorization", f"Bearer {key}")])


def left(server, key):
    """Tokens in the key's bucket, by a request of a whole minute's, which it must refuse. A token comes back each second."""
    reply = ask(server, key, 60, max_tokens=1)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error"), reply
    assert reply.headers["x-ratelimit-limit-tokens"] == "60" and 1 <= int(reply.headers["retry-after"]) <= 60
    return int(reply.headers["x-ratelimit-remaining-tokens"])


def test_tokens_are_paid_once(server):
    """A prompt counts once for its choices, cached or not."""
    for _ in range(2):  # the second time from the cache
        assert ask(server, "ku", 10, max_tokens=4, n=2).status == 200
    assert 60 - 2 * (10 + 8) <= left(server, "ku") < 60 - 10 - 8
    assert ask(server, "ko", 50, max_tokens=1).status == 200, "another key has its own"


def test_who_leaves_pays_for_what_was_computed(server):
    body = {"model": server.model, "prompt": [5] * 20, "stream": True, "ignore_eos": True, "max_tokens": 250}
    with server.wire() as wire:
        events = iter(Events(wire.request("POST", "/v1/completions", body, [("Authorization", "Bearer ka")])))
        next(events)
        wire.reset()
    eventually(lambda: server.metrics()["vllm:num_requests_running"] == 0, "it is cancelled")
    assert left(server, "ka") < 60 - 20


def test_scopes(server):
    """Keys whose name begins with admin are there: the others may not look inside."""
    for path in ("/v1/steps", "/v1/blocks", "/v1/accounts", "/v1/settings", "/v1/kv_events"):
        assert server.get(path, [("Authorization", "Bearer ka")]).status == 200
        refused = server.get(path, [("Authorization", "Bearer ku")])
        assert (refused.status, refused.error["code"]) == (403, "insufficient_permissions")
        assert server.get(path).status == 401
    assert server.get("/", [("Authorization", "Bearer ku")]).status == 200 and server.get("/").status == 401
