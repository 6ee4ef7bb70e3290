"""tally top: a line where there is no terminal, a page on one, and the terminal as it was afterwards."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from rig import BINARY, DEADLINE_S, TINY, clean_environment, tally
from test_cli import refused


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(TINY)


def test_once(server):
    server.complete("a", max_tokens=3, ignore_eos=True)
    line = tally("top", server.url, "--once")
    assert line.returncode == 0 and line.stdout.startswith("running 0 waiting 0 KV ") and line.stdout.count("\n") == 1, line.stdout
    page = json.loads(tally("top", server.url, "--once", "--json").stdout)
    assert page["running"] == 0 and page["steps"] > 0 and set(page["accounts"]) == {"weights", "kv", "activations", "runtime"}
    assert page["blocks"]["free"] > 0 and set(page["quantiles"]) == {"TTFT", "ITL", "E2E"}


class Terminal:
    """tally top on a terminal of its own."""

    def __init__(self, url, columns=80, rows=24, **env):
        self.main, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(child)
        self.child = child
        self.process = subprocess.Popen([str(BINARY), "top", url, "--interval", "100ms"], stdin=child, stdout=child, stderr=child,
                                        env=clean_environment(env))  # fmt: skip
        self.seen = b""

    def until(self, mark):
        end = time.monotonic() + DEADLINE_S
        while mark not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.main], [], [], 0.1)[0]:
                self.seen += os.read(self.main, 65536)

    def over(self):
        """The exit code, once the terminal is as it was."""
        self.until(b"\x1b[?1049l")
        code = self.process.wait(DEADLINE_S)
        assert self.seen.index(b"\x1b[?25h") > self.seen.index(b"\x1b[?1049h")
        assert termios.tcgetattr(self.child) == self.before
        os.close(self.main), os.close(self.child)
        return code


def test_page_and_q(server):
    terminal = Terminal(server.url)
    terminal.until(b"blocks")
    os.write(terminal.main, b"q")
    assert terminal.over() == 0
    assert b"\x1b[38;5;" in terminal.seen and b"tokens/s" in terminal.seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_the_terminal_as_it_was(server, number):
    terminal = Terminal(server.url, columns=30, rows=8, NO_COLOR="1")
    terminal.until(b"running")
    terminal.process.send_signal(number)
    assert terminal.over() == 130
    assert b"\x1b[38;5;" not in terminal.seen


def test_bad_input():
    assert refused(64, "top")
    assert refused(64, "top", "nowhere")
    assert refused(69, "top", "http://127.0.0.1:9")
