"""Checks Loquat's server for the behaviour that llama.cpp's public server tests check.

The requests follow the subjects of those tests (completion, chat, tokenize, embedding, security and
the basic routes), with SmolLM2 instead of their models. Tests of features that only llama.cpp has are
left out: saving slots, context shift, LoRA, media, the files of its web page. If Loquat differs on
purpose, `KNOWN` gives the reason, and the difference must still exist.
"""

import base64
import hashlib
import json
import os
import struct
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

import loquat

sys.path.append(str(loquat.ROOT / "clients"))
from serving import MODEL, Server  # noqa: E402

PROMPT = "I believe the meaning of life is"
CHAT = [{"role": "system", "content": "Book"}, {"role": "user", "content": "What is the best book"}]
KEY = "only-for-this-judge"
KNOWN = {
    "/completions is the native completion": "it is OpenAI's here, as under /v1",
    "fingerprint starts with b": "ours names Loquat",
    "the context's error has its own type": "ours is OpenAI's, with code context_length_exceeded",
    "every origin is allowed": "only loopback and configured origins are",
    "two assistant turns at the end": "the model's template decides",
    "times per token": "x-loquat-ignored names the field",
    "progress of the prompt": "x-loquat-ignored names the field",
    "the prompt is shown when asked": "/apply-template shows it",
    "input tokens of a chat": "/v1/messages/count_tokens and /tokenize count them",
}


class Reply:
    """A response: its status, headers and body, whole or as a list of events."""

    def __init__(self, response):
        self.status, self.headers = response.status, response.headers
        text = response.read().decode()
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            lines = (line.removeprefix("data: ") for line in text.splitlines() if line)
            self.body = [json.loads(line) for line in lines if line.startswith("{")]
        else:
            self.body = json.loads(text) if text.startswith(("{", "[")) else text

    def __getitem__(self, path):
        """The value at `a.b.0.c` of the body; None if it is missing."""
        return dig(self.body, path)


