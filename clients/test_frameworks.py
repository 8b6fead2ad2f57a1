"""Frameworks on top of the API: litellm and langchain."""

import json

import litellm
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from questions import JOKE


class City(BaseModel):
    """A city."""

    name: str
    inhabitants: int = Field(description="how many live there")


class Weather(BaseModel):
    """Tells the weather of a city."""

    city: str


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama_chat"])
def test_litellm(server, provider):
    where = {
        "model": f"{provider}/{server.model}",
        "api_base": f"{server.url}/v1" if provider == "openai" else server.url,
        "api_key": "none",
    }
    parameters = {"messages": JOKE, "max_tokens": 24, "temperature": 0}
    whole = litellm.completion(**where, **parameters).choices[0].message.content
    assert "cat" in whole
    chunks = litellm.completion(**where, **parameters, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    beyond_context = litellm.completion(**where, **{**parameters, "max_tokens": 20_000})
    assert beyond_context.choices[0].message.content.startswith(whole)


@pytest.fixture
def chat(server):
    return ChatOpenAI(
        model=server.model, base_url=f"{server.url}/v1", api_key="none", temperature=0,
        max_tokens=200,
    )


def test_langchain_chat(chat):
    whole = chat.invoke(JOKE).content
    assert "cat" in whole
    assert "".join(chunk.content for chunk in chat.stream(JOKE)) == whole


def test_langchain_structured_output(chat):
    assert isinstance(chat.with_structured_output(City).invoke("Describe Paris."), City)


def test_langchain_tools(chat):
    reply = chat.bind_tools([Weather], tool_choice="Weather").invoke("The weather in Paris?")
    (call, *_) = reply.tool_calls
    assert call["name"] == "Weather"
    assert isinstance(call["args"]["city"], str)
    json.dumps(call["args"])


def test_langchain_embeddings(server):
    # Without langchain's tokenizer, which would be downloaded.
    embeddings = OpenAIEmbeddings(
        model=server.model, base_url=f"{server.url}/v1", api_key="none",
        check_embedding_ctx_length=False,
    )
    first, second = embeddings.embed_documents(["a cat", "a kitten"])
    assert len(first) == len(second) > 100
