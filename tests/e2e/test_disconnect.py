"""A client that goes away, in each stage of its request, takes only its own request along."""

import socket

import pytest

from rig import TINY, Events, Streamed, eventually

pytestmark = pytest.mark.sanitizer
LONG = {"prompt": "the sea", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
DISCONNECTS = 'tally_requests_ended_total{reason="disconnect"}'
RECEIVED = 'tally_requests_received_total{route="completions"}'


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(TINY, "--kv-pool", "4MiB", "--max-seqs", "1")


@pytest.fixture(scope="module")
def golden(server):
    return server.complete(**LONG)["choices"][0]["text"]


def begin(server):
    """Begins a long stream and reads its first event."""
    wire = server.wire()
    events = iter(server.events(wire, "/v1/completions", LONG))
    next(events)
    return wire, events


@pytest.mark.parametrize("way", ["reset", "close", "half-close"])
def test_after_the_first_token(server, way):
    before = server.metrics()[DISCONNECTS]
    for _ in range(50):  # the tiny model may have finished before the client has gone
        wire, _ = begin(server)
        if way == "reset":
            wire.reset()
        elif way == "close":
            wire.sock.close()
        else:
            wire.sock.shutdown(socket.SHUT_WR)
            while wire.more():
                pass
            wire.sock.close()
        server.at_rest()
        if server.metrics()[DISCONNECTS] > before:
            return
    raise AssertionError("no disconnect was noticed in 50 tries")


def test_while_queued_disturbs_nobody(server, golden):
    """More clients than seats; every second one leaves while it waits."""
    before = server.metrics()
    wires = [server.wire() for _ in range(12)]
    for wire in wires:
        wire.request("POST", "/v1/completions", {"model": server.model, "stream": True, **LONG})
    eventually(lambda: server.metrics()[RECEIVED] == before[RECEIVED] + 12, "all have arrived")  # RST drops unread bytes
    for wire in wires[1::2]:
        wire.reset()
    for wire in wires[::2]:
        answer = Streamed(Events(wire))
        assert answer.finish_reason == "length" and answer.text == golden
        wire.sock.close()
    server.at_rest()
    assert server.metrics()[DISCONNECTS] > before[DISCONNECTS]


def test_before_a_whole_answer(server, golden):
    before = server.metrics()[DISCONNECTS]
    wires = [server.wire() for _ in range(8)]
    for wire in wires:
        wire.request("POST", "/v1/completions", {"model": server.model, **LONG})

    def queued():
        m = server.metrics()
        return m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] >= 3

    eventually(queued, "some wait")
    for wire in wires[1:]:
        wire.sock.close()
    assert wires[0].reply().json["choices"][0]["text"] == golden
    server.at_rest()
    assert server.metrics()[DISCONNECTS] > before


def test_in_the_middle_of_a_request(server):
    whole = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"model":'
    for cut in range(1, len(whole), 7):
        with server.wire() as wire:
            wire.send(whole[:cut])
    server.at_rest()
    assert server.get("/livez").status == 200


def test_a_reader_that_stops_is_cancelled_and_stalls_nobody(start):
    """Far more text than the kernel's buffers take: eight sequences, twenty alternatives for each token."""
    server = start(TINY, "--kv-pool", "32MiB", "--timeout-write-stall", "1s")
    wires = []
    for _ in range(2):
        wire = server.wire()
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {"model": server.model, "stream": True, **LONG, "prompt": [LONG["prompt"]] * 8, "logprobs": 20}
        wires.append(wire.request("POST", "/v1/completions", body))
    assert server.complete("the sea", max_tokens=50, temperature=0)["usage"]["completion_tokens"] > 0
    eventually(lambda: server.metrics()[DISCONNECTS] == len(wires), "every stalled stream is given up")
    server.at_rest()
    for wire in wires:
        wire.sock.close()
