"""The official Python client against the server, on the real model."""

import math
from typing import Literal

import openai
import pydantic
import pytest

from rig import SMOL

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODEL = SMOL.stem
USER = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def server(start_shared):
    return start_shared(SMOL, "--kv-pool", "64MiB")


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=12, temperature=0)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == MODEL
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.logprobs is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens <= 12
    assert 0 <= answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens
    again = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=12, temperature=0)
    assert again.choices[0].message.content == choice.message.content and again.id != answer.id
    assert again.system_fingerprint == answer.system_fingerprint


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, max_completion_tokens=6, temperature=0, logprobs=True, top_logprobs=4
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 4
        best = entry.top_logprobs[0]
        assert (best.token, best.logprob) == (entry.token, entry.logprob), "greedy takes the best one"
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True) and sum(map(math.exp, values)) <= 1 + 1e-5
    shown = b"".join(bytes(entry.bytes) for entry in entries).removesuffix(b"<|im_end|>")
    assert shown.decode(errors="replace") == answer.choices[0].message.content


def test_stream_with_usage(client):
    options = {"model": MODEL, "messages": USER, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.usage is None for chunk in chunks[:-1]) and chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [whole.choices[0].finish_reason]


def test_stream_without_usage(client):
    chunks = list(client.chat.completions.create(model=MODEL, messages=USER, max_tokens=5, temperature=0, stream=True))
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {"timings", "receipt"} <= set(chunks[-1].model_extra)


def test_a_stream_can_be_left(client, server):
    stream = client.chat.completions.create(
        model=MODEL, messages=USER, max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    server.at_rest()


def test_completion_with_logprobs(client):
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=6, temperature=0, logprobs=3, extra_body={"ignore_eos": True}
    )
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    choice = answer.choices[0]
    assert "Paris" in choice.text and choice.finish_reason == "length"
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 6
    assert "".join(logprobs.tokens) == choice.text and logprobs.text_offset[0] == 0
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 3 and value == max(top.values()) == top[token]
    for index, offset in enumerate(logprobs.text_offset):
        assert choice.text[offset:].startswith(logprobs.tokens[index])


def test_completion_of_several_prompts(client, server):
    ids = server.post("/tokenize", {"prompt": "One, two,"}).json["tokens"]
    one, two = (
        client.completions.create(model=MODEL, prompt=p, max_tokens=4, temperature=0).choices[0].text for p in ("One, two,", "A cat")
    )
    strings = client.completions.create(model=MODEL, prompt=["One, two,", "A cat"], max_tokens=4, temperature=0)
    assert [(c.index, c.text) for c in strings.choices] == [(0, one), (1, two)]
    lists = client.completions.create(model=MODEL, prompt=[ids, ids], max_tokens=4, temperature=0)
    assert [c.text for c in lists.choices] == [one, one]
    assert lists.usage.prompt_tokens == 2 * len(ids) and lists.usage.completion_tokens == 8


def test_seed(client):
    def text(seed):
        return client.completions.create(model=MODEL, prompt="Once", max_tokens=12, temperature=1.2, seed=seed).choices[0].text

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1
    drawn = client.completions.create(model=MODEL, prompt="Once", max_tokens=12, temperature=1.2)
    assert text(drawn.model_extra["receipt"]["seed"]) == drawn.choices[0].text, "the receipt tells the seed that was drawn"


def test_models(client):
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL]
    assert models[0].owned_by == "tally" and models[0].model_extra["root"] == MODEL
    one = client.models.retrieve(MODEL)
    assert one.id == MODEL and one.model_extra["max_model_len"] == models[0].model_extra["max_model_len"] > 0
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


BAD = [
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"presence_penalty": -2.5}, "presence_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"seed": -1}, "seed"),
    ({"stop": [""]}, "stop"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"n": 0}, "n"),
]


