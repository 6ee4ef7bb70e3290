"""The page at `/`: served by the program itself, sober in what it says, and drawn by a real browser with ./check --long."""

import http.server
import re
import subprocess
import threading
import urllib.request

import pytest

from browser import drawn, picture
from rig import LONG_RUN, TINY

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">javascript:'
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
          "frame-ancestors 'none'; base-uri 'none'")  # fmt: skip


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(TINY, "--kv-pool", "4MiB", "--model-name", HOSTILE)


def test_page_and_its_files(server):
    """I6: what the page is does not depend on what the server serves."""
    page = server.get("/").body.decode()
    files = re.findall(r'(?:src|href)="(assets/[^"]+)"', page)
    assert sorted(files) == ["assets/dashboard.css", "assets/dashboard.js", "assets/uplot-license.txt"]
    for path in ("/", *(f"/{file}" for file in files)):
        reply = server.get(path)
        assert (reply.status, reply.headers["content-security-policy"]) == (200, POLICY)
        assert (reply.headers["x-content-type-options"], reply.headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert b"alert(" not in reply.body
    for path in ("/assets/nothing.js", "/assets/"):
        assert server.get(path).status == 404
    # What it asks for is there, for anyone who may ask.
    for path in re.findall(r'href="((?:metrics|v1)[^"]*)"', page):
        assert server.get(f"/{path}").status == 200, path


if LONG_RUN:

    def test_browser_draws_it(server, tmp_path):
        over = threading.Event()

        def load():
            while not over.is_set():
                prompt = "the light of the sea " * 10
                assert server.post("/v1/completions", {"model": HOSTILE, "prompt": prompt, "max_tokens": 60, "ignore_eos": True}).status == 200

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            document = drawn(server.url, tmp_path)
            pictures = [picture(server.url, tmp_path, *size, *flags) for size, flags in
                        (((1280, 1700), ()), ((390, 2400), ()), ((1280, 1700), ("--blink-settings=preferredColorScheme=0",)))]  # fmt: skip
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert 'data-drawn="yes"' in document
        assert "<img" not in document and document.count("<script") == 1, "names are text"
        assert "&lt;/script&gt;&lt;script&gt;alert(1)" in document
        for canvas, mark in (("ttft", "values"), ("itl", "values"), ("timeline", "steps"), ("map", "blocks")):
            found = re.search(rf'<canvas id="{canvas}"[^>]*data-{mark}="(\d+)"', document)
            assert found and int(found[1]) > 0, canvas
        assert document.count('class="u-wrap"') == 3 and document.count('class="gauge"') == 4
        assert all(png.startswith(b"\x89PNG") and len(png) > 20_000 for png in pictures), "something is drawn"

    class Proxy(http.server.BaseHTTPRequestHandler):
        """What docs/dashboard.md asks of a proxy: a path of its own, and the header."""

        def do_GET(self):
            assert self.path.startswith("/tally/"), self.path
            request = urllib.request.Request(self.server.target + self.path.removeprefix("/tally"), headers={"Authorization": "Bearer ka"})
            with urllib.request.urlopen(request) as answer:
                self.send_response(answer.status)
                for name in ("Content-Type", "Content-Security-Policy", "Content-Length"):
                    if name in answer.headers:
                        self.send_header(name, answer.headers[name])
                self.end_headers()
                self.wfile.write(answer.read())

        def log_message(self, *_):
            pass

    def test_behind_a_proxy_that_has_the_key(start, tmp_path):
        keys = tmp_path / "keys"
        keys.write_text("admin:ka\nuser:ku\n")
        keys.chmod(0o600)
        server = start(TINY, "--kv-pool", "4MiB", "--api-key-file", keys)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
            proxy.target = server.url
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            document = drawn(f"http://127.0.0.1:{proxy.server_port}/tally/", tmp_path)
            proxy.shutdown()
        assert 'data-drawn="yes"' in document and document.count('class="gauge"') == 4 and 'data-blocks="' in document

    def test_promtool_reads_the_metrics(start):
        """What it says of names is of vLLM's and llama.cpp's; of ours there is nothing to say, and nothing fails to parse."""
        server = start(TINY, "--kv-pool", "4MiB", "--metrics-compat", "vllm-legacy,llamacpp")
        server.complete("the sea", max_tokens=5)
        done = subprocess.run(["promtool", "check", "metrics"], input=server.get("/metrics").body, capture_output=True, timeout=60)
        assert done.returncode in (0, 3), done.stderr  # 3: remarks
        assert [line for line in done.stderr.decode().splitlines() if not line.startswith(("vllm:", "llamacpp:"))] == []
