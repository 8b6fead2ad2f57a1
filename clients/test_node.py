"""The openai package for JavaScript."""

import os
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "node"


def test_openai_for_javascript(server):
    environment = {**os.environ, "LOQUAT_URL": server.url, "LOQUAT_MODEL": server.model}
    subprocess.run(["node", "--test", "openai.test.mjs"], cwd=FOLDER, env=environment, check=True)
