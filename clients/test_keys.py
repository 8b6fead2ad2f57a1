"""API keys in the header that each client uses."""

import hashlib

import anthropic
import openai
import pytest
from serving import MODEL, Server

KEY = "lq-only-for-this-test"
CONFIG = f"""
[[models]]
name = "smol"
source = "{MODEL}"
aliases = ["gpt-4o-mini"]
preload = true

[[keys]]
name = "ada"
hash = "sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"
scopes = ["inference", "metrics"]
concurrent = 2
"""
QUESTION = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    config = tmp_path_factory.mktemp("config") / "loquat.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with Server(config=config, model="smol") as running:
        yield running


def test_only_valid_key_is_accepted(guarded):
    def ask(key, model="smol"):
        client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0)
        return client.chat.completions.create(model=model, messages=QUESTION, max_tokens=2)

    assert ask(KEY).choices
    assert ask(KEY, "gpt-4o-mini").choices
    with pytest.raises(openai.AuthenticationError):
        ask("wrong")


def test_anthropic_key_header_is_accepted(guarded):
    def ask(key):
        client = anthropic.Anthropic(base_url=guarded.url, api_key=key, max_retries=0)
        return client.messages.create(model="smol", messages=QUESTION, max_tokens=2)

    assert ask(KEY).content
    with pytest.raises(anthropic.AuthenticationError):
        ask("wrong")
