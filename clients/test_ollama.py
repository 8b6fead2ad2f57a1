"""The ollama package."""

import json

import ollama
import pytest
from questions import JOKE

OPTIONS = {"temperature": 0, "num_predict": 24}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}


@pytest.fixture
def client(server):
    return ollama.Client(host=server.url)


def test_chat(client, server):
    whole = client.chat(server.model, messages=JOKE, options=OPTIONS)
    assert "cat" in whole.message.content
    assert whole.done and whole.done_reason == "stop"
    assert whole.eval_count > 0 and whole.total_duration >= whole.eval_duration > 0
    chunks = list(client.chat(server.model, messages=JOKE, options=OPTIONS, stream=True))
    assert "".join(chunk.message.content for chunk in chunks) == whole.message.content
    assert [chunk.done for chunk in chunks].count(True) == 1


def test_generate(client, server):
    reply = client.generate(server.model, "Say hello.", options=OPTIONS)
    assert reply.response
    raw = client.generate(server.model, "The capital of France is", raw=True, options=OPTIONS)
    assert "Paris" in raw.response


def test_structured_output(client, server):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "inhabitants": {"type": "integer"}},
        "required": ["name", "inhabitants"],
    }
    reply = client.chat(
        server.model,
        messages=[{"role": "user", "content": "Describe Paris."}],
        format=schema,
        options={"temperature": 0, "num_predict": 200},
    )
    assert isinstance(json.loads(reply.message.content)["inhabitants"], int)


def test_tool_results_are_accepted(client, server):
    messages = [
        {"role": "user", "content": "How is the weather in Paris?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
            ],
        },
        {"role": "tool", "content": "Sunny, 21 degrees.", "tool_name": "get_weather"},
    ]
    reply = client.chat(server.model, messages=messages, tools=[WEATHER], options=OPTIONS)
    assert reply.message.content or reply.message.tool_calls


def test_embed(client, server):
    vectors = client.embed(server.model, input=["a cat", "a kitten"]).embeddings
    assert len(vectors) == 2
    assert sum(x * x for x in vectors[0]) == pytest.approx(1, abs=1e-4)


def test_list_show_and_ps(client, server):
    names = [model.model for model in client.list().models]
    assert any(name.startswith(server.model) for name in names)
    shown = client.show(server.model)
    assert shown.details.family == "llama"
    assert "completion" in shown.capabilities
    client.chat(server.model, messages=JOKE, options={"num_predict": 1})
    assert [model.model for model in client.ps().models] == names


def test_errors(client, server):
    with pytest.raises(ollama.ResponseError) as raised:
        client.show("gpt-9")
    assert raised.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as raised:
        client.chat(server.model, messages=JOKE, options={"temperature": -3})
    assert raised.value.status_code == 400
    assert "temperature" in raised.value.error
