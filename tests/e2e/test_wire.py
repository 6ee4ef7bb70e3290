"""What is not a good request: the right status, nothing else disturbed, and the same answer to a good one afterwards."""

import json
import resource
import time

import pytest

from rig import TINY, Events, Wire, eventually

pytestmark = pytest.mark.sanitizer
GOOD = {"prompt": "the light of the sea", "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": True}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(TINY, "--kv-pool", "4MiB")


@pytest.fixture(scope="module")
def golden(server):
    return server.complete(**GOOD)["choices"]


@pytest.fixture(autouse=True)
def nothing_else_is_disturbed(server, golden):
    yield
    assert server.process.poll() is None and server.get("/livez").body == b"ok"
    assert server.complete(**GOOD)["choices"] == golden
    server.at_rest()  # the answer may be here before its blocks are back


BODIES = {  # A1..A4, A25: each a 400 invalid_json
    "empty": b"", "cut": b'{"model":"m', "comma": b'{"model":"m",}', "two": b"{}{}", "duplicate": b'{"model":"a","model":"b"}',
    "deep array": b"[" * 100_000, "deep object": b'{"a":' * 100_000, "nan": b'{"temperature":NaN}', "infinity": b'{"top_p":Infinity}',
    "huge": b'{"temperature":1e999}', "hex": b'{"seed":0x10}', "zero": b'{"seed":01}', "comment": b'{/*x*/"model":"m"}',
    "utf-8": b'{"model":"\xff"}', "overlong": b'{"model":"\xc0\xaf"}', "surrogate": b'{"model":"\xed\xa0\x80"}',
    "lone surrogate": b'{"model":"\\ud800"}', "list": b"[]", "string": b'"x"', "null": b"null",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_bad_json(server, name):
    reply = server.post("/v1/completions", BODIES[name])
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_json", None), reply
    assert "at byte" in reply.error["message"] or "(byte 0)" in reply.error["message"], reply
    assert name != "duplicate" or 'distinct keys: "model" occurs for the second time at byte 19' in reply.error["message"], reply


FIELDS = [  # A5..A13, A23, T2
    ({"temperature": -1}, "temperature"), ({"temperature": "0.5"}, "temperature"), ({"temperature": 1e30}, "temperature"),
    ({"temperature": 2.01}, "temperature"), ({"top_p": 1.1}, "top_p"), ({"top_k": -2}, "top_k"), ({"min_p": 2}, "min_p"),
    ({"frequency_penalty": 1e9}, "frequency_penalty"), ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 2**31}, "max_tokens"), ({"max_tokens": 2**63}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"), ({"max_tokens": True}, "max_tokens"), ({"n": -1}, "n"), ({"n": 10**6}, "n"),
    ({"logprobs": 21}, "logprobs"), ({"logprobs": -1}, "logprobs"), ({"stop": ""}, "stop"), ({"stop": ["x"] * 100}, "stop"),
    ({"stop": ["x" * 257]}, "stop"), ({"stop": [None]}, "stop"), ({"stop": 5}, "stop"), ({"logit_bias": {"1024": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"), ({"logit_bias": {"5": "x"}}, "logit_bias"), ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"), ({"seed": 1.5}, "seed"), ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"), ({"prompt": [[]]}, "prompt[0]"), ({"prompt": ["a", 5]}, "prompt[1]"), ({"prompt": [1, 2, -1]}, "prompt[2]"),
    ({"prompt": [1, 1024]}, "prompt[1]"), ({"prompt": [1, 1.5]}, "prompt[1]"), ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [[1], [2, 3, 2**31]]}, "prompt[1][2]"), ({"prompt": ["x"] * 65}, "prompt"), ({"stop_token_ids": [1024]}, "stop_token_ids[0]"),
    ({"stream": "yes"}, "stream"), ({"stream_options": {"include_usage": True}}, "stream_options"), ({"min_tokens": 9}, "min_tokens"),
    ({"user": "u" * 257}, "user"), ({"cache_salt": ""}, "cache_salt"), ({"best_of": 1, "n": 2}, "best_of"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), FIELDS, ids=[json.dumps(f)[:40] for f, _ in FIELDS])
