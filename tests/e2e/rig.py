"""What every end to end test stands on: the binary as a child process, and clients that hide nothing of the wire."""

import json
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = (ROOT / os.environ.get("TALLY_BINARY", "build/release/tally")).resolve()
SHORT = os.environ.get("TALLY_SHORT") == "1"  # a sanitizer's binary: slower, bigger
LONG_RUN = os.environ.get("TALLY_LONG") == "1"  # ./check --long
SMOL = ROOT / "models/smollm2-135m-instruct-q4_1.gguf"
TINY = ROOT / "tests/golden/tiny/tiny-q-q4_0.gguf"
DEADLINE_S = 120  # of everything that has to happen; a loaded machine is no failure
SANITIZER_REPORT = re.compile(r"(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:)")


def clean_environment(extra=None):
    """The caller's environment without settings of tally; each start would take 0.2 s to tune, and bits do not depend on it.
    Benches leave no runs behind."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TALLY_")} | {"TALLY_TUNE": "off", "TALLY_STORE": "off"}
    env.update(extra or {})
    return env


def tally(*arguments, env=None, stdin=b"", timeout=DEADLINE_S):
    """Runs one command to its end: the completed process, with stdout and stderr as text."""
    done = subprocess.run(
        [str(BINARY), *map(str, arguments)], input=stdin, capture_output=True, cwd=ROOT, env=clean_environment(env), timeout=timeout
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert not SANITIZER_REPORT.search(done.stderr), done.stderr
    return done


def eventually(condition, what):
    """Waits until `condition()` is true and returns its value."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_S} s: {what}")


class Reply:
    """One HTTP answer that was read to its end."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]

    def __repr__(self):
        return f"Reply({self.status}, {self.headers}, {self.body[:500]!r})"


class Wire:
    """One TCP connection to a server: bytes out, parsed answers in."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.chunk_left = None  # of a chunked body: bytes left of the chunk at hand

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)
        return self

    def request(self, method, path, body=None, headers=()):
        """Sends one request; a body that is not bytes goes as JSON."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers)]
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            lines += [f"Content-Length: {len(data)}"]
            if not any(k.lower() == "content-type" for k, _ in headers):
                lines += ["Content-Type: application/json"]
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    def reset(self):
        """Ends the connection with RST, as a killed client does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def more(self):
        data = self.sock.recv(65536)
        self.buffer += data
        return bool(data)

    def until(self, mark):
        while mark not in self.buffer:
            if not self.more():
                raise EOFError(f"closed before {mark!r}: {self.buffer[:300]!r}")
        head, self.buffer = self.buffer.split(mark, 1)
        return head

    def exactly(self, count):
        while len(self.buffer) < count:
            if not self.more():
                raise EOFError(f"closed {count - len(self.buffer)} bytes early")
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def head(self):
        """Reads the head of an answer: (status, headers with lower-case names)."""
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            assert name.lower() not in headers, f"header field twice: {name}"
            headers[name.lower()] = value.strip()
        return int(lines[0].split()[1]), headers

    def pieces(self, headers):
        """Yields the body as it comes, by whatever framing the head told."""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(self.until(b"\r\n"), 16):
                yield self.exactly(size)
                assert self.exactly(2) == b"\r\n"
            assert self.exactly(2) == b"\r\n"
        elif "content-length" in headers:
            yield self.exactly(int(headers["content-length"]))
        else:
            while self.buffer or self.more():
                data, self.buffer = self.buffer, b""
                yield data

    def reply(self, has_body=True):
        status, headers = self.head()
        return Reply(status, headers, b"".join(self.pieces(headers)) if has_body else b"")

    def closed(self):
        """True once the server has ended the connection and sent nothing more."""
        try:
            return self.buffer == b"" and self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


class Events:
    """The server-sent events of one streamed answer, parsed strictly."""

    def __init__(self, wire, loads=json.loads):
        self.wire, self.loads = wire, loads
        self.status, self.headers = wire.head()
        self.rest = b""
        self.pieces = wire.pieces(self.headers)
        self.is_done = False
        if self.status != 200:
            self.refused = Reply(self.status, self.headers, b"".join(self.pieces))

    def __iter__(self):
        assert self.status == 200, self.refused
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        for piece in self.pieces:
            self.rest += piece
            while b"\n\n" in self.rest:
                event, self.rest = self.rest.split(b"\n\n", 1)
                event = event.lstrip(b"\n")  # heartbeats
                if not event:
                    continue
                assert not self.is_done, f"after [DONE]: {event!r}"
                assert event.startswith(b"data: ") and b"\n" not in event, event
                data = event[len(b"data: ") :].decode()
                if data == "[DONE]":
                    self.is_done = True
                else:
                    yield self.loads(data)
        assert self.is_done and not self.rest.strip(b"\n"), f"the stream ended without [DONE]: {self.rest!r}"


