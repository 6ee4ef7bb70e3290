"""Structured output: response_format and structured_outputs on the real model."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rig import LONG_RUN, SHORT, SMOL, TINY, eventually

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog", "fish"]}, "maxItems": 3},
        "address": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["zip"]},
    },
    "required": ["name", "age", "pets", "address"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "Describe a person as JSON."}]
POINT = {"type": "object", "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}}, "required": ["x"], "additionalProperties": False}


@pytest.fixture(scope="module")
def server(start_shared):
    if SHORT:
        return start_shared(TINY, "--kv-pool", "4MiB")
    return start_shared(SMOL, "--kv-pool", "96MiB", "--memory", "2GiB")


def schema(value, name="answer"):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": value, "strict": True}}}


def validate(value, by):
    """The keywords that the schemas here have."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    if "enum" in by:
        assert value in by["enum"]
    if "type" in by:
        assert isinstance(value, kinds[by["type"]]) and (by["type"] == "boolean" or not isinstance(value, bool)), (value, by)
    if isinstance(value, dict):
        assert set(by.get("required", ())) <= set(value)
        assert by.get("additionalProperties", True) or set(value) <= set(by["properties"])
        for key, member in value.items():
            validate(member, by.get("properties", {}).get(key, {}))
    if isinstance(value, list):
        assert len(value) <= by.get("maxItems", len(value))
        for item in value:
            validate(item, by.get("items", {}))
    if isinstance(value, str):
        assert len(value) <= by.get("maxLength", len(value)) and re.search(by.get("pattern", ""), value)
    if isinstance(value, int):
        assert by.get("minimum", value) <= value <= by.get("maximum", value)


def ask(server, path=CHAT, **body):
    reply = server.post(path, {"model": server.model, "max_tokens": 400, **({"messages": ASKED} if path == CHAT else {}), **body})
    assert reply.status == 200, reply
    return reply.json


def texts(answer):
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop", choice
    return [c["message"]["content"] if "message" in c else c["text"] for c in answer["choices"]]


def structured(**constraint):
    return {"structured_outputs": constraint}


def test_a_schema_holds_for_every_seed(server):
    seeds = range(40 if LONG_RUN else 12)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda seed: ask(server, seed=seed, temperature=1, **schema(PERSON)), seeds))
    said = [text for answer in answers for text in texts(answer)]
    for text in said:
        validate(json.loads(text), PERSON)
    assert len(set(said)) > len(said) / 2, "sampled, and not the same thing each time"


def test_every_kind_of_constraint(server):
    for seed in range(3):
        options = {"temperature": 1, "seed": seed}
        assert re.fullmatch(r"[0-9]{3}-(red|green)", texts(ask(server, **options, **structured(regex="[0-9]{3}-(red|green)")))[0])
        assert texts(ask(server, **options, **structured(choice=["yes", "no", 'a "b"\n\\c'])))[0] in ("yes", "no", 'a "b"\n\\c')
        tree = texts(ask(server, TEXT, prompt="(", **options, **structured(grammar='root ::= "(" root? ")" | [a-c]{1,4}')))[0]
        inner = tree.strip("()")
        assert tree == "(" * tree.count("(") + inner + ")" * tree.count("(") and re.fullmatch("[a-c]{0,4}", inner)
        validate(json.loads(texts(ask(server, **options, **structured(json=POINT)))[0]), POINT)
        validate(json.loads(texts(ask(server, **options, **structured(json=json.dumps(POINT))))[0]), POINT)
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<p>", "content": {"type": "json_schema", "json_schema": POINT}, "end": "</p>"}}
    for constraint in ({"response_format": tag}, structured(structural_tag=json.dumps(tag))):
        text = texts(ask(server, temperature=1, seed=1, **constraint))[0]
        validate(json.loads(text.removeprefix("<p>").removesuffix("</p>")), POINT)
        assert text.startswith("<p>") and text.endswith("</p>")


