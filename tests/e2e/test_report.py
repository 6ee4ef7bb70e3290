"""tally report: one file that needs nothing, says what the runs say, and takes no orders from them."""

import base64
import hashlib
import html.parser
import json
import re

import pytest

from browser import drawn
from rig import LONG_RUN, TINY, tally
from test_cli import refused
from test_compare import write_run

SECTIONS = ("validity", "figures", "distributions", "sweep", "timeline", "steps", "gaps", "memory", "plan", "roofline", "slowest", "settings")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m"


class Page(html.parser.HTMLParser):
    """A page as a browser takes it: elements that are closed, ids, and what its scripts and styles hold."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.attributes, self.texts = [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open.pop() != tag:
            assert self.open, tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.texts.setdefault(self.open[-1], []).append(data)


def report(home, *runs):
    out = home / "page.html"
    done = tally("report", *runs, "-o", out)
    assert done.returncode == 0 and done.stdout.startswith(f"saved: {out} ("), (done.stdout, done.stderr)
    text = out.read_text()
    page = Page(text)
    data, script = page.texts["script"]
    (style,) = page.texts["style"]
    # The policy lets the page's own script and style run, whose hashes it names, and nothing else, from nowhere.
    (policy,) = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "default-src" in value]
    digest = lambda text: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
    assert policy == f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; base-uri 'none'; form-action 'none'"
    assert set(re.findall(r"https?://[^\s\"'`)]*", text.replace(data, ""))) == {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    assert not [a for a in page.attributes if a[1] in ("src", "style") or a[1].startswith("on")]
    assert "<" not in data and set(SECTIONS) <= set(page.ids)
    return text, json.loads(data)


def test_page_says_what_the_run_says(tmp_path):
    run = write_run(tmp_path / "20261130-060000-load-c1-r0-00000000", label="load-c1-r0", client_settings={"slo": {"ttft_ms": 300.0}},
                    by_concurrency=[{"level": 1, "open": False}])  # fmt: skip
    text, page = report(tmp_path, run)
    assert len(text) < 1_000_000
    (one,), (series,) = page["runs"], page["series"]
    assert one["head"] == json.loads((run / "run.json").read_text()) and one["name"] == run.name
    lines = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    assert one["requests"]["id"] == [r["id"] for r in lines] and one["requests"]["class"] == [r["class"] for r in lines]
    ttft = sorted(r["events"][0][0] - r["planned_s"] for r in lines)
    assert sorted(one["requests"]["ttft_s"]) == pytest.approx(ttft, rel=1e-4)
    assert series["distributions"]["ttft"]["all"]["x"] == pytest.approx([1e3 * v for v in ttft], rel=1e-4)
    assert series["distributions"]["ttft"]["all"]["share"] == pytest.approx([(i + 1) / 60 for i in range(60)], rel=1e-5)
    assert series["results"]["completed"] == 60 and series["slo"] == {"ttft_ms": 300.0}
    assert set(series["by_class"]) == {"short", "long"} and one["gaps"]["gaps"] == 60
    slowest = max(lines, key=lambda r: r["events"][-1][0] - r["planned_s"])
    assert one["slowest"]["requests"][0]["id"] == slowest["id"] and one["slowest"]["of"] == 60
    for part in ("memory", "steps", "roofline"):
        assert one[part]["why"], part
    assert json.loads(tally("report", run, "--json").stdout) == page


@pytest.mark.sanitizer
def test_runs_take_no_effect(tmp_path):
    run = write_run(tmp_path / "run", label=HOSTILE, model={"path_basename": HOSTILE}, warnings=[HOSTILE], invalid_reasons=[HOSTILE], valid=False,
                    results={HOSTILE: HOSTILE}, machine={"cpu_model": HOSTILE}, argv=[HOSTILE])  # fmt: skip
    lines = (run / "requests.jsonl").read_text().replace('"class": "short"', f'"class": {json.dumps(HOSTILE)}')
    (run / "requests.jsonl").write_text(lines)
    text, page = report(tmp_path, run)
    assert text.count("<script") == text.count("</script") == 2 and "<img" not in text and "\x1b" not in text
    assert HOSTILE in page["series"][0]["by_class"] and page["runs"][0]["head"]["label"] == HOSTILE


def test_arms_levels_and_other_commands(tmp_path):
    home = tmp_path / "runs"
    for arm, slower in (("a", 1.0), ("b", 1.3)):
        for level in (1, 2, 4):
            for repetition in (0, 1):
                write_run(home / f"{arm}-c{level}-r{repetition}", seed=repetition, slower=slower, requests=12, label=f"{arm}-c{level}-r{repetition}",
                          by_concurrency=[{"level": level, "open": False}], results={"output_throughput": 100 * level ** (1 / slower)})  # fmt: skip
    (home / "old").mkdir()
    (home / "old/run.json").write_text('{"schema": 1, "command": "bench engine", "results": {"results": [{"phase": "decode", "tokens_per_second": 12.5}]}}')
    _, page = report(tmp_path, home)
    assert len(page["runs"]) == 13 and [s["name"] for s in page["series"]][:2] == ["a, 1 user", "a, 2 users"]
    assert [len(s["runs"]) for s in page["series"]] == [2] * 6
    assert [(arm["arm"], arm["knee"], len(arm["points"])) for arm in page["sweep"]["arms"]] == [("a", 4, 3), ("b", 4, 3)]
    assert page["sweep"]["arms"][0]["points"][1]["throughput"] == [200, 200, 200]


def test_bad_input_is_told(tmp_path):
    run = write_run(tmp_path / "run")
    refused(64, "report", says="0 arguments")
    refused(66, "report", f"{tmp_path}/none", says="none: no stored run")
    refused(74, "report", run, "-o", f"{tmp_path}/none/page.html", says="none/page.html")
    (run / "run.json").write_text('{"schema": 2}')
    refused(65, "report", run, says=("run.json: schema: 2", "newer than 1"))


def marks(document, section):
    body = re.search(rf'<section id="{section}".*?</section>', document, re.S)[0]
    return len(re.findall(r'<(?:path|circle) class="(?:line|area|fill|dot|ring|heat)', body))


if LONG_RUN:

    def test_pictures_are_drawn(tmp_path, start):
        server = start(TINY)
        runs = tmp_path / "runs"
        done = tally("bench", "load", server.url, "--concurrency", "1,2,4", "--requests", "100", "--workload", "random", "--prompt-tokens", "100",
                     "--output-tokens", "40", "--out", runs)  # fmt: skip
        assert done.returncode == 0, done.stderr
        report(tmp_path, runs)
        document = drawn(f"file://{tmp_path}/page.html", tmp_path)
        assert 'data-drawn="yes"' in document
        for section in ("distributions", "sweep", "timeline", "steps", "gaps", "memory", "plan", "roofline", "slowest"):
            assert marks(document, section) > 0, section
        # What runs say does not run, and a run without anything still makes a page.
        hostile = write_run(tmp_path / "hostile", label=HOSTILE, model={"path_basename": HOSTILE}, results={HOSTILE: HOSTILE}, command=HOSTILE)
        report(tmp_path, hostile)
        document = drawn(f"file://{tmp_path}/page.html", tmp_path)
        assert 'data-drawn="yes"' in document and "<img" not in document and document.count("<script") == 2
        (hostile / "requests.jsonl").write_text("")
        report(tmp_path, hostile)
        assert 'data-drawn="yes"' in drawn(f"file://{tmp_path}/page.html", tmp_path, "--window-size=390,800")
