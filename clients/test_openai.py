"""The openai package: chat, completions, embeddings, models, errors, disconnecting, concurrency."""

import asyncio
import base64
import json
import struct

import openai
import pytest
from pydantic import BaseModel
from questions import JOKE, LONG

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def ask(client, server):
    def ask(messages=JOKE, **parameters):
        parameters = {"max_tokens": 24, "temperature": 0, **parameters}
        return client.chat.completions.create(model=server.model, messages=messages, **parameters)

    return ask


def test_chat(ask):
    reply = ask()
    assert "cat" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24


def test_stream_equals_whole_reply(ask):
    whole = ask().choices[0].message.content
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == whole
    assert len(said) > 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_choices_and_seeds(ask):
    def texts(seed):
        reply = ask(n=3, temperature=1.5, seed=seed, max_tokens=12)
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        return [choice.message.content for choice in reply.choices]

    assert texts(7) == texts(7)
    assert len(set(texts(7))) == 3
    assert texts(7) != texts(8)


def test_stop_and_length(ask):
    whole = ask().choices[0].message.content
    assert ask(stop=[" do"]).choices[0].message.content == whole.split(" do")[0] != whole
    cut = ask(max_tokens=2).choices[0]
    assert cut.finish_reason == "length"


def test_logprobs(ask):
    reply = ask(logprobs=True, top_logprobs=3, max_tokens=6)
    tokens = reply.choices[0].logprobs.content
    assert "".join(token.token for token in tokens).startswith(reply.choices[0].message.content)
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert token.logprob <= 0


def test_bias_forbids_a_token(ask, server):
    first = ask(max_tokens=1, logprobs=True).choices[0]
    (token,) = server.post("/tokenize", {"prompt": first.message.content,
                                         "add_special_tokens": False})["tokens"][:1]
    other = ask(max_tokens=1, logit_bias={str(token): -100}).choices[0]
    assert other.message.content != first.message.content


class City(BaseModel):
    name: str
    inhabitants: int
    is_capital: bool


