"""Input that is valid HTTP and costs as much as it can."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor

from .ordinary import hostile_template, user
from .server import CHAT, STEADY

BODY_BYTES = 30_000_000
AT_ONCE = 4


def filled(before, piece, after):
    """A body of about 30 MB."""
    count = (BODY_BYTES - len(before) - len(after)) // len(piece)
    return (before + piece * count + after).encode()


def distinct_fields(before, after):
    """A body with a million fields that differ, which fit in the memory of a body."""
    fields = ",".join(f'"field_{at:07}":1' for at in range(1_000_000))
    return (before + fields + after).encode()


@functools.cache
def large_bodies():
    """Bodies of 20 to 30 MB by name: their path and their bytes."""
    tokenize, chat = '{"model":"chat","content":"', '{"model":"chat","messages":'
    return {
        "30 MB of words": ("/tokenize", filled(tokenize, "word ", '"}')),
        "30 MB of one letter": ("/tokenize", filled(tokenize, "a", '"}')),
        "30 MB of escapes": ("/tokenize", filled(tokenize, "\\u00e9", '"}')),
        "30 MB message": (
            "/v1/chat/completions",
            filled(chat + '[{"role":"user","content":"', "word ", '"}]}'),
        ),
        "30 MB of messages": (
            "/v1/chat/completions",
            filled(chat + "[", '{"role":"user","content":"x"},', '{"role":"user","content":"x"}]}'),
        ),
        "30 MB of numbers": ("/v1/completions", filled('{"model":"chat","prompt":[', "1,", "1]}")),
        "30 MB of fields": ("/v1/messages", filled('{"model":"chat","x":{', '"k":{},', '"k":{}}}')),
        "a million unknown fields": (
            "/v1/completions",
            distinct_fields('{"model":"chat","prompt":"x",', "}"),
        ),
        "a million unknown options": (
            "/api/chat",
            distinct_fields('{"model":"chat","messages":[{"role":"user","content":"x"}],"options":{', "}}"),
        ),
        "30 MB of brackets": ("/api/chat", filled('{"model":"chat","x":', "[", "")),
        "30 MB of inputs": ("/v1/embeddings", filled('{"model":"chat","input":[', '"x",', '"x"]}')),
    }


def send_large_body(client, record, name):
    path, body = large_bodies()[name]
    record.expect(name, client.post(path, body), {400, 413})


def four_large_bodies(client, record, rng):
    """Four bodies of 30 MB at once."""
    names = [rng.choice(list(large_bodies())) for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda name: send_large_body(client, record, name), names))


def nested(depth, inner, wrap):
    for _ in range(depth):
        inner = wrap(inner)
    return inner


SCHEMAS = {
    "deep": nested(60, {"type": "string"}, lambda inner: {"type": "object", "properties": {"a": inner}}),
    "wide": {"type": "object", "properties": {f"k{at}": {"type": "string"} for at in range(20_000)}},
    "many choices": {"enum": [f"value {at}" for at in range(50_000)]},
    "product": nested(12, {"type": "integer"}, lambda inner: {"anyOf": [inner, {"items": inner}]}),
    "loop": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "recursion": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
    },
    "many items": {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000_000},
    "long text": {"type": "string", "minLength": 1_000_000, "maxLength": 100_000_000},
    "pattern": {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"},
    "impossible": {"allOf": [{"type": "string"}, {"type": "object"}]},
    "no schema": {"type": "nothing", "properties": 5},
}
REGEXES = [
    "((a{1,999}){1,999}){1,999}",
    "(x+x+)+y",
    "[",
    "(?=a)b",
    "(a|aa|aaa)*" * 200,
    "\\p{L}{5000}",
    "a" * 100_000,
]
GRAMMARS = [
    "root ::= root",
    "root ::= " + "(" * 5000,
    'root ::= "a" root | root "b"',
    'root ::= ("a"?){99999}',
    "x",
]


def hostile_constraint(client, record, rng):
    """Schemas, regular expressions and grammars that explode: an answer or a refusal."""
    name = rng.choice(["schema", "regex", "grammar"])
    if name == "schema":
        schema = {"name": "x", "schema": SCHEMAS[rng.choice(list(SCHEMAS))]}
        constraint = {"response_format": {"type": "json_schema", "json_schema": schema}}
    elif name == "regex":
        constraint = {"guided_regex": rng.choice(REGEXES)}
    else:
        constraint = {"grammar": rng.choice(GRAMMARS)}
    body = {"model": rng.choice([CHAT, STEADY]), "messages": user("Hello"), "max_tokens": 6, **constraint}
    record.expect(f"hostile {name}", client.post("/v1/chat/completions", body), {200, 400, 409})


VALUES = [
    ("prompt", "a" * 1_000_000),
    ("prompt", "\u200d\U0001f469" * 100_000),
    ("prompt", "\0\ufffd\u202e" * 1000),
    ("prompt", [10**30]),
    ("prompt", [[1] * 3000]),
    ("max_tokens", 10**40),
    ("max_tokens", -7),
    ("n", 100_000),
    ("best_of", 10**9),
    ("stop", ["x" * 100_000] * 4),
    ("stop", ["x"] * 100_000),
    ("logit_bias", {str(at): 100 for at in range(200_000)}),
    ("logit_bias", {"99999999": 1}),
    ("temperature", 1e308),
    ("temperature", "hot"),
    ("top_p", -1),
    ("chat_template_kwargs", {"a": ["b"] * 10_000}),
    ("chat_template", "{{ 'x'.join(['y'] * 999999999) }}"),
    ("suffix", "x" * 1_000_000),
    ("model", "../../etc/passwd"),
    ("model", "x" * 100_000),
]


def hostile_value(client, record, rng):
    """A field that is too large, too small or of another type."""
    field, value = rng.choice(VALUES)
    body = {"model": STEADY, "prompt": "Hello", "max_tokens": 4, field: value}
    answer = client.post("/v1/completions", body)
    record.expect("hostile value", answer, {200, 400, 404, 409, 413})


BODIES = [b"", b"null", b"[]", b"{}", b'"' * 9, b"[" * 500_000, b'{"a":' * 100_000, b"\xff\xfe{}"]
BODIES += [b'{"prompt": 1e999999}']
JSON_PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/completion"]
JSON_PATHS += ["/tokenize"]


def hostile_json(client, record, rng):
    """Bodies that are not JSON, or nested too deep."""
    body, path = rng.choice(BODIES), rng.choice(JSON_PATHS)
    record.expect("hostile JSON", client.post(path, body), {400, 413})


def hostile(client, record, rng):
    rng.choice([hostile_constraint, hostile_constraint, hostile_value, hostile_value, hostile_json])(
        client, record, rng
    )


def costly(client, record, rng):
    """What takes seconds: large bodies, mostly, and a template that never ends."""
    if rng.random() < 0.8:
        four_large_bodies(client, record, rng)
    else:
        hostile_template(client, record, rng)