class Streamed:
    """A streamed answer put together again, with the rules of its order checked."""

    def __init__(self, events):
        self.text, self.finish_reason, self.stop_reason, self.usage, self.error = "", None, None, None, None
        self.logprobs, self.chunks = [], []
        for chunk in events:
            self.chunks.append(chunk)
            self.add(chunk)
        self.last = self.chunks[-1] if self.chunks else None

    def add(self, chunk):
        if "error" in chunk:
            self.error = chunk["error"]
            return
        assert self.error is None and chunk["id"] == self.chunks[0]["id"]
        if "usage" in chunk:
            assert chunk["choices"] == [] and self.finish_reason is not None
            self.usage = chunk["usage"]
        for choice in chunk["choices"]:
            assert self.finish_reason is None, "an event after the finish_reason"
            if "delta" in choice:
                assert ("role" in choice["delta"]) == (len(self.chunks) == 1)
                self.text += choice["delta"].get("content", "")
            else:
                self.text += choice["text"]
            if choice["logprobs"] is not None:
                self.logprobs.append(choice["logprobs"])
            self.finish_reason = choice["finish_reason"]
            self.stop_reason = choice.get("stop_reason")


class Server:
    """`tally serve` on a free loopback port."""

    def __init__(self, model, *flags, env=None, ready=True, stderr=subprocess.PIPE):
        self.stderr_lines = []
        if model == TINY and "--threads" not in flags:
            flags += ("--threads", "1")  # a second thread only waits, and on a loaded machine for long
        self.process = subprocess.Popen(
            [str(BINARY), "serve", str(model), "--port", "0", *map(str, flags)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=clean_environment(env), text=True,
        )
        self.stdout_queue = queue.Queue()
        pipes = [(self.process.stdout, self.stdout_queue.put), (self.process.stderr, self.stderr_lines.append)]
        self.readers = [threading.Thread(target=self.collect, args=pipe, daemon=True) for pipe in pipes if pipe[0]]
        for reader in self.readers:
            reader.start()
        try:
            self.model = Path(model).stem
            self.port = self.read_port()
            if ready:
                self.wait_ready()
        except BaseException:
            self.kill()
            raise

    @staticmethod
    def collect(pipe, put):
        for line in pipe:
            put(line)
        put("")  # the end

    @property
    def stderr(self):
        return "".join(self.stderr_lines)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def read_port(self):
        line = self.stdout_queue.get(timeout=DEADLINE_S)
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", line)
        if not found:
            self.process.wait(DEADLINE_S)
            raise AssertionError(f"exit {self.process.returncode}, stdout {line!r}, stderr {self.stderr}")
        return int(found[1])

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, f"exit {self.process.returncode}: {self.stderr}"
            return self.get("/readyz").status == 200

        eventually(ready, "/readyz is 200")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=DEADLINE_S):
        """Waits for the end of the process; its exit code."""
        code = self.process.wait(timeout)
        for reader in self.readers:
            reader.join(DEADLINE_S)
        assert not SANITIZER_REPORT.search(self.stderr), self.stderr
        return code

    def stop(self):
        """SIGTERM, which must end the process with 0 if it has not ended yet."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        code = self.wait()
        assert code == 0, f"exit {code}: {self.stderr}"

    def wire(self):
        return Wire(self.port)

    def get(self, path, headers=()):
        with self.wire() as wire:
            return wire.request("GET", path, headers=headers).reply()

    def post(self, path, body, headers=()):
        with self.wire() as wire:
            return wire.request("POST", path, body, headers).reply()

    def complete(self, prompt, **options):
        """One answer of /v1/completions, which must be 200."""
        reply = self.post("/v1/completions", {"model": self.model, "prompt": prompt, **options})
        assert reply.status == 200, reply
        return reply.json

    def events(self, wire, path, body):
        wire.request("POST", path, {"model": self.model, "stream": True, **body})
        return Events(wire)

    def stream(self, path, body):
        with self.wire() as wire:
            return Streamed(self.events(wire, path, body))

    def metrics(self):
        """All samples of /metrics: {'name{labels}': value}, model_name and engine left out."""
        reply = self.get("/metrics")
        assert reply.status == 200, reply
        samples = {}
        for line in reply.body.decode().splitlines():
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name, _, labels = series.partition("{")
                kept = [l for l in re.findall(r'\w+="(?:[^"\\]|\\.)*"', labels) if not l.startswith(("model_name=", "engine="))]
                samples[name + ("{" + ",".join(kept) + "}" if kept else "")] = float(value)
        return samples

    def blocks(self):
        m = self.metrics()
        return {state: m[f'tally_kv_blocks{{state="{state}"}}'] for state in ("free", "held", "cached")}

    def pool_blocks(self):
        info = next(k for k in self.metrics() if k.startswith("vllm:cache_config_info"))
        return int(re.search(r'num_gpu_blocks="(\d+)"', info)[1])

    def at_rest(self):
        """Waits until nothing runs, waits or holds a block; then every block of the pool is free or cached."""

        def idle():
            m = self.metrics()
            names = ("vllm:num_requests_running", "vllm:num_requests_waiting", 'tally_kv_blocks{state="held"}')
            return all(m[name] == 0 for name in names)

        eventually(idle, f"nothing runs: {self.blocks()}")
        blocks = self.blocks()
        assert blocks["free"] + blocks["cached"] == self.pool_blocks(), blocks
        return blocks