def dig(value, path):
    for key in path.split("."):
        try:
            value = value[int(key) if isinstance(value, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


class Client:
    def __init__(self, url):
        self.url = url

    def send(self, method, path, body=None, headers=(), seconds=120):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **dict(headers)}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as response:
                return Reply(response)
        except urllib.error.HTTPError as error:
            return Reply(error)

    def get(self, path, **more):
        return self.send("GET", path, **more)

    def post(self, path, **body):
        return self.send("POST", path, body)

    def complete(self, **body):
        fields = {"prompt": PROMPT, "n_predict": 8, "seed": 7}
        return self.post("/completion", **{**fields, **body})

    def chat(self, **body):
        fields = {"messages": CHAT, "max_tokens": 8, "seed": 7}
        return self.post("/chat/completions", **{**fields, **body})

    def embed(self, value, **body):
        return self.post("/v1/embeddings", input=value, **body)

    def tokens(self, text):
        return self.post("/tokenize", content=text)["tokens"]


def basic(client):
    yield "healthy", client.get("/health").status, 200
    props = client.get("/props")
    yield "properties", props.status, 200
    yield "properties count slots", (props["total_slots"] or 0) > 0, True
    yield "properties have a context", (props["default_generation_settings.n_ctx"] or 0) > 0, True
    yield "models", client.get("/models")["data.0.id"], MODEL
    slots = client.get("/slots")
    yield "slots", len(slots.body), props["total_slots"]
    yield "slots are idle", slots["0.is_processing"], False


def completion(client):
    greedy = {"temperature": 0, "cache_prompt": False}
    whole = client.complete(**greedy)
    yield "status", whole.status, 200
    yield "tokens generated", whole["timings.predicted_n"], 8
    prompt = (whole["timings.prompt_n"] or 0) + (whole["timings.cache_n"] or 0)
    yield "tokens of the prompt", prompt, len(client.tokens(PROMPT))
    yield "not truncated", whole["truncated"], False
    yield "has_new_line", type(whole["has_new_line"]), bool
    yield "no tokens unless asked", whole["tokens"], []
    tokens = client.complete(**greedy, return_tokens=True)["tokens"]
    yield "tokens if asked", (len(tokens), {type(token) for token in tokens}), (8, {int})

    *events, last = client.complete(**greedy, stream=True).body
    yield "stream says when it ends", [event["stop"] for event in events], [False] * len(events)
    yield "stream's chunks have tokens", all(event["tokens"] for event in events), True
    yield "stream's last event", (last["stop"], last["stop_type"]), (True, "limit")
    yield "stream's limit", dig(last, "generation_settings.n_predict"), 8
    yield "stream's counts", dig(last, "timings.predicted_n"), 8
    text = "".join(event["content"] for event in [*events, last])
    yield "stream equals the whole", text, whole["content"]

    drawn = [client.complete(temperature=1, seed=seed)["content"] for seed in [42, 42, 0, 1, 2]]
    yield "same seed, same text", drawn[0], drawn[1]
    yield "other seed, other text", len(set(drawn)) > 1, True
    cached = client.complete(temperature=1, seed=42, cache_prompt=True)
    yield "cached prompt, same text", cached["content"], drawn[0]
    yield "too long a prompt", client.complete(prompt=PROMPT * 2000).status, 400

    ids = client.tokens(PROMPT)
    yield from prompt_forms(client, ids, greedy)
    picked = client.complete(**greedy, response_fields=["content", "generation_settings/n_predict"])
    fields = {"content": whole["content"], "generation_settings/n_predict": 8}
    yield "only the named fields", picked.body, fields
    entries = client.complete(**greedy, n_probs=10)["completion_probabilities"]
    yield "probabilities of each token", len(entries or []), 8
    yield from biases(client, {**greedy, "n_predict": 1, "return_tokens": True})

    at_once = together(6, lambda: client.complete(n_predict=16).status)
    yield "six at once", at_once, [200] * 6
    try:
        long = {"prompt": PROMPT, "n_predict": 4000, "ignore_eos": True}
        client.send("POST", "/completion", long, seconds=0.3)
    except TimeoutError:
        pass
    yield "slots are free once the client has left", is_idle(client), True


def prompt_forms(client, ids, greedy):
    expected = client.complete(**greedy)["content"]
    yield "prompt of tokens", client.complete(**greedy, prompt=ids)["content"], expected
    as_object = client.complete(**greedy, prompt={"prompt_string": PROMPT})
    yield "prompt in an object", as_object["content"], expected
    media = {"prompt_string": "<__media__>", "multimodal_data": ["aGk="]}
    yield "media are refused", client.complete(prompt=media).status, 400
    for prompts in [[ids, ids], [ids, PROMPT], [ids, {"prompt_string": PROMPT}]]:
        replies = client.complete(**greedy, prompt=prompts)
        texts = [replies["0.content"], replies["1.content"]]
        yield f"two prompts: {kinds(prompts)}", texts, [expected] * 2
    mixed = client.complete(prompt=[1, 2, 3, PROMPT, 4, 5, PROMPT])
    yield "tokens and texts in one prompt", type(mixed["content"]), str


def biases(client, one_token):
    likeliest = client.complete(**one_token)
    token, text = likeliest["tokens.0"], likeliest["content"]
    for case, bias in {
        "bias": {str(token): -100},
        "bias in pairs": [[token, -100]],
        "bias of a text": {text: -100},
        "bias of a text in pairs": [[text, -100]],
    }.items():
        other = client.complete(**one_token, logit_bias=bias)["tokens.0"]
        yield case, other not in [None, token], True


def kinds(values):
    return [type(value).__name__ for value in values]


def together(count, work):
    results = [None] * count
    threads = [
        threading.Thread(target=lambda index=index: results.__setitem__(index, work()))
        for index in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def is_idle(client):
    """Whether every slot becomes free."""
    for _ in range(6000):
        if not any(slot["is_processing"] for slot in client.get("/slots").body):
            return True
        threading.Event().wait(0.05)
    return False


def chat(client):
    whole = client.chat(temperature=0)
    yield "status", whole.status, 200
    yield "an id of a completion", "cmpl" in str(whole["id"]), True
    yield "fingerprint starts with b", str(whole["system_fingerprint"])[:1], "b"
    yield "tokens generated", whole["usage.completion_tokens"], 8
    yield "role", whole["choices.0.message.role"], "assistant"
    yield "finish reason", whole["choices.0.finish_reason"], "length"
    yield "model null", client.chat(model=None).status, 200
    yield "model of another server", client.chat(model="gpt-3.5-turbo").status, 200
    again = client.chat(temperature=0)["usage"]
    cached = dig(again, "prompt_tokens_details.cached_tokens")
    yield "a repeated prompt is cached", cached, again["prompt_tokens"] - 1
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "the best book"}]
    yield "text parts", client.chat(messages=[{"role": "user", "content": parts}]).status, 200
    yield from chat_stream(client, whole)
    yield from templates(client)
    yield from formats(client)
    yield from options(client)
    yield from refusals(client)