def test_json_object(server):
    answer = ask(server, temperature=0, response_format={"type": "json_object"})
    text = answer["choices"][0]["message"]["content"]
    if answer["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)
    assert text.lstrip().startswith("{")


def test_cut_by_max_tokens_is_length(server):
    answer = ask(server, temperature=0, max_tokens=5, **schema(PERSON))
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_min_tokens_and_ignore_eos_give_way_where_the_text_is_complete(server):
    for more in ({"ignore_eos": True}, {"min_tokens": 50}):
        assert texts(ask(server, temperature=1, seed=3, **more, **structured(regex="ab?c")))[0] in ("abc", "ac")
        assert texts(ask(server, temperature=1, seed=3, max_tokens=60, min_tokens=1, **structured(regex="a{1,9}")))[0].strip("a") == ""


def test_streams_choices_and_beams(server):
    options = {"messages": ASKED, "temperature": 1, "seed": 4, "max_tokens": 400, **schema(POINT)}
    streamed = server.stream(CHAT, options)
    assert streamed.finish_reason == "stop" and streamed.text == texts(ask(server, **options))[0]
    three = texts(ask(server, n=3, **options))
    assert len(three) == 3 and three[0] == streamed.text
    for text in three:
        validate(json.loads(text), POINT)
    for text in texts(ask(server, n=2, best_of=3, use_beam_search=True, max_tokens=40, **structured(regex="(left|right) [0-9]{2}"))):
        assert re.fullmatch("(left|right) [0-9]{2}", text)


def test_neighbours_keep_their_bits(server):
    """An unconstrained request gives the same bytes beside constrained ones; a constrained one, the same as alone."""
    plain = {"prompt": "The harbour was quiet when", "max_tokens": 32, "seed": 9, "temperature": 1, "logprobs": 2, "ignore_eos": True}
    bound = {"seed": 11, "temperature": 1, "logprobs": True, **schema(PERSON)}
    alone = [ask(server, TEXT, **plain)["choices"], ask(server, **bound)["choices"]]
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(ask, server, TEXT, **plain) if i % 2 == 0 else pool.submit(ask, server, **bound) for i in range(6)]
        others = [pool.submit(ask, server, seed=i, temperature=1, **structured(regex="[a-z ]{40,60}")) for i in range(4)]
        assert [job.result()["choices"] for job in jobs] == alone * 3
        assert all(len(texts(o.result())[0]) >= 40 for o in others)


def test_logprobs_are_of_the_raw_logits(server):
    free = ask(server, TEXT, prompt="One, two,", max_tokens=1, temperature=0, logprobs=20)["choices"][0]["logprobs"]
    word = next(t for t in list(free["top_logprobs"][0])[1:] if re.fullmatch("[ A-Za-z0-9]+", t))
    bound = ask(server, TEXT, prompt="One, two,", max_tokens=1, temperature=0, logprobs=20, **structured(choice=[word]))["choices"][0]
    assert bound["text"] == word
    assert bound["logprobs"]["token_logprobs"][0] == free["top_logprobs"][0][word]
    assert bound["logprobs"]["top_logprobs"] == free["top_logprobs"]


RULES = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000)) + 'r5000 ::= "a"\n'
DEEP = {"type": "string"}
for _ in range(3):
    DEEP = {"type": "object", "properties": {"a": DEEP}, "required": ["a"]}


def nested(schema, depth):
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def text_of(length, kind="maxLength"):
    return {"type": "string", kind: length}