def test_bad_field(server, fields, param):
    reply = server.post("/v1/completions", {"model": server.model, **GOOD, **fields})
    error = reply.error
    assert (reply.status, error["code"], error["param"], error["type"]) == (400, "invalid_value", param, "invalid_request_error"), reply


def test_null_is_absent_and_unknown_fields_are_ignored(server, golden):
    nulls = dict.fromkeys(("stop", "seed", "n", "top_p", "stream", "stream_options", "logit_bias", "user", "best_of", "suffix"))
    assert server.complete(**GOOD, **nulls, **{f"unknown_{i}": i for i in range(10_000)})["choices"] == golden


def test_unknown_model_is_echoed_safely(server):
    series = len(server.metrics())
    for model in ("gpt-4", "x" * 100_000, "a\nb<script>"):
        reply = server.post("/v1/completions", {"model": model, "prompt": "x"})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
        assert len(reply.error["message"]) < 300 and "\n" not in reply.error["message"]
    assert len(server.metrics()) == series


def test_bias_against_every_token(server):
    """A11: the whole vocabulary is as unlikely as can be, and the request still ends."""
    everything = {str(token): -100 for token in range(1024)}
    choice = server.complete("the sea", max_tokens=6, temperature=0, logit_bias=everything)["choices"][0]
    assert choice["finish_reason"] in ("stop", "length")


FEATURES = {  # A27
    "stream": {"stream": True}, "n": {"n": 2}, "best_of": {"best_of": 2}, "logprobs": {"logprobs": 2}, "prompt_logprobs": {"prompt_logprobs": 1},
    "echo": {"echo": True}, "alone": {"echo": True, "max_tokens": 0}, "schema": {"response_format": {"type": "json_object"}}, "stop": {"stop": ["sea"]},
    "penalties": {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1}, "bias": {"logit_bias": {"5": 50}},
    "greedy": {"temperature": 0}, "sampled": {"temperature": 1, "top_p": 0.9, "seed": 7}, "beams": {"use_beam_search": True},
    "cached": {"prompt": "the light of the sea " * 20},
}  # fmt: skip


def test_each_pair_of_features(server):
    """A27: works, or is refused as a request that means nothing."""
    refused = {
        ("alone", "beams"), ("beams", "bias"), ("beams", "penalties"), ("beams", "stop"), ("beams", "stream"), ("best_of", "stream"),
        ("prompt_logprobs", "stream"),
    }  # fmt: skip
    for first, one in FEATURES.items():
        for second, other in FEATURES.items():
            if first > second:
                continue
            body = {"model": server.model, "prompt": "the sea", "max_tokens": 3, **one, **other}
            reply = server.post("/v1/completions", body)
            assert reply.status == (400 if (first, second) in refused else 200), (first, second, reply)
            if reply.status == 200 and b"data: " in reply.body:
                assert reply.body.endswith(b"data: [DONE]\n\n") and b'"error"' not in reply.body, (first, second)