@pytest.mark.parametrize(("options", "param"), BAD, ids=[str(o) for o, _ in BAD])
def test_bad_request(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": USER, **options})
    error = caught.value
    assert error.status_code == 400 and error.param == param and error.code == "invalid_value"
    assert error.type == "invalid_request_error" and error.body["message"]
    assert len(error.request_id) == 32


def test_missing_and_too_long(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", cast_to=object, body={"model": MODEL})
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", "messages")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x", max_tokens=1_000_000)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=USER)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_structured_output(client):
    class Pet(pydantic.BaseModel):
        kind: Literal["cat", "dog"]
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=30)

    for seed in range(3):
        answer = client.chat.completions.parse(model=MODEL, messages=USER, response_format=Pet, temperature=1, seed=seed, max_tokens=300)
        assert isinstance(answer.choices[0].message.parsed, Pet) and answer.choices[0].finish_reason == "stop"
    text = client.completions.create(model=MODEL, prompt="Q", temperature=1, max_tokens=9, extra_body={"structured_outputs": {"choice": ["left", "right"]}})
    assert text.choices[0].text in ("left", "right")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=USER, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}
        )
    assert (caught.value.code, caught.value.param) == ("invalid_schema", "response_format.json_schema.schema")


NOT_BUILT = [
    {"extra_body": {"typical_p": 0.5}},
    {"extra_body": {"guided_regex": "a+"}},
]


@pytest.mark.parametrize("options", NOT_BUILT, ids=[str(o) for o in NOT_BUILT])
def test_not_built_is_501_and_not_retried(server, options):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3) as client:
        before = server.metrics()['tally_requests_refused_total{code="not_supported"}']
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model=MODEL, messages=USER, **options)
        assert server.metrics()['tally_requests_refused_total{code="not_supported"}'] == before + 1, "it was sent again"
    assert caught.value.status_code == 501 and caught.value.code == "not_supported"
    assert caught.value.param == next(iter(options.get("extra_body", options)))


def test_scores_of_a_prompt(client):
    answer = client.completions.create(model=MODEL, prompt="The capital of France is Paris", max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == "The capital of France is Paris" and choice.finish_reason == "length"
    assert "".join(choice.logprobs.tokens) == choice.text and answer.usage.completion_tokens == 0
    assert choice.logprobs.token_logprobs[0] is None and max(choice.logprobs.token_logprobs[1:]) <= 0
    assert choice.logprobs.top_logprobs[-1] == {" Paris": choice.logprobs.token_logprobs[-1]}, "it knows"
    chat = client.chat.completions.create(model=MODEL, messages=USER, max_tokens=1, extra_body={"prompt_logprobs": 2})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens and chat.prompt_logprobs[0] is None


def test_embeddings_are_not_built(client):
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model=MODEL, input="x")
    assert (caught.value.status_code, caught.value.code) == (501, "not_supported")


def test_keys(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_bytes(b"# who may\r\nann:secret-1  \r\n\r\nbob:secret:2\n")
    keys.chmod(0o600)
    server = start(SMOL, "--kv-pool", "16MiB", "--api-key-file", keys)

    def ask(key):
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
            return client.chat.completions.create(model=MODEL, messages=USER, max_tokens=2)

    for key in ("secret-1", "secret:2"):
        assert ask(key).usage.completion_tokens > 0
    for key in ("secret", "secret-1x", "ann:secret-1", "SECRET-1"):
        with pytest.raises(openai.AuthenticationError) as caught:
            ask(key)
        assert (caught.value.status_code, caught.value.code) == (401, "invalid_api_key")
        assert caught.value.response.headers["www-authenticate"] == "Bearer"
        assert key not in caught.value.message
    for path in ("/v1/models", "/metrics", "/version"):
        assert server.get(path).status == 401
        assert server.get(path, [("Authorization", "bearer secret-1")]).status == 200
    for path in ("/livez", "/readyz", "/health", "/ping"):
        assert server.get(path).status == 200
    assert "secret" not in server.stderr


def test_key_of_the_environment(start):
    server = start(SMOL, "--kv-pool", "16MiB", env={"TALLY_API_KEY": "from-env"})
    assert server.get("/v1/models").status == 401
    assert server.get("/v1/models", [("Authorization", "Bearer from-env")]).status == 200
