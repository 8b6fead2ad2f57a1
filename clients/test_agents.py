"""Claude Code and Codex with their default settings: each reads a file with its own tool."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from serving import tool_call

PROGRAMS = Path(__file__).resolve().parent / "agents/node_modules/.bin"
QUESTION = "What is in notes.txt?"
NOTE = "buy four loquats"
ANSWER = "A shopping list with one item."
SECONDS = 120


@pytest.fixture
def folder(tmp_path):
    """The folder that the program works in, next to its home."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text(NOTE + "\n", encoding="utf-8")
    return folder


def run(program, *args, folder, **variables):
    """The events that the program prints, one JSON object per line."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    inherited = {name: os.environ[name] for name in ["PATH", "LANG", "TMPDIR"] if name in os.environ}
    done = subprocess.run(
        [PROGRAMS / program, *args],
        cwd=folder,
        env={**inherited, **variables, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_claude_code(scripted, folder):
    server = scripted(tool_call("Read", file_path=str(folder / "notes.txt")), ANSWER)
    events = run(
        "claude", "--print", QUESTION, "--output-format", "stream-json", "--verbose",
        folder=folder,
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_API_KEY="none",
        DISABLE_AUTOUPDATER="1",
        DISABLE_ERROR_REPORTING="1",
        DISABLE_TELEMETRY="1",
    )
    results = [
        block["content"]
        for event in events
        if event["type"] == "user"
        for block in event["message"]["content"]
        if block["type"] == "tool_result"
    ]
    assert len(results) == 1
    assert NOTE in results[0]
    assert events[-1]["subtype"] == "success"
    assert events[-1]["result"] == ANSWER
    # Two turns and the session title.
    assert server.totals()["finished"] >= 3
    assert server.totals()["refused"] == 0


CODEX = """
model = "{model}"
model_provider = "loquat"

[model_providers.loquat]
name = "Loquat"
base_url = "{url}/v1"
"""


def test_codex(scripted, folder):
    server = scripted(tool_call("exec_command", cmd="cat notes.txt"), ANSWER)
    settings = folder.parent / "home/.codex/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(CODEX.format(model=server.model, url=server.url), encoding="utf-8")
    events = run("codex", "exec", "--json", "--skip-git-repo-check", QUESTION, folder=folder)
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    outputs = [item["aggregated_output"] for item in items if item["type"] == "command_execution"]
    assert len(outputs) == 1
    assert NOTE in outputs[0]
    texts = [item["text"] for item in items if item["type"] == "agent_message"]
    assert texts == [ANSWER]
    assert server.totals()["finished"] == 2
    assert server.totals()["refused"] == 0
