"""Requests that programs send every day, in every dialect, whole and streamed."""

import json
import time
from dataclasses import dataclass
from typing import Callable

from .server import CHAT, HOSTILE, PLAIN, STEADY
from .wire import Answer

TEXTS = ["Hello", "Count to three.", "Name a colour", "Why is the sky blue?", "Once upon a time"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}
# Between attempts while the model is damaged.
RETRY_SECONDS = 0.1
# The token of the letter A in the tiny models' vocabulary.
LETTER_A = {"32": 100}
FUNCTION = {"type": "function", "function": WEATHER}

# Texts of errors that the soak itself causes: an operator cancels all requests, the weights change.
CANCELLED = ("cancelled",)
DAMAGED = ("files changed", "cannot be loaded")


@dataclass(frozen=True)
class Kind:
    """A kind of request: its path, its body for a text, and what ends its stream."""

    name: str
    path: str
    body: Callable
    streams: bool = True
    # The last of these frames ends a stream, also after an error.
    ends: tuple = (b"data: [DONE]",)
    status: int = 200


def user(text):
    return [{"role": "user", "content": text}]


def prefilled(text):
    return [*user(text), {"role": "assistant", "content": "The answer is"}]


RESPONSE_ENDS = tuple(
    f'"type":"response.{end}"'.encode() for end in ["completed", "incomplete", "failed"]
)
MESSAGE_ENDS = (b'"type":"message_stop"',)
LINE_ENDS = (b'"done":true',)
LLAMA_ENDS = (b'"stop":true',)


def openai(name, body):
    return Kind(f"openai {name}", "/v1/chat/completions", body)


def anthropic(name, body):
    return Kind(f"anthropic {name}", "/v1/messages", body, ends=MESSAGE_ENDS)


def ollama(name, path, body):
    return Kind(f"ollama {name}", path, body, ends=LINE_ENDS)


def whole(name, path, body, status=200):
    return Kind(name, path, body, streams=False, status=status)


TWO_CHOICES = {"max_tokens": 8, "n": 2, "logprobs": True}
REQUIRED_TOOL = {"max_tokens": 48, "tools": [FUNCTION], "tool_choice": "required"}
JSON_OBJECT = {"max_tokens": 16, "response_format": {"type": "json_object"}}
SHORT_SCHEMA = {"format": SCHEMA, "options": {"num_predict": 32}}
INFILL = {"input_suffix": "x"}

