"""The openai package for JavaScript, and the Vercel AI SDK."""

import os
import subprocess
from pathlib import Path

from serving import tool_call

FOLDER = Path(__file__).resolve().parent / "node"


def run(file, server):
    environment = {**os.environ, "LOQUAT_URL": server.url, "LOQUAT_MODEL": server.model}
    subprocess.run(["node", "--test", file], cwd=FOLDER, env=environment, check=True)


def test_openai_for_javascript(server):
    run("openai.test.mjs", server)


def test_vercel_ai_sdk(scripted):
    run("ai-sdk.test.mjs", scripted(tool_call("get_weather", city="Paris"), "It rains."))