RAW = {  # W1..W6, W12..W17: bytes -> statuses that are right; every one of them ends the connection
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200, {400}),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "http/0.9": (b"GET /livez\r\n\r\n", {400}),
    "line too long": (b"GET /" + b"a" * 65536 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {414}),
    "headers too big": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", {431}),
    "too many fields": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 200 + b"\r\n", {431}),
    "no colon": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nbroken\r\n\r\n", {400}),
    "blank before colon": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX : 1\r\n\r\n", {400}),
    "obs-fold": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: 1\r\n 2\r\n\r\n", {400}),
    "nul": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", {400}),
    "both framings": (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", {400}),
    "length +5": (HEAD + b"Content-Length: +5\r\n\r\n{}   ", {400}),
    "length 5, 5": (HEAD + b"Content-Length: 5, 5\r\n\r\n{}   ", {400}),
    "length 0x5": (HEAD + b"Content-Length: 0x5\r\n\r\n{}   ", {400}),
    "length 2^64": (HEAD + b"Content-Length: 18446744073709551616\r\n\r\n{}", {400, 413}),
    "chunked, identity": (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", {400}),
    "chunked twice": (HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", {400}),
    "chunked on 1.0": (HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    "chunk size -1": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", {400}),
    "chunk size of 17 digits": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", {400, 413}),
    "chunk without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx\r\n0\r\n\r\n", {400}),
    "body too large": (HEAD + b"Content-Length: 99999999\r\n\r\n", {413}),
    "expect and too large": (HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n", {413}),
    "%00": (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    "absolute form": (b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    "backslash": (b"GET /..\\etc HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    "no host": (b"GET /livez HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", {400}),
}


@pytest.mark.parametrize("name", RAW)
def test_not_http_as_it_should_be(server, name):
    data, statuses = RAW[name]
    with server.wire() as wire:
        try:
            wire.send(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all was sent
        reply = wire.reply()
        assert reply.status in statuses, reply
        assert reply.error["message"] and reply.headers["x-request-id"]
        if name not in ("no host", "two hosts"):
            assert reply.headers["connection"] == "close" and wire.closed()


OTHERS = [
    ("GET", "/nothing", (), 404, "not_found"),
    ("GET", "/..%2f..%2fetc/passwd", (), 400, "invalid_value"),
    ("GET", "/v1/completions", (), 405, "method_not_allowed"),
    ("PATCH", "/livez", (), 405, "method_not_allowed"),
    ("TRACE", "/livez", (), 405, "method_not_allowed"),
    ("GET", "/v1/models/nothing", (), 404, "model_not_found"),
    ("POST", "/v1/completions", (("Content-Type", "text/plain"),), 415, "unsupported_media_type"),
    ("POST", "/v1/completions", (("Content-Encoding", "gzip"),), 415, "unsupported_media_type"),
    ("POST", "/v1/completions", (("x-request-timeout", "soon"),), 400, "invalid_value"),
    ("POST", "/v1/embeddings", (), 501, "not_supported"),
    ("POST", "/v1/rerank", (), 501, "not_supported"),
    ("GET", "/v1/kv_events?since=x", (), 400, "invalid_value"),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "code"), OTHERS, ids=[f"{m} {p} {h}" for m, p, h, _, _ in OTHERS])
def test_refused_by_the_table(server, method, path, headers, status, code):
    body = {"model": server.model, **GOOD} if method == "POST" else None
    with server.wire() as wire:
        reply = wire.request(method, path, body, headers).reply()
        assert (reply.status, reply.error["code"]) == (status, code), reply
        assert ("allow" in reply.headers) == (status == 405)
        assert reply.headers.get("x-should-retry") == ("false" if status == 501 else None)


def test_foreign_host_and_origin(server):
    with server.wire() as wire:
        reply = wire.send(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n").reply()
        assert (reply.status, reply.error["code"]) == (421, "misdirected_request")
    for origin in ("https://evil.example", "null"):
        with server.wire() as wire:
            headers = (("Origin", origin), ("Access-Control-Request-Method", "POST"))
            reply = wire.request("OPTIONS", "/v1/completions", headers=headers).reply()
            assert reply.status in (403, 405) and not any(h.startswith("access-control") for h in reply.headers)


def test_image_content_is_not_built(server):
    content = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    reply = server.post("/v1/chat/completions", {"model": server.model, "messages": [{"role": "user", "content": content}]})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (501, "not_supported", "messages[0].content[1].type")


def test_chat_template_of_the_request_is_refused(server):
    chat = {"model": server.model, "messages": [{"role": "user", "content": "x"}]}
    for more, param in (({"chat_template": "x"}, "chat_template"), ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs")):
        reply = server.post("/v1/chat/completions", {**chat, **more})
        assert (reply.status, reply.error["param"]) == (400, param)


def test_one_byte_a_segment(server, golden):
    """W10, and a chunked body."""
    body = json.dumps({"model": server.model, **GOOD}).encode()
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (body[:10], body[10:11], body[11:])) + b"0\r\n\r\n"
    with server.wire() as wire:
        for byte in HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks:
            wire.send(bytes([byte]))
        assert wire.reply().json["choices"] == golden


def test_pipelining_keeps_the_order(server, golden):
    """W9: one segment of many requests, answered one after the other."""
    good = json.dumps({"model": server.model, **GOOD}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(good), good)
    probe = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.wire() as wire:
        wire.send((request + probe) * 40)
        for _ in range(40):
            assert wire.reply().json["choices"] == golden
            assert wire.reply().body == b"ok"


def test_body_on_get_is_not_a_request(server):
    """W8."""
    with server.wire() as wire:
        smuggled = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
        wire.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled) + smuggled)
        assert wire.reply().body == b"ok"
        wire.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            assert wire.reply().body == b"ok"
        except (EOFError, ConnectionResetError):
            pass  # closed: right as well


def test_head_and_keep_alive(server):
    with server.wire() as wire:
        for path in ("/livez", "/readyz", "/version", "/v1/models", "/metrics"):
            reply = wire.request("HEAD", path).reply(has_body=False)
            assert reply.status == 200 and int(reply.headers["content-length"]) > 0


def test_http_1_0_stream_is_close_delimited(server, golden):
    """R10."""
    body = json.dumps({"model": server.model, **GOOD, "stream": True}).encode()
    with server.wire() as wire:
        wire.send(HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        events = Events(wire)
        assert "transfer-encoding" not in events.headers and "content-length" not in events.headers
        assert "".join(chunk["choices"][0]["text"] for chunk in events) == golden[0]["text"]
        assert wire.closed()


def test_stream_of_one_token(server):
    """R7."""
    streamed = server.stream("/v1/completions", {**GOOD, "max_tokens": 1})
    assert streamed.finish_reason == "length" and len(streamed.chunks) == 1


def test_slow_head_is_ended(start):
    server = start(TINY, "--kv-pool", "4MiB", "--timeout-head", "500ms", "--timeout-idle", "500ms", "--timeout-body-gap", "500ms")
    with server.wire() as wire:
        assert wire.send(b"GET /livez HT").reply().status == 408 and wire.closed()
    with server.wire() as wire:
        assert wire.send(HEAD + b"Content-Length: 5\r\n\r\n{").reply().status == 408 and wire.closed()
    with server.wire() as wire:  # nothing sent at all, after a good request
        assert wire.request("GET", "/livez").reply().status == 200
        assert wire.closed()


def test_a_thousand_idle_connections(start):
    """They cost a good client nothing, and are all still there afterwards."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))  # the test's own side
    server = start(TINY, "--kv-pool", "4MiB")
    answer = server.complete(**GOOD)["choices"]
    idle = [Wire(server.port) for _ in range(1000)]
    eventually(lambda: server.metrics()['tally_http_connections{state="idle"}'] >= 1000, "all are accepted")
    begin = time.monotonic()
    assert server.complete(**GOOD)["choices"] == answer
    assert server.get("/livez").body == b"ok" and time.monotonic() - begin < 5
    for wire in idle[::100]:
        assert wire.request("GET", "/livez").reply().status == 200
    for wire in idle:
        wire.sock.close()
    eventually(lambda: server.metrics()['tally_http_connections{state="idle"}'] < 10, "all are gone")


def test_many_silent_connections(start):
    """W20: beyond the cap a connection is accepted and closed; those that are there go on."""
    server = start(TINY, "--kv-pool", "4MiB", "--limit-connections", "8")
    silent = [Wire(server.port) for _ in range(12)]
    assert silent[-1].closed()
    assert silent[0].request("GET", "/livez").reply().status == 200
    for wire in silent:
        wire.sock.close()

    def answers():
        try:
            return server.get("/livez").status == 200
        except (EOFError, ConnectionResetError):
            return False  # the others' ends are still to be seen

    eventually(answers, "there is room again")