BAD = {  # the field's value, the status, the param, what the message says
    "type-5": (schema({"type": 5}), "response_format.json_schema.schema", "schema.type is 5"),
    "type-inside": (schema({"properties": {"a": {"type": "strin"}}}), "response_format.json_schema.schema", "schema.properties.a.type"),
    "remote-ref": (schema({"$ref": "http://127.0.0.1:1/x.json"}), "response_format.json_schema.schema", "$ref"),
    "lost-ref": (schema({"$ref": "#/$defs/x"}), "response_format.json_schema.schema", "which is not there"),
    "ref-cycle": (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "response_format.json_schema.schema", ""),
    "ref-self": (schema({"$ref": "#"}), "response_format.json_schema.schema", ""),
    "max-length": (schema(text_of(10**9)), "response_format.json_schema.schema", "at most 8192"),
    "not": (schema({"not": {"type": "null"}}), "response_format.json_schema.schema", "not is not supported"),
    "if-inside": (schema({"items": {"if": {}}}), "response_format.json_schema.schema", "schema.items.if"),
    "unsatisfiable": (schema({"type": "integer", "minimum": 5, "maximum": 3}), "response_format.json_schema.schema", ""),
    "unsatisfiable-length": (schema({"type": "string", "minLength": 5, "maxLength": 3}), "response_format.json_schema.schema", "minLength 5"),
    "unsatisfiable-enum": (schema({"enum": []}), "response_format.json_schema.schema", "enum"),
    "unsatisfiable-member": (schema({"type": "object", "properties": {"a": False}, "required": ["a"]}), "response_format.json_schema.schema", ""),
    "false": (schema(False), "response_format.json_schema.schema", ""),
    "not-a-schema": (schema(["x"]), "response_format.json_schema.schema", "must be a schema"),
    "schema-text": (structured(json='{"type":'), "structured_outputs.json", "JSON"),
    "left-recursion": (structured(grammar='root ::= root "a" | "b"'), "structured_outputs.grammar", ""),
    "only-empty": (structured(grammar='root ::= ("")*'), "structured_outputs.grammar", "empty text"),
    "undefined-rule": (structured(grammar="root ::= other"), "structured_outputs.grammar", "other"),
    "no-root": (structured(grammar='a ::= "b"'), "structured_outputs.grammar", "root"),
    "empty-grammar": (structured(grammar=""), "structured_outputs.grammar", ""),
    "parentheses": (structured(grammar="root ::= " + "(" * 30000 + '"a"' + ")" * 30000), "structured_outputs.grammar", "30000 deep"),
    "regex-parentheses": (structured(regex="(" * 30000 + "a" + ")" * 30000), "structured_outputs.regex", "30000 deep"),
    "regex-unclosed": (structured(regex="(a"), "structured_outputs.regex", ""),
    "regex-lookahead": (structured(regex="(?=a)b"), "structured_outputs.regex", "Lookahead"),
    "regex-repeat": (structured(regex="a{1,1000000000}"), "structured_outputs.regex", "at most 8192"),
    "structural-tag": (structured(structural_tag="{}"), "structured_outputs.structural_tag", ""),
    "too-long": (structured(grammar='root ::= "' + "a" * (1 << 20) + '"'), "structured_outputs.grammar", "bytes"),
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("name", BAD)
def test_what_does_not_compile(server, name):
    constraint, param, says = BAD[name]
    begin = time.monotonic()
    reply = server.post(CHAT, {"model": server.model, "messages": ASKED, "max_tokens": 4, **constraint})
    assert reply.status == 400 and reply.error["code"] == "invalid_schema", reply
    assert reply.error["param"] == param and says in reply.error["message"] and len(reply.error["message"]) < 600, reply.error
    assert SHORT or time.monotonic() - begin < 1.5


@pytest.mark.sanitizer
def test_afterwards_all_is_well(server):
    assert server.get("/livez").status == 200
    assert texts(ask(server, temperature=0, **structured(choice=["fine"])))[0] == "fine"
    eventually(lambda: server.get("/v1/blocks").json["held"] == 0, "no block is held")


@pytest.mark.parametrize("bound", (8191, 8192, 8193))
def test_the_cap_of_a_repetition_is_the_same_at_each_depth(server, bound):
    for depth in (0, 1, 3):
        for constraint in (schema(nested(text_of(bound), depth)), schema(nested({"type": "array", "items": {"type": "integer"}, "maxItems": bound}, depth))):
            reply = server.post(CHAT, {"model": server.model, "messages": ASKED, "max_tokens": 4, "temperature": 0, **constraint})
            assert reply.status == (400 if bound > 8192 else 200), (depth, reply)


def test_large_but_good(server):
    """10,000 anyOf and thousands of rules: an answer within a second, whichever."""
    for constraint in (schema({"anyOf": [{"const": f"v{i}"} for i in range(10_000)]}), structured(grammar=RULES), schema({"type": "string", "pattern": "(a+)+b"}), structured(regex="(a+)+b")):
        begin = time.monotonic()
        reply = server.post(CHAT, {"model": server.model, "messages": ASKED, "max_tokens": 8, "temperature": 0, **constraint})
        assert reply.status == 200 or reply.error["code"] == "invalid_schema", reply
        assert SHORT or time.monotonic() - begin < 3, (constraint, reply)


@pytest.mark.parametrize(
    "body, param",
    [
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "grammar": 'root ::= "a"'}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    ],
)
def test_bad_fields(server, body, param):
    reply = server.post(CHAT, {"model": server.model, "messages": ASKED, **body})
    assert reply.status == 400 and reply.error["param"] == param, reply


def test_leaving_while_it_compiles_leaves_nothing(server):
    slow = schema({"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}} for i in range(1500)]})
    wire = server.wire()
    wire.request("POST", CHAT, {"model": server.model, "messages": ASKED, **slow})
    time.sleep(0.05)
    wire.reset()
    assert texts(ask(server, **structured(choice=["next"])))[0] == "next"
    eventually(lambda: server.get("/v1/blocks").json["held"] == 0, "no block is held")
    values = server.metrics()
    assert values['vllm:num_requests_waiting_by_reason{reason="deferred"}'] == 0


def test_new_schemas_hold_no_more_memory(server):
    """Each request brings a schema of its own."""

    def rss():
        return server.get("/v1/accounts").json["measured_rss_anon_bytes"]

    def one(i):
        fields = {f"field_{i}_{j}": {"type": "string", "maxLength": 8} for j in range(6)}
        ask(server, max_tokens=2, temperature=0, **schema({"type": "object", "properties": fields, "required": list(fields)}))

    rounds = 10_000 if LONG_RUN else 150
    for i in range(rounds // 3):
        one(i)
    before = rss()
    for i in range(rounds // 3, rounds):
        one(i)
    page = server.get("/v1/accounts").json
    assert page["measured_rss_anon_bytes"] - before <= (64 << 20) + (8 << 20)
    if LONG_RUN:  # the cache was full by then
        assert page["measured_rss_anon_bytes"] <= before * 1.01
    assert page["accounts"]["runtime"]["parts"]["constraints"]["reserved_bytes"] > page["accounts"]["runtime"]["parts"]["constraints"]["planned_bytes"]
    assert abs(page["unaccounted_bytes"]) <= 32 << 20, page["unaccounted_bytes"]
