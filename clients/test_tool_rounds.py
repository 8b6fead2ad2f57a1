"""Programs that execute tool calls themselves: pydantic-ai, openai-agents and llm."""

import os
import subprocess
import sys

import agents
import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
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


@pytest.mark.parametrize("api", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai(weather_server, api):
    provider = OpenAIProvider(base_url=f"{weather_server.url}/v1", api_key="none")
    agent = Agent(api(weather_server.model, provider=provider), tools=[get_weather])
    result = agent.run_sync(QUESTION)
    parts = [part for message in result.all_messages() for part in message.parts]
    assert [part.content for part in parts if part.part_kind == "tool-return"] == ["rain in Paris"]
    assert result.output == ANSWER


@pytest.mark.parametrize(
    "api", [agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel]
)
def test_openai_agents(weather_server, api):
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{weather_server.url}/v1", api_key="none", max_retries=0)
    agent = agents.Agent(
        name="weather_server",
        instructions="Tell the weather.",
        model=api(model=weather_server.model, openai_client=client),
        tools=[agents.function_tool(get_weather)],
    )
    result = agents.Runner.run_sync(agent, QUESTION)
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs == ["rain in Paris"]
    assert result.final_output == ANSWER


LLM_MODELS = """
- model_id: loquat
  model_name: {model}
  api_base: {url}/v1
  supports_tools: true
"""
LLM_FUNCTIONS = '''
def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    return f"rain in {city}"
'''


def test_llm(weather_server, tmp_path):
    models = LLM_MODELS.format(model=weather_server.model, url=weather_server.url)
    (tmp_path / "extra-openai-models.yaml").write_text(models, encoding="utf-8")
    command = [sys.executable, "-m", "llm", "--model", "loquat", "--key", "none", QUESTION]
    command += ["--functions", LLM_FUNCTIONS, "--tools-debug"]
    done = subprocess.run(
        command,
        env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rain in Paris" in done.stderr
    assert done.stdout.strip() == ANSWER
