"""Tool calls and reasoning with the official Python client, on the real model: shown by earlier turns how, it calls."""

import json
import re

import openai
import pytest

from rig import SMOL, eventually
from test_templates import template_file

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODEL = SMOL.stem


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"To {name.replace('_', ' ')}.", "parameters": schema}}


WEATHER = tool("get_weather", city={"type": "string"})
SHORT = tool("get_weather", city={"type": "string", "maxLength": 20})
CLOCK = tool("set_clock", hour={"type": "integer", "minimum": 0, "maximum": 23}, day={"enum": ["today", "tomorrow"]})


def turn(number, city):
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": "sun"},
        {"role": "assistant", "content": f"It is sunny in {city}."},
    ]


# Three turns are enough for this model to go on in the same way; greedy, it does on every machine.
EARLIER = turn(1, "Graz") + turn(2, "Oslo") + turn(3, "Paris")
ASKED = EARLIER + [{"role": "user", "content": "What is the weather in Rome?"}]
OPTIONS = {"model": MODEL, "messages": ASKED, "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
# What other families of models write, in turns this one knows.
OTHERS = {
    "llama3": '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}',
    "mistral": "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
}
OTHER = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}CALL{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
# ChatML whose assistant may think; the prompt begins the thoughts unless they are turned off.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}"
)
SUMS = [
    message
    for a, b in ((2, 3), (4, 1), (5, 2))
    for message in (
        {"role": "user", "content": f"What is {a} + {b}?"},
        {"role": "assistant", "reasoning_content": f"I add {a} and {b}.", "content": f"{a + b}"},
    )
] + [{"role": "user", "content": "What is 3 + 3?"}]


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(SMOL, "--kv-pool", "64MiB", "--chat-template", "builtin:chatml")


@pytest.fixture(scope="module")
def thinking(start_shared, tmp_path_factory):
    source = template_file(tmp_path_factory.mktemp("thinking"), THINKING)
    return start_shared(SMOL, "--kv-pool", "32MiB", "--chat-template", source)


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_call_and_its_answer(server):
    with client_of(server) as client:
        def ended():
            return server.metrics()['tally_requests_ended_total{reason="tool_calls"}']

        before = ended()
        choice = client.chat.completions.create(**OPTIONS).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        eventually(lambda: ended() == before + 1, "the call counted")
        (call,) = choice.message.tool_calls
        assert re.fullmatch(r"call_[A-Za-z0-9]{24}", call.id) and call.type == "function"
        assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Rome"}
        # The message goes back as the client has it.
        messages = ASKED + [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
        after = client.chat.completions.create(**OPTIONS | {"messages": messages}).choices[0]
        assert (after.finish_reason, after.message.tool_calls) == ("stop", None)
        assert after.message.content == "It is sunny in Rome."


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats(start, tmp_path, name):
    source = template_file(tmp_path, OTHER.replace("CALL", OTHERS[name]))
    server = start(SMOL, "--kv-pool", "32MiB", "--chat-template", source, "--tool-format", name)
    with client_of(server) as client:
        choice = client.chat.completions.create(**OPTIONS).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Rome"}
        chunks = [c.choices[0].delta for c in client.chat.completions.create(**OPTIONS, stream=True)]
        arguments = [call.function.arguments for delta in chunks for call in delta.tool_calls or []]
        assert "".join(arguments) == choice.message.tool_calls[0].function.arguments


def test_a_call_in_a_stream(server):
    with client_of(server) as client:
        whole = client.chat.completions.create(**OPTIONS).choices[0].message
        chunks = [c.choices[0] for c in client.chat.completions.create(**OPTIONS, stream=True)]
    fragments = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert fragments[0].function.name == "get_weather" and fragments[0].function.arguments == ""
    assert all(f.index == 0 for f in fragments) and all(f.id is None and f.function.name is None for f in fragments[1:])
    assert len(fragments) > 3, "arguments come as they are written"
    assert "".join(f.function.arguments for f in fragments) == whole.tool_calls[0].function.arguments
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
    assert chunks[-1].finish_reason == "tool_calls" and [c.finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_the_client_joins_a_stream(server):
    with client_of(server) as client, client.chat.completions.stream(**OPTIONS) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}


PLAIN = OPTIONS | {"messages": [{"role": "user", "content": "Tell me of the sea."}], "tools": [SHORT, CLOCK], "temperature": 1, "max_tokens": 200}


@pytest.mark.parametrize("seed", range(3))
def test_required_and_named(server, seed):
    """Whatever the model would have said: it calls, with arguments after the schema."""
    with client_of(server) as client:
        choice = client.chat.completions.create(**PLAIN, seed=seed, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        (call,) = choice.message.tool_calls
        wanted = {"get_weather": {"city": str}, "set_clock": {"hour": int, "day": str}}[call.function.name]
        assert {k: type(v) for k, v in json.loads(call.function.arguments).items()} == wanted
        named = {"type": "function", "function": {"name": "set_clock"}}
        options = PLAIN | {"seed": seed, "tool_choice": named}
        (call,) = client.chat.completions.create(**options).choices[0].message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "set_clock" and 0 <= arguments["hour"] <= 23 and arguments["day"] in ("today", "tomorrow")
        fragments = [f for c in client.chat.completions.create(**options, stream=True) for f in c.choices[0].delta.tool_calls or []]
        assert "".join(f.function.arguments for f in fragments) == call.function.arguments


def test_none_is_text(server):
    with client_of(server) as client:
        choice = client.chat.completions.create(**OPTIONS, tool_choice="none").choices[0]
        assert choice.message.tool_calls is None and "<tool_call>" in choice.message.content


def test_reasoning(thinking):
    options = {"model": MODEL, "messages": SUMS, "temperature": 0, "max_tokens": 40}
    with client_of(thinking) as client:
        answer = client.chat.completions.create(**options)
        message = answer.choices[0].message
        assert message.reasoning_content == "I add 3 and 3." and message.content.isdigit()
        assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
        deltas = [c.choices[0].delta for c in client.chat.completions.create(**options, stream=True)]
        assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == message.reasoning_content
        assert "".join(d.content or "" for d in deltas) == message.content
        off = client.chat.completions.create(**options, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
        assert off.choices[0].message.content


def test_structured_output_comes_after_the_thoughts(thinking):
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["sum"]}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    with client_of(thinking) as client:
        answer = client.chat.completions.create(model=MODEL, messages=SUMS, temperature=0, max_tokens=60, response_format=form)
    message = answer.choices[0].message
    assert message.reasoning_content == "I add 3 and 3." and 0 <= json.loads(message.content)["sum"] <= 99
    assert answer.choices[0].finish_reason == "stop"


def test_tools_need_a_template_that_shows_them(thinking):
    with client_of(thinking) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**OPTIONS)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "tools") and "--chat-template" in caught.value.message


REFUSED = [
    ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
    ({"tools": [WEATHER] * 10_000}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
]


@pytest.mark.parametrize(("options", "param"), REFUSED)
def test_a19_what_is_refused(server, options, param):
    with client_of(server) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASKED, **options)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert server.get("/livez").status == 200
    server.at_rest()
