"""W7: thousands of clients slower than the limits are each told 408 at their deadline, and good ones do not notice them."""

import heapq
import json
import multiprocessing
import resource
import selectors
import socket
import time
from collections import Counter

from rig import LONG_RUN, TINY, Wire, eventually

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
# What is sent at once, what follows a byte at a time, and after how many seconds each: never when the server hangs up, which would
# cost the client its answer.
WAYS = {"head": (b"", HEAD, 4), "body": (HEAD + b"Content-Length: 5000\r\n\r\n", b"{" * 5000, 10)}
ENDED_AFTER_S = {"head": 10, "body": 5}  # from connecting on: the limits' defaults
LATE_S = 5  # what a loaded machine may add


class SlowClient:
    def __init__(self, port, way):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sock.setblocking(False)
        self.way, self.begin = way, time.monotonic()
        at_once, self.rest, self.every_s = WAYS[way]
        self.sock.send(at_once + self.rest[:1])
        self.sent, self.due = 1, self.begin + self.every_s

    def drip(self):
        self.due += self.every_s
        self.sent += 1
        try:
            self.sock.send(self.rest[self.sent - 1 : self.sent])
        except OSError:
            pass  # it has been ended meanwhile, as is read in a moment

    def outcome(self):
        """Once something has come: the status and whether it came in time."""
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b"was reset"
        waited = time.monotonic() - self.begin
        in_time = ENDED_AFTER_S[self.way] - 0.5 <= waited <= ENDED_AFTER_S[self.way] + LATE_S
        return self.way, data.split(b" ")[1:2] == [b"408"], "in time" if in_time else f"after {waited:.1f} s"


def attack(port, count, seconds, opened, told):
    """Keeps `count` slow clients connected, each replaced when it has been ended; tells how they ended."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    selector, outcomes, due = selectors.EpollSelector(), Counter(), []

    def connect(way):
        client = SlowClient(port, way)
        selector.register(client.sock, selectors.EVENT_READ, client)
        heapq.heappush(due, (client.due, id(client), client))

    def run():
        for i in range(count):
            connect("head" if i % 2 else "body")
        opened.set()
        end = time.monotonic() + seconds
        while selector.get_map():
            for key, _ in selector.select(0.05):
                outcomes[key.data.outcome()] += 1
                selector.unregister(key.fileobj)
                key.fileobj.close()
                if time.monotonic() < end:
                    connect(key.data.way)
            while due and due[0][0] <= time.monotonic():
                _, name, client = heapq.heappop(due)
                if client.sock.fileno() >= 0:
                    client.drip()
                    heapq.heappush(due, (client.due, name, client))

    try:
        run()
    finally:
        opened.set()
        told.put(outcomes)


def attacked(start, count, seconds):
    """Seconds of good requests by turns to a server under attack and to one that is not, and how the attackers ended."""
    flags = ("--kv-pool", "4MiB", "--limit-connections", 2 * count)  # those that were told 408 linger
    victim, other = start(TINY, *flags), start(TINY, *flags)
    context = multiprocessing.get_context("spawn")
    opened, told = context.Event(), context.Queue()
    attacker = context.Process(target=attack, args=(victim.port, count, seconds, opened, told), daemon=True)
    attacker.start()
    assert opened.wait(60)
    body = json.dumps({"model": victim.model, "prompt": "the light of the sea", "max_tokens": 16, "temperature": 0, "ignore_eos": True}).encode()
    times, answers = {victim: [], other: []}, set()
    peak, end = 0, time.monotonic() + seconds
    wires = {server: Wire(server.port) for server in times}
    while time.monotonic() < end:
        for server, wire in wires.items():
            if len(times[server]) % 900 == 899:  # before the server ends the connection by itself
                wire.sock.close()
                wire = wires[server] = Wire(server.port)
            begin = time.perf_counter()
            reply = wire.request("POST", "/v1/completions", body).reply()
            times[server].append(time.perf_counter() - begin)
            assert reply.status == 200, reply
            answers.add(reply.json["choices"][0]["text"])
        if len(times[other]) % 100 == 0:
            peak = max(peak, victim.metrics()['tally_http_connections{state="reading"}'])
    outcomes = told.get(timeout=120)
    attacker.join()
    assert len(answers) == 1
    eventually(lambda: victim.metrics()['tally_http_connections{state="reading"}'] == 0, "all are gone")
    victim.at_rest()
    return times[victim], times[other], peak, outcomes


if LONG_RUN:

    def test_five_thousand_slow_clients(start):
        count = 5000
        under, free, peak, outcomes = attacked(start, count, 30)
        assert set(outcomes) == {("head", True, "in time"), ("body", True, "in time")}, outcomes
        assert outcomes.total() >= count and peak > 0.9 * count, (outcomes, peak)
        p99 = [sorted(times)[len(times) * 99 // 100] for times in (under, free)]
        print(f"P99 of {len(under)}: {1000 * p99[0]:.2f} ms, without {1000 * p99[1]:.2f} ms")
        assert p99[0] <= 1.1 * p99[1], p99
