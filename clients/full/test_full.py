"""Programs whose packages are too large for every run: aider, instructor, dspy, haystack and
llama-index."""

import asyncio
import os
import subprocess
import sys

import dspy
import instructor
import openai
import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from serving import tool_call

QUESTION = "What is the weather in Paris?"
ANSWER = "It rains."


@pytest.fixture
def weather_server(scripted):
    """Calls `get_weather`, then answers."""
    return scripted(tool_call("get_weather", city="Paris"), ANSWER)


def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    return f"rain in {city}"


class City(BaseModel):
    """A city."""

    name: str


@pytest.mark.parametrize(
    ("mode", "reply"),
    [
        (instructor.Mode.TOOLS, tool_call("City", name="Paris")),
        (instructor.Mode.JSON, '{"name": "Paris"}'),
        (instructor.Mode.JSON_SCHEMA, '{"name": "Paris"}'),
        (instructor.Mode.MD_JSON, '```json\n{"name": "Paris"}\n```'),
    ],
    ids=["tools", "json", "json-schema", "md-json"],
)
def test_instructor(scripted, mode, reply):
    server = scripted(reply)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    city = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=server.model,
        response_model=City,
        messages=[{"role": "user", "content": "Name a city."}],
        max_retries=0,
    )
    assert city.name == "Paris"


def test_dspy(scripted):
    server = scripted("[[ ## answer ## ]]\nParis\n\n[[ ## completed ## ]]")
    model = dspy.LM(
        f"openai/{server.model}", api_base=f"{server.url}/v1", api_key="none", cache=False
    )
    with dspy.context(lm=model):
        assert dspy.Predict("question -> answer")(question="Name a city.").answer == "Paris"


def test_haystack(weather_server):
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model=weather_server.model,
        api_base_url=f"{weather_server.url}/v1",
        max_retries=0,
    )
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(get_weather)])
    messages = agent.run(messages=[ChatMessage.from_user(QUESTION)])["messages"]
    results = [result.result for message in messages for result in message.tool_call_results]
    assert results == ["rain in Paris"]
    assert messages[-1].text == ANSWER


def test_llama_index(weather_server):
    model = OpenAILike(
        model=weather_server.model,
        api_base=f"{weather_server.url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )

    async def ask():
        return await FunctionAgent(tools=[get_weather], llm=model).run(QUESTION)

    reply = asyncio.run(ask())
    assert [str(call.tool_output) for call in reply.tool_calls] == ["rain in Paris"]
    assert str(reply) == ANSWER


def test_aider(scripted, tmp_path):
    # aider's prompt has example turns, so every turn gets this reply.
    server = scripted("The change:\n\ncount.py\n```\nx = 2\n```\n")
    source = tmp_path / "count.py"
    source.write_text("x = 1\n", encoding="utf-8")
    command = [sys.executable, "-m", "aider", "--model", f"openai/{server.model}"]
    command += ["--message", "Set x to 2.", "--yes-always", "--no-git", "--edit-format", "whole"]
    command += ["--analytics-disable", "--no-check-update", "--no-show-model-warnings"]
    subprocess.run(
        [*command, source.name],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "OPENAI_API_BASE": f"{server.url}/v1",
            "OPENAI_API_KEY": "none",
        },
        stdin=subprocess.DEVNULL,
        check=True,
    )
    assert source.read_text(encoding="utf-8") == "x = 2\n"
