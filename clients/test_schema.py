"""schemathesis with the OpenAPI description: valid and invalid requests get only documented responses,
and no server errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import schemathesis
from serving import MODEL, Server

FOLDER = Path(__file__).resolve().parent
# Each example is a real request to a real model.
EXAMPLES = "12"
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
]


# Keeps replies short if a request sets no limit, or a large one.
CONFIG = f"""
[[models]]
name = "smol"
source = "{MODEL}"
preload = true
context = 512
max_tokens = 16
"""


@pytest.fixture
def short_replies(tmp_path):
    config = tmp_path / "loquat.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with Server(config=config, model="smol") as running:
        yield running
        running.wait_until_idle()


def test_api_matches_description(short_replies):
    program = Path(sys.executable).with_name("schemathesis")
    command = [program, "run", f"{short_replies.url}/openapi.json", "--checks", ",".join(CHECKS)]
    command += ["--max-examples", EXAMPLES, "--suppress-health-check", "all", "--no-color"]
    # Only a hang takes so long, also on a busy machine.
    command += ["--request-timeout", "300"]
    if not os.environ.get("LOQUAT_FULL"):
        command += ["--seed", "1"]
    environment = {
        **os.environ,
        "LOQUAT_MODEL": short_replies.model,
        "PYTHONPATH": str(FOLDER),
        "SCHEMATHESIS_HOOKS": "hooks",
    }
    subprocess.run(command, cwd=FOLDER, env=environment, check=True)


QUESTION = {"role": "user", "content": "Say hello."}
STREAMS = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [QUESTION], "max_tokens": 4},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
    "/v1/messages": {"messages": [QUESTION], "max_tokens": 4},
    "/api/chat": {"messages": [QUESTION], "options": {"num_predict": 4}},
    "/api/generate": {"prompt": "Hello", "options": {"num_predict": 4}},
    "/completion": {"prompt": "Hello", "n_predict": 4},
}
# The model has no fill-in-the-middle tokens.
REFUSED_STREAMS = {"/infill"}


def test_rare_replies_match_description(short_replies):
    """Generated requests rarely select fields, have several prompts or no text."""
    schema = schemathesis.openapi.from_url(f"{short_replies.url}/openapi.json")
    for body in [
        {"prompt": "Hello", "response_fields": ["content", "timings/predicted_n", "no such field"]},
        {"prompt": ["Hello", "Bye"]},
    ]:
        body = {"model": short_replies.model, "n_predict": 4, **body}
        case = schema["/completion"]["POST"].Case(body=body, media_type="application/json")
        response = case.call_and_validate()
        assert response.status_code == 200, (body, response.content)
    nothing = {"model": short_replies.model, "content": ""}
    schema["/tokenize"]["POST"].Case(body=nothing, media_type="application/json").call_and_validate()


def test_streams_match_description(short_replies):
    """Tests streaming on each path that supports it, because generated requests rarely stream."""
    schema = schemathesis.openapi.from_url(f"{short_replies.url}/openapi.json")
    described = {
        path
        for path, operations in schema.raw_schema["paths"].items()
        for operation in operations.values()
        if {"text/event-stream", "application/x-ndjson"}
        & operation["responses"].get("200", {}).get("content", {}).keys()
        and "requestBody" in operation
    }
    assert STREAMS.keys() | REFUSED_STREAMS == described
    for path, body in STREAMS.items():
        case = schema[path]["POST"].Case(
            body={"model": short_replies.model, "stream": True, **body}, media_type="application/json"
        )
        response = case.call_and_validate()
        assert response.status_code == 200, (path, response.content)
        assert response.headers["content-type"][0].startswith(("text/event-stream", "application/x-ndjson"))
