"""The anthropic package."""

import anthropic
import pytest
from questions import JOKE, LONG

# The package has no parameter for it, but the API does.
GREEDY = {"temperature": 0}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
    "strict": True,
}


@pytest.fixture
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@pytest.fixture
def ask(client, server):
    def ask(messages=JOKE, **parameters):
        parameters = {"max_tokens": 24, "extra_body": GREEDY, **parameters}
        return client.messages.create(model=server.model, messages=messages, **parameters)

    return ask


def test_message(ask):
    reply = ask()
    assert "cat" in reply.content[0].text
    assert reply.stop_reason == "end_turn"
    assert reply.usage.output_tokens > 0


def test_stream_equals_whole_reply(ask, client, server):
    whole = ask().content[0].text
    with client.messages.stream(
        model=server.model, messages=JOKE, max_tokens=24, extra_body=GREEDY
    ) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == whole == final.content[0].text
    assert final.stop_reason == "end_turn"


def test_system_prompt_changes_input_tokens(ask):
    assert ask(system="You are a pirate.").usage.input_tokens != ask().usage.input_tokens


def test_stops(ask):
    whole = ask().content[0].text
    cut = ask(stop_sequences=["elephant", " do"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", " do")
    assert cut.content[0].text == whole.split(" do")[0] != whole
    assert ask(max_tokens=2).stop_reason == "max_tokens"


def test_tools_round_trip(ask):
    messages = [{"role": "user", "content": "How is the weather in Paris?"}]
    reply = ask(messages, tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=120)
    assert reply.stop_reason == "tool_use"
    (use, *_) = [block for block in reply.content if block.type == "tool_use"]
    assert use.name == "get_weather"
    assert isinstance(use.input["city"], str)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "Sunny, 21 degrees."}
        for block in reply.content
        if block.type == "tool_use"
    ]
    messages += [
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": results},
    ]
    assert ask(messages, tools=[WEATHER], tool_choice={"type": "none"}).content[0].text


def test_counting(ask, client, server):
    counted = client.messages.count_tokens(model=server.model, messages=JOKE).input_tokens
    usage = ask().usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"messages": []}, anthropic.BadRequestError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"extra_body": {"mesages": 1}}, anthropic.BadRequestError),
    ],
)
def test_errors(client, server, change, error):
    request = {"model": server.model, "messages": JOKE, "max_tokens": 4, **change}
    with pytest.raises(error) as raised:
        client.messages.create(**request)
    assert raised.value.body["type"] == "error"
    assert raised.value.body["error"]["message"]


def test_disconnect_cancels_request(client, server):
    before = server.cancelled()
    with client.messages.stream(
        model=server.model, messages=LONG, max_tokens=4000, extra_body=GREEDY
    ) as stream:
        next(iter(stream.text_stream))
    server.wait_for_cancellation(before)