def test_structured_output(client, server):
    reply = client.chat.completions.parse(
        model=server.model,
        messages=[{"role": "user", "content": "Describe Paris."}],
        response_format=City,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(reply.choices[0].message.parsed, City)


def test_json_mode(ask):
    reply = ask(response_format={"type": "json_object"}, max_tokens=400).choices[0]
    assert reply.message.content.startswith("{")
    # The small model may not finish; its output must still start an object.
    if reply.finish_reason == "length":
        with pytest.raises(json.JSONDecodeError) as cut:
            json.loads(reply.message.content)
        at_the_end = cut.value.pos >= len(reply.message.content.rstrip()) - 1
        assert at_the_end or "Unterminated" in str(cut.value)
    else:
        assert isinstance(json.loads(reply.message.content), dict)


def test_tools_round_trip(ask):
    messages = [{"role": "user", "content": "How is the weather in Paris?"}]
    reply = ask(messages, tools=[WEATHER], tool_choice="required", max_tokens=120).choices[0]
    assert reply.finish_reason == "tool_calls"
    (call, *_) = reply.message.tool_calls
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    messages += [
        reply.message.model_dump(),
        *(
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."}
            for call in reply.message.tool_calls
        ),
    ]
    answer = ask(messages, tools=[WEATHER], tool_choice="none").choices[0]
    assert answer.message.content
    assert not answer.message.tool_calls


def test_streamed_tool_calls_add_up(ask):
    named = {"type": "function", "function": {"name": "get_weather"}}
    parameters = {"tools": [WEATHER], "tool_choice": named, "max_tokens": 120}
    whole = ask(**parameters).choices[0].message.tool_calls[0].function
    name, arguments = "", ""
    for chunk in ask(**parameters, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.index == 0
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, arguments) == (whole.name, whole.arguments)


def test_completions(client, server):
    def complete(prompt, **parameters):
        parameters = {"max_tokens": 8, "temperature": 0, **parameters}
        return client.completions.create(model=server.model, prompt=prompt, **parameters)

    text = "The capital of France is"
    one = complete(text).choices[0].text
    assert "Paris" in one
    ids = server.post("/tokenize", {"prompt": text})["tokens"]
    assert complete(ids).choices[0].text == one
    batch = complete([text, "1, 2, 3, 4,"], n=2).choices
    assert [choice.index for choice in batch] == [0, 1, 2, 3]
    assert batch[0].text == one
    assert batch[0].text == batch[1].text != batch[2].text
    echoed = complete(text, echo=True, logprobs=2, max_tokens=1).choices[0]
    assert echoed.text.startswith(text)
    logprobs = echoed.logprobs
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(ids) + 1
    assert [echoed.text[at:].startswith(token) for at, token in
            zip(logprobs.text_offset, logprobs.tokens, strict=True)].count(False) == 0
    streamed = complete(text, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == one


def test_responses(client, server):
    first = client.responses.create(
        model=server.model, input="My name is Ada. Say hello.", max_output_tokens=24, temperature=0
    )
    assert first.status in ("completed", "incomplete")
    assert first.output_text
    again = client.responses.retrieve(first.id)
    assert again.output_text == first.output_text
    second = client.responses.create(
        model=server.model,
        input="What is my name?",
        previous_response_id=first.id,
        max_output_tokens=24,
        temperature=0,
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    with client.responses.stream(
        model=server.model, input=JOKE, max_output_tokens=24, temperature=0
    ) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_embeddings(client, server):
    def embed(texts, **parameters):
        reply = client.embeddings.create(model=server.model, input=texts, **parameters)
        return [entry.embedding for entry in reply.data]

    cat, kitten, law = embed(["a cat", "a kitten", "the law of contracts"], encoding_format="float")
    assert dot(cat, cat) == pytest.approx(1, abs=1e-4)
    assert dot(cat, kitten) > dot(cat, law)
    (packed,) = embed(["a cat"])
    assert packed == pytest.approx(cat, abs=1e-6)
    raw = server.post("/v1/embeddings", {"model": server.model, "input": "a cat",
                                         "encoding_format": "base64"})
    raw = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == pytest.approx(cat, abs=1e-6)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_models(client, server):
    (model,) = client.models.list()
    assert model.id == server.model
    assert client.models.retrieve(server.model).id == server.model


def test_differences_are_named(client, server):
    """One model serves unknown names; headers name fields without effect."""
    completions = client.chat.completions.with_raw_response
    reply = completions.create(
        model="gpt-9", messages=JOKE, max_tokens=10_000_000, stop=" ", extra_body={"mood": "good"}
    )
    assert reply.headers["x-loquat-model"] == server.model
    assert int(reply.headers["x-loquat-max-tokens"]) < 10_000_000
    assert reply.headers["x-loquat-ignored"] == "mood"


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"messages": []}, 400, "messages", None),
        ({"messages": [{"role": "bot", "content": "hi"}]}, 400, "messages[0].role", None),
        ({"temperature": "hot"}, 400, "temperature", None),
        ({"temperature": 1000}, 400, "temperature", None),
        ({"extra_body": {"tempreature": 1}}, 400, "tempreature", "unknown_parameter"),
        ({"messages": [{"role": "user", "content": "so " * 20_000}]}, 400, None,
         "context_length_exceeded"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "thing"}}}}, 400, "response_format", None),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,!"}}]}]}, 400,
         "messages[0].content", None),
    ],
)
def test_errors(client, server, change, status, param, code):
    request = {"model": server.model, "messages": JOKE, "max_tokens": 4, **change}
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(**request)
    error = raised.value
    assert error.status_code == status
    assert error.body["message"]
    if param:
        assert error.body["param"].startswith(param)
    if code:
        assert error.body["code"] == code


def test_disconnect_cancels_request(ask, server):
    before = server.cancelled()
    stream = ask(LONG, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_for_cancellation(before)


def test_client_timeout_cancels_request(ask, server):
    before = server.cancelled()
    # A busy server may not have begun when the client leaves: the next one waits longer.
    for timeout in [1, 2, 4, 8]:
        with pytest.raises(openai.APITimeoutError):
            ask(LONG, max_tokens=4000, extra_body={"ignore_eos": True}, timeout=timeout)
        server.wait_until_idle()
        if server.cancelled() > before:
            return
    pytest.fail("no request was cancelled")


def test_32_concurrent_requests(server):
    async def all_of_them():
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

        async def one(number):
            question = [{"role": "user", "content": f"What is {number} plus one?"}]
            stream = await client.chat.completions.create(
                model=server.model, messages=question, max_tokens=8, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        alone = [await one(number) for number in (3, 17)]
        together = await asyncio.gather(*(one(number) for number in range(32)))
        await client.close()
        return alone, together

    alone, together = asyncio.run(all_of_them())
    assert all(together)
    # On the CPU backend, the batch does not change a reply.
    assert [together[3], together[17]] == alone
