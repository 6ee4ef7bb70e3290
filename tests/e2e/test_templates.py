"""Chat templates through the real binary: --chat-template, templates that cannot be rendered, and the cases J1 to J10."""

import json
import time

import pytest

from gguf_file import STRING, GgufFile
from rig import ROOT, SHORT, TINY, tally
from test_cli import SMALL, refused

TEMPLATES = sorted((ROOT / "tests/golden/templates").glob("*.jinja"))
GOOD = {"messages": [{"role": "user", "content": "the sea"}], "max_tokens": 4, "temperature": 0}
SECONDS = 20 if SHORT else 5  # much less is promised; a loaded machine is no failure


def model_with(folder, template, name="model.gguf"):
    file = GgufFile(TINY)
    if template is None:
        file.drop("tokenizer.chat_template")
    else:
        file.set("tokenizer.chat_template", STRING, template)
    return file.write(folder / name)


def template_file(folder, source):
    path = folder / "given.jinja"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return path


def answered(model, template, *more):
    done = tally("run", model, "the sea", "--chat-template", template, "--max-tokens", "8", *SMALL, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- --chat-template ----------------------------------------------------------------------------------------------------------


def test_a_file_overrides_the_models_own(tmp_path):
    own = GgufFile(TINY).meta["tokenizer.chat_template"][1]
    plain = tally("run", TINY, "the sea", "--max-tokens", "8", *SMALL).stdout
    assert answered(TINY, template_file(tmp_path, own)) == plain
    # A template that gives the prompt as it is does what --raw does.
    bare = template_file(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert answered(TINY, bare) == tally("run", TINY, "the sea", "--raw", "--max-tokens", "8", *SMALL).stdout != plain
    assert answered(model_with(tmp_path, None), template_file(tmp_path, own)) == plain


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma"])
def test_builtins(tmp_path, name):
    assert answered(model_with(tmp_path, None), f"builtin:{name}")


def test_serve_takes_the_override(start, tmp_path):
    source = "{% if messages[0].content == 'no' %}{{ raise_exception('not\\x1b[31m ' ~ 'today' * 1000) }}{% endif %}x"
    server = start(TINY, *SMALL, "--chat-template", template_file(tmp_path, source))
    reply = server.post("/v1/chat/completions", {"model": server.model, **GOOD})
    assert reply.status == 200 and reply.json["usage"]["prompt_tokens"] == 1
    # J6: the template's own words, cut and escaped.
    reply = server.post("/v1/chat/completions", {"model": server.model, "messages": [{"role": "user", "content": "no"}]})
    assert reply.status == 400 and "refused: not\\x1b[31m today" in reply.error["message"] and len(reply.error["message"]) < 600
    server.at_rest()


@pytest.mark.parametrize("command", ["serve", "run"])
def test_settings_that_are_wrong(tmp_path, command):
    more = {"serve": ("--port", "0"), "run": ("hello",)}[command]
    given = lambda value: (command, TINY, *more, "--chat-template", value)
    refused(64, *given("builtin:vicuna"), says=("--chat-template", "vicuna", "chatml", "gemma", "llama3"))
    refused(64, *given("builtin:"), says=("chatml",))
    refused(66, *given(tmp_path / "missing.jinja"), says=("--chat-template", "missing.jinja"))
    refused(66, *given(tmp_path), says="not a regular file")
    refused(66, *given("/dev/zero"), says="not a regular file")
    for source, says in (
        ("a\nb\n  {% include 'x' %}", ("line 3 column 6", "'include' is not supported")),
        ("{{ x|frobnicate }}", ("line 1 column 6", "filter 'frobnicate'")),
        ("{% for m in messages %}\n{{ m }}", "line 2 column 8"),
        ("ü\xa0{{ 1 + }}", ("line 1 column 10", "expected an expression")),
        (b"a\nb\xff", ("line 2 column 2", "not UTF-8")),
        (b"a\0", ("line 1 column 2", "NUL")),
    ):
        refused(65, *given(template_file(tmp_path, source)), says=("--chat-template", "given.jinja", *((says,) if isinstance(says, str) else says)))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_every_golden_template_loads_from_a_model(tmp_path, path):
    page = json.loads(tally("inspect", model_with(tmp_path, path.read_bytes()), "--json").stdout)
    assert page["template"] == path.read_bytes().decode() and page["template_error"] is None


def test_a_models_own_template_that_cannot_be_rendered(tmp_path, start):
    model = model_with(tmp_path, "{{ bos_token }}\n{%- import 'macros' as m %}")
    says = (str(model), "line 2 column 5", "'import' is not supported", "--chat-template", "chatml, gemma, llama3")
    refused(65, "serve", model, "--port", "0", says=says)
    refused(65, "run", model, "hello", says=says)
    # Plain prompts need no template, and another one can be given.
    raw = tally("run", model, "--raw", "the sea", "--max-tokens", "4", *SMALL)
    assert raw.returncode == 0 and raw.stdout, raw.stderr
    assert answered(model, "builtin:chatml")
    server = start(model, *SMALL, "--chat-template", "builtin:chatml")
    assert server.post("/v1/chat/completions", {"model": server.model, **GOOD}).status == 200


# ---- J: hostile templates and inputs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["{% if x %}" * 50_000, "{{ " + "(" * 6000 + "1" + ")" * 6000 + " }}", "{{ x" + "|trim" * 100_000 + " }}"],
    ids=["ifs", "parentheses", "filters"],
)  # fmt: skip
def test_j1_too_deep_at_load(tmp_path, source):
    begun = time.monotonic()
    refused(65, "serve", TINY, "--port", "0", "--chat-template", template_file(tmp_path, source), says=("too deep", "line 1 column"))
    refused(65, "serve", model_with(tmp_path, source), "--port", "0", says="too deep")
    assert time.monotonic() - begun < SECONDS


FOUR_LOOPS = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% for d in range(10000) %}" + "{% endfor %}" * 4
WHEN_ASKED = [  # the first message chooses
    ("j2 range", "{% for i in range(10**12) %}{% endfor %}", "range too big"),
    ("j2 loops", FOUR_LOOPS, "budget of"),
    ("j3 doubling", "{% set ns = namespace(s='abcdefgh') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "live bytes"),
    ("j3 repetition", "{{ 'a' * 10**10 }}", "live bytes"),
    ("j3 output", "{% set s = 'a' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}", "output bytes"),
    ("j4 itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested calls"),
    ("j4 mutual", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", "nested calls"),
    ("j5 class", "{{ ''.__class__.__mro__ }}", "has no attribute"),
    ("j5 private", "{{ messages[0]._x.y }}", "has no attribute"),
    ("j5 function", "{{ open('/etc/passwd') }}", "undefined"),
    ("j6 raise", "{{ raise_exception('Only <b>one</b>\\nsystem message') }}", "Only <b>one</b>\\x0asystem message"),
]


@pytest.fixture(scope="module")
def hostile(start_shared, tmp_path_factory):
    """A server whose template does what the first message names."""
    source = "".join(f"{{% if messages[0].content == '{name}' %}}{body}{{% endif %}}" for name, body, _ in WHEN_ASKED)
    source += "{% if tools %}{{ tools|tojson }}{% endif %}{{ messages|length }}"
    return start_shared(TINY, *SMALL, "--chat-template", template_file(tmp_path_factory.mktemp("hostile"), source))


def chat(server, content="x", **more):
    return server.post("/v1/chat/completions", {"model": server.model, "messages": [{"role": "user", "content": content}], "max_tokens": 2, **more})


def still_well(server):
    assert server.get("/livez").status == 200 and chat(server).status == 200
    server.at_rest()


@pytest.mark.parametrize(("name", "says"), [(name, says) for name, _, says in WHEN_ASKED])
def test_j2_to_j6_the_request_fails_alone(hostile, name, says):
    begun = time.monotonic()
    reply = chat(hostile, name)
    assert time.monotonic() - begun < SECONDS
    assert (reply.status, reply.error["code"]) == (400, "template_error"), reply
    assert says in reply.error["message"] and len(reply.error["message"]) < 700
    still_well(hostile)


@pytest.mark.parametrize("word", ["include", "import", "extends", "from", "block"])
def test_j4_other_files_are_refused_at_load(tmp_path, word):
    source = template_file(tmp_path, f"\n{{% {word} '/etc/passwd' %}}")
    refused(65, "serve", TINY, "--port", "0", "--chat-template", source, says=("line 2 column 4", f"'{word}' is not supported"))


def test_j7_the_request_cannot_replace_the_template_or_its_inputs(hostile):
    reply = chat(hostile, chat_template="{{ 1 }}")
    assert (reply.status, reply.error["param"]) == (400, "chat_template")
    for name in ("messages", "tools", "add_generation_prompt"):
        reply = chat(hostile, chat_template_kwargs={name: []})
        assert (reply.status, reply.error["param"]) == (400, "chat_template_kwargs") and name in reply.error["message"], reply
    assert chat(hostile, chat_template_kwargs={"enable_thinking": False}).status == 200
    still_well(hostile)


def test_j8_strange_messages(hostile):
    def answer(messages):
        return hostile.post("/v1/chat/completions", {"model": hostile.model, "messages": messages, "max_tokens": 2})

    user = {"role": "user", "content": "x"}
    assert answer([]).status == 400
    assert answer([{"role": "narrator", "content": "x"}]).status == 400
    for content in (5, 1.5, True, {}):
        assert answer([{"role": "user", "content": content}]).status == 400, content
    many = answer([{"role": "user", "content": [{"type": "text", "text": "p"}] * 10_000}])
    assert many.status == 400
    two = answer([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, user])
    assert two.status == 200 or two.error["code"] == "template_error"
    still_well(hostile)


def nested(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_j9_tools_that_are_too_deep_or_no_number(hostile):
    def with_tool(parameters):
        return {"type": "function", "function": {"name": "f", "parameters": parameters}}

    reply = chat(hostile, tools=[with_tool(nested(100))])
    assert reply.status == 400, reply
    body = {"model": hostile.model, "messages": [{"role": "user", "content": "x"}], "tools": [with_tool({"minimum": 0})]}
    reply = hostile.post("/v1/chat/completions", json.dumps(body).replace('"minimum": 0', '"minimum": NaN').encode())
    assert reply.status == 400
    still_well(hostile)


def test_j10_templates_that_are_no_text(tmp_path):
    given = lambda source: ("serve", TINY, "--port", "0", "--chat-template", template_file(tmp_path, source))
    refused(65, *given(b"ab\0c"), says=("line 1 column 3", "NUL"))
    refused(65, *given(b"\xed\xa0\x80"), says=("line 1 column 1", "not UTF-8"))
    refused(65, *given(b"a" * ((1 << 20) + 1)), says=("1048577", "1048576"))
    for source, says in ((b"ab\0c", "NUL"), (b"a\xff", "UTF-8"), (b"a" * ((1 << 20) + 1), "1048576")):
        refused(65, "serve", model_with(tmp_path, source), "--port", "0", says=says)
    huge = tmp_path / "huge.jinja"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    begun = time.monotonic()
    refused(65, "serve", TINY, "--port", "0", "--chat-template", huge, says=("1073741824", "1048576"))
    assert time.monotonic() - begun < SECONDS