def chat_stream(client, whole):
    events = client.chat(temperature=0, stream=True, stream_options={"include_usage": True}).body
    first, *others = events
    yield "one id", len({event["id"] for event in events}), 1
    yield "first delta's role", dig(first, "choices.0.delta.role"), "assistant"
    roles = [dig(event, "choices.0.delta.role") for event in others]
    yield "no role later", set(roles), {None}
    texts = [dig(event, "choices.0.delta.content") or "" for event in events]
    yield "stream equals the whole", "".join(texts), whole["choices.0.message.content"]
    yield "usage", dig(events[-1], "usage.completion_tokens"), 8


def templates(client):
    rendered = client.post("/apply-template", messages=CHAT)["prompt"]
    turn = "<|im_start|>user\nWhat is the best book<|im_end|>\n<|im_start|>assistant\n"
    yield "applied template", rendered[rendered.index("<|im_start|>user") :], turn
    prefill = [*CHAT, {"role": "assistant", "content": "Whill"}]
    both = {"add_generation_prompt": False, "continue_final_message": True}
    rendered = client.post("/apply-template", messages=prefill, **both)["prompt"] or ""
    yield "a last assistant turn is continued", rendered.endswith(turn + "Whill"), True
    yield "its chat", client.chat(messages=prefill, **both).status, 200
    both["add_generation_prompt"] = True
    yield "continued and opened", client.chat(messages=prefill, **both).status, 400


def formats(client):
    forty_two = {"const": "42"}
    accepted = {
        "json_object with a schema": {
            "response_format": {"type": "json_object", "schema": forty_two}
        },
        "json_schema": {
            "response_format": {"type": "json_schema", "json_schema": {"schema": forty_two}}
        },
        "top-level json_schema": {"json_schema": forty_two},
        "top-level grammar": {"grammar": r'root ::= "\"42\""'},
    }
    for case, fields in accepted.items():
        yield case, client.chat(**fields)["choices.0.message.content"], '"42"'
    plain = client.chat(response_format={"type": "json_object"})["choices.0.message.content"]
    yield "json_object", (plain or "").lstrip()[:1], "{"
    repeated = client.chat(grammar='root ::= "a"{5,5}')["choices.0.message.content"]
    yield "a grammar's repetition", repeated, "aaaaa"
    for refused in [
        {"response_format": {"type": "sound"}},
        {"response_format": {"type": "json_object", "schema": 123}},
        {"response_format": {"type": "json_object", "schema": {"type": 123}}},
        {"response_format": {"type": "json_object", "schema": {"type": "hiccup"}}},
        {"grammar": "root ::= this is (not valid GBNF"},
    ]:
        yield f"refused: {json.dumps(refused)}", client.chat(**refused).status, 400


def options(client):
    reply = client.chat(temperature=0, logprobs=True, top_logprobs=10)
    entries = reply["choices.0.logprobs.content"] or []
    text = "".join(entry["token"] for entry in entries)
    yield "logprobs spell the text", text, reply["choices.0.message.content"]
    yield "ten alternatives", {len(entry["top_logprobs"]) for entry in entries}, {10}
    two = client.chat(n=2, id_slot=0)
    yield "two choices", len(two["choices"] or []), 2
    banned = reply["choices.0.logprobs.content.0.token"]
    bias = {str(token): -100 for token in client.tokens(banned)}
    other = client.chat(temperature=0, logit_bias=bias, logprobs=True)
    yield "bias", other["choices.0.logprobs.content.0.token"] != banned, True
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    timed = client.chat(**stream, timings_per_token=True)
    yield "times per token are accepted", timed.status, 200
    yield "times per token", dig(timed.body, "-1.timings") is not None, True
    progress = client.chat(stream=True, return_progress=True)
    yield "progress is accepted", progress.status, 200
    yield "progress of the prompt", "prompt_progress" in str(progress.body), True
    verbose = client.chat(verbose=True)
    yield "verbose is accepted", verbose.status, 200
    yield "the prompt is shown when asked", "__verbose" in verbose.body, True
    counted = client.post("/chat/completions/input_tokens", messages=CHAT)
    yield "input tokens of a chat", counted.status, 200


