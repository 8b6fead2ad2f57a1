"""schemathesis over our own description of the API: nothing that fits it, and nothing that does
not, makes the server fail or answer otherwise than it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from serving import MODEL, Server

HERE = Path(__file__).resolve().parent
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


# Replies that nobody bounded are short.
CONFIG = f"""
[[models]]
name = "smol"
source = "{MODEL}"
preload = true
max_tokens = 16
"""


@pytest.fixture
def terse(tmp_path):
    config = tmp_path / "loquat.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with Server(config=config, model="smol") as running:
        yield running
        running.wait_until_idle()


def test_the_api_is_what_it_says(terse):
    program = Path(sys.executable).with_name("schemathesis")
    command = [program, "run", f"{terse.url}/openapi.json", "--checks", ",".join(CHECKS)]
    command += ["--max-examples", EXAMPLES, "--suppress-health-check", "all", "--no-color"]
    environment = {
        **os.environ,
        "LOQUAT_MODEL": terse.model,
        "PYTHONPATH": str(HERE),
        "SCHEMATHESIS_HOOKS": "hooks",
    }
    subprocess.run(command, cwd=HERE, env=environment, check=True)