KINDS = [
    openai("chat", lambda text: {"messages": user(text), "max_tokens": 16}),
    openai("chat, two choices", lambda text: {"messages": user(text), **TWO_CHOICES}),
    openai("tools", lambda text: {"messages": user(text), "max_tokens": 24, "tools": [FUNCTION]}),
    openai("required tool", lambda text: {"messages": user(text), **REQUIRED_TOOL}),
    openai(
        "schema",
        lambda text: {
            "messages": user(text),
            "max_tokens": 32,
            "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}},
        },
    ),
    openai("json", lambda text: {"messages": user(text), **JSON_OBJECT}),
    openai(
        "prefill", lambda text: {"messages": prefilled(text), "max_tokens": 8, "continue_final_message": True}
    ),
    Kind(
        "openai completions",
        "/v1/completions",
        lambda text: {"prompt": [text, text + " and"], "max_tokens": 12, "logprobs": 2},
    ),
    Kind(
        "openai responses",
        "/v1/responses",
        lambda text: {"input": text, "max_output_tokens": 16},
        ends=RESPONSE_ENDS,
    ),
    anthropic("messages", lambda text: {"messages": user(text), "max_tokens": 16}),
    anthropic("prefill", lambda text: {"messages": prefilled(text), "max_tokens": 8}),
    anthropic(
        "tools",
        lambda text: {
            "messages": user(text),
            "max_tokens": 24,
            "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        },
    ),
    ollama("chat", "/api/chat", lambda text: {"messages": user(text), "options": {"num_predict": 16}}),
    ollama("schema", "/api/chat", lambda text: {"messages": user(text), **SHORT_SCHEMA}),
    ollama("generate", "/api/generate", lambda text: {"prompt": text, "options": {"num_predict": 16}}),
    Kind(
        "llama.cpp completion",
        "/completion",
        lambda text: {"prompt": text, "n_predict": 12},
        ends=LLAMA_ENDS,
    ),
    whole("openai embeddings", "/v1/embeddings", lambda text: {"input": [text, "x"]}),
    whole("ollama embed", "/api/embed", lambda text: {"input": [text, "x"]}),
    whole("anthropic count", "/v1/messages/count_tokens", lambda text: {"messages": user(text)}),
    whole("tokenize", "/tokenize", lambda text: {"content": text}),
    whole("detokenize", "/detokenize", lambda text: {"tokens": [1, 2, 3]}),
    whole("llama.cpp template", "/apply-template", lambda text: {"messages": user(text)}),
    whole("llama.cpp infill", "/infill", lambda text: {"input_prefix": text, **INFILL}, status=400),
    whole("openai suffix", "/v1/completions", lambda text: {"prompt": text, "suffix": "x"}, status=400),
    whole("misspelled field", "/v1/completions", lambda text: {"prompt": text, "temprature": 1}, status=400),
    whole("unknown model", "/v1/completions", lambda text: {"prompt": text, "model": "nobody"}, status=404),
]


def ordinary(client, record, rng):
    """One request of a random kind to a random model."""
    kind = rng.choice(KINDS)
    model = rng.choice([CHAT, CHAT, PLAIN, STEADY])
    body = {"model": model, "seed": rng.randrange(1000), **kind.body(rng.choice(TEXTS))}
    if not kind.path.startswith(("/v1/chat", "/v1/completions", "/completion")):
        del body["seed"]
    if not kind.streams:
        answer = client.post(kind.path, body)
        record.expect(kind.name, answer, {kind.status, *excused(model, answer)})
        return
    body["stream"] = rng.random() < 0.6
    answer = client.post(kind.path, body)
    if body["stream"] and answer.status == 200:
        check_stream(record, kind, model, answer)
    else:
        name = f"{kind.name}, stream" if body["stream"] else kind.name
        record.expect(name, answer, {kind.status, *excused(model, answer)})


def long_stream(client, record, rng):
    """A stream that runs while the weights change. The bias forces one letter, so that it does not end."""
    kind = Kind("long", "/v1/completions", lambda text: {"prompt": text, "max_tokens": 2000})
    body = {"model": PLAIN, "stream": True, "logit_bias": LETTER_A, **kind.body("Hello")}
    answer = client.post(kind.path, body)
    if answer.status == 200:
        check_stream(record, kind, PLAIN, answer)
    else:
        record.expect(f"{kind.name}, stream", answer, {200, *excused(PLAIN, answer)})
        time.sleep(RETRY_SECONDS)


def excused(model, answer):
    """The statuses of failures that the soak's operators cause."""
    text = answer.body.decode(errors="replace")
    if answer.status == 409 and mentions(text, CANCELLED):
        return {409}
    if answer.status in (500, 503) and model == PLAIN and mentions(text, DAMAGED):
        return {answer.status}
    return set()


def mentions(text, words):
    return any(word in text for word in words)


def check_stream(record, kind, model, answer):
    """A stream ends with its dialect's terminator, and with an error only if an operator caused it."""
    name = f"{kind.name}, stream"
    last = last_frame(answer)
    if not any(end in last for end in kind.ends):
        record.problem(f"{name}: no terminator after {answer.body[-300:]!r}")
    error = stream_error(answer)
    if error is None:
        record.count(name, 200, answer.seconds)
        return
    record.count(name, "200 and an error", answer.seconds)
    allowed = CANCELLED + (DAMAGED if model == PLAIN else ())
    if not mentions(error, allowed):
        record.problem(f"{name}: {error}")


def last_frame(answer):
    """The last event or line."""
    lines = [line for line in answer.body.splitlines() if line.strip()]
    return lines[-1] if lines else b""


def stream_error(answer):
    """The error within a stream, if there is one."""
    for line in answer.body.splitlines():
        text = line.removeprefix(b"data: ")
        if b'"error"' not in text or not text.startswith(b"{"):
            continue
        frame = json.loads(text)
        if error := frame.get("error") or frame.get("response", {}).get("error"):
            return json.dumps(error)
    return None


def hostile_template(client, record, rng):
    """A model whose template never ends: the operator's fault, so 500, within the template's budget."""
    body = {"model": HOSTILE, "messages": user("Hello"), "max_tokens": 4}
    answer = client.post("/v1/chat/completions", body)
    record.expect("template without end", answer, {500})


# The same questions before and after the soak, at temperature 0.
REFERENCES = [
    (CHAT, "/v1/chat/completions", {"messages": user("Why is the sky blue?"), "max_tokens": 24}),
    (CHAT, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24}),
    (PLAIN, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24}),
    (STEADY, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 24}),
]


def reference_answers(client):
    """The texts of the reference questions."""
    return [reference(client, *question) for question in REFERENCES]


def reference(client, model, path, body) -> str:
    answer: Answer = client.post(path, {"model": model, "temperature": 0, **body})
    if answer.status != 200:
        return f"{answer.status}: {answer.body.decode(errors='replace')}"
    choice = answer.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]