def refusals(client):
    assistant = {"role": "assistant", "content": "test"}
    for messages in [
        None,
        "string",
        [123],
        [{}],
        [{"role": 123}],
        [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
    ]:
        yield f"refused: {json.dumps(messages)}", client.chat(messages=messages).status, 400
    twice = [{"role": "user", "content": "test"}, assistant, assistant]
    yield "two assistant turns at the end", client.chat(messages=twice).status, 400
    for stream in [False, True]:
        long = client.chat(messages=CHAT * 1000, stream=stream)
        yield "too long a prompt", long.status, 400
    yield "the context's error has its own type", long["error.type"], "exceed_context_size_error"


def tokenize(client):
    for text in ["What is the capital of France ?", "unicode 媽 and emoji 🤗"]:
        reply = client.post("/tokenize", content=text, add_special=True)
        yield "status", reply.status, 200
        back = client.post("/detokenize", tokens=reply["tokens"])
        yield "round trip", text in back.body.values(), True
        yield "detokenized text", back["content"], text
        pieces = client.post("/tokenize", content=text, with_pieces=True)
        yield "pieces", type(pieces["tokens.0.piece"]), str


def embedding(client):
    single = client.embed(PROMPT)
    vector = single["data.0.embedding"]
    yield "status", single.status, 200
    yield "normalized", abs(sum(value**2 for value in vector) - 1) < 1e-3, True
    yield "usage", single["usage.prompt_tokens"], single["usage.total_tokens"]
    several = client.embed([PROMPT, PROMPT, "This is a test"])
    yield "usage of several", several["usage.prompt_tokens"], sum(
        client.embed(text)["usage.prompt_tokens"] for text in [PROMPT, PROMPT, "This is a test"]
    )
    yield "same text, same vector", several["data.0.embedding"], several["data.1.embedding"]
    one = ["", "text", [12, 34, 56], [12, 34, "text", 56, 78]]
    many = [["a", "b"], ["a", [12, 34]], [[12, 34], [12, 34]], [[12, 34], [12, "text", 34]]]
    for value, count in [*((value, 1) for value in one), *((value, 2) for value in many)]:
        data = client.embed(value)["data"] or []
        yield f"{json.dumps(value)}", len(data), count
    encoded = base64.b64decode(client.embed(PROMPT, encoding_format="base64")["data.0.embedding"])
    decoded = struct.unpack(f"<{len(encoded) // 4}f", encoded)
    difference = max(abs(a - b) for a, b in zip(decoded, vector, strict=True))
    yield "base64", difference < 1e-6, True
    yield "too long a text", client.embed("This is a test " * 8000).status, 400
    yield "model of another server", client.embed("a", model="text-embedding-3-small").status, 200


def security(client):
    yield "health is public", client.get("/health").status, 200
    yield "the page is public", client.get("/").status, 200
    question = {"messages": CHAT, "max_tokens": 1}
    for key in [{}, {"authorization": "Bearer invalid"}]:
        refused = client.send("POST", "/chat/completions", question, key)
        yield "a wrong key", refused.status, 401
        yield "a wrong key's error", refused["error.type"], "authentication_error"
    for key in [{"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}]:
        yield "a right key", client.send("POST", "/chat/completions", question, key).status, 200
    native = {"prompt": PROMPT, "max_tokens": 1}
    reply = client.send("POST", "/completions", native, {"x-api-key": KEY})
    yield "/completions is the native completion", "content" in reply.body, True
    for host in ["localhost", "127.0.0.1", "[::1]"]:
        for origin in [f"http://{host}", f"http://{host}:3000"]:
            yield f"preflight from {origin}", allowed(client, origin), origin
    for origin in ["http://evil.com", "http://notlocalhost", "http://localhost.evil.com"]:
        yield f"preflight from {origin}", allowed(client, origin), None
    anywhere = "http://web.mydomain.fr"
    yield "every origin is allowed", allowed(client, anywhere), anywhere


def allowed(client, origin):
    """The origin that a preflight's answer allows."""
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    reply = client.send("OPTIONS", "/chat/completions", headers=headers)
    return reply.headers.get("access-control-allow-origin")


def judge(verdict, subject, client):
    for case, found, expected in subject(client):
        if case in KNOWN:
            verdict.expect("known to differ", f"{subject.__name__}: {case}", found != expected, True)
        else:
            verdict.expect(subject.__name__, case, found, expected)


def with_key(folder):
    config = Path(folder) / "loquat.toml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    config.write_text(
        f"""
        [[models]]
        name = "{MODEL}"
        source = "{MODEL}"
        preload = true

        [[keys]]
        name = "judge"
        hash = "sha256:{digest}"
        """,
        encoding="utf-8",
    )
    return config


def main():
    os.environ["LOQUAT_BINARY"] = str(loquat.binary())
    verdict = loquat.Verdict("llama_server")
    with Server() as server:
        for subject in [basic, completion, chat, tokenize, embedding]:
            judge(verdict, subject, Client(server.url))
    with tempfile.TemporaryDirectory() as folder, Server(config=with_key(folder)) as server:
        judge(verdict, security, Client(server.url))
    verdict.end()


main()
